//! Shares the steps among clients. The sequences of one client at one priority are a *flow*.
//!
//! A flow counts the tokens that were computed for it. Among the flows of one priority, the one that was served least
//! gets prompt tokens, or is admitted, next. So clients that always have prompts waiting get equal numbers of tokens,
//! however many requests they have sent, and however long these are. Within a flow the order is by arrival.
//!
//! Credit is limited: a flow that had nothing waiting begins at most `credit` tokens behind the next flow's service
//! (`Level::time`, the virtual time of fair queueing). So an occasional client goes first, and steps with its prompts
//! are not filled up with the waiting work of others. Pausing gains nothing either: a flow that has used some of its
//! credit is remembered without sequences until the others have caught up. The number of remembered flows is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use slab::Slab;

use super::sequence::Key;

/// The most flows without sequences that are remembered per priority.
const MAX_IDLE_FLOWS: usize = 1024;

/// The sequences of one client at one priority.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) priority: i32,
    pub(super) client: Option<Arc<str>>,
    /// Tokens that were computed for it, plus the value at which it began.
    pub(super) served: u64,
    /// The slots of its waiting sequences.
    pub(super) waiting: BTreeMap<Key, usize>,
    /// The number of its sequences that wait or run.
    num_live: usize,
}

/// The flows of one priority.
#[derive(Debug)]
struct Level {
    /// The service of the flow that was next, if that flow had used its credit.
    time: u64,
    /// The number of flows with sequences.
    num_live: usize,
    /// Flows without sequences, by their service.
    idle: BTreeSet<(u64, usize)>,
}

impl Flow {
    pub(super) fn num_running(&self) -> usize {
        self.num_live - self.waiting.len()
    }
}

#[derive(Debug)]
pub(super) struct Flows {
    /// Maximum tokens by which a flow may be behind when it begins.
    credit: u64,
    flows: Slab<Flow>,
    ids: HashMap<(i32, Option<Arc<str>>), usize>,
    levels: BTreeMap<i32, Level>,
    num_waiting: usize,
}

impl Flows {
    pub(super) fn new(credit: u64) -> Self {
        Self { credit, flows: Slab::new(), ids: HashMap::new(), levels: BTreeMap::new(), num_waiting: 0 }
    }

    fn level(&mut self, priority: i32) -> &mut Level {
        let new = || Level { time: self.credit, num_live: 0, idle: BTreeSet::new() };
        self.levels.entry(priority).or_insert_with(new)
    }

    /// Returns the service that a flow begins with now.
    fn beginning(&mut self, priority: i32) -> u64 {
        let credit = self.credit;
        self.level(priority).time.saturating_sub(credit)
    }

    /// True if a flow was served less than others that have used their credit.
    pub(super) fn is_in_credit(&self, id: usize) -> bool {
        self.has_credit(&self.flows[id])
    }

    fn has_credit(&self, flow: &Flow) -> bool {
        self.levels.get(&flow.priority).is_some_and(|level| flow.served < level.time)
    }

    /// True if some of the flows with sequences have credit and others have none.
    pub(super) fn differ(&self) -> bool {
        let num_live: usize = self.levels.values().map(|level| level.num_live).sum();
        let mut live = self.flows.iter().map(|(_, flow)| flow).filter(|flow| flow.num_live > 0);
        num_live > 1
            && live.next().is_some_and(|first| live.any(|flow| self.has_credit(flow) != self.has_credit(first)))
    }

    /// Returns the flow of a client at a priority, with one more sequence.
    pub(super) fn join(&mut self, priority: i32, client: Option<Arc<str>>) -> usize {
        let served = self.beginning(priority);
        let id = *self.ids.entry((priority, client.clone())).or_insert_with(|| {
            let flow = Flow { priority, client, served, waiting: BTreeMap::new(), num_live: 0 };
            self.flows.insert(flow)
        });
        self.join_again(id);
        id
    }

    /// Adds one sequence to an existing flow.
    pub(super) fn join_again(&mut self, id: usize) {
        let flow = &mut self.flows[id];
        flow.num_live += 1;
        if flow.num_live == 1 {
            let (priority, served) = (flow.priority, flow.served);
            let level = self.level(priority);
            level.num_live += 1;
            level.idle.remove(&(served, id));
        }
    }

    /// Removes a sequence of the flow that has ended.
    pub(super) fn leave(&mut self, id: usize) {
        let flow = &mut self.flows[id];
        flow.num_live -= 1;
        if flow.num_live > 0 {
            return;
        }
        let (priority, served, credit) = (flow.priority, flow.served, self.credit);
        let level = self.level(priority);
        level.num_live -= 1;
        level.idle.insert((served, id));
        if level.num_live == 0 {
            // No flow has to catch up with another.
            level.time = u64::MAX;
        } else if level.idle.len() > MAX_IDLE_FLOWS {
            level.time = level.time.max(level.idle.first().map_or(0, |(served, _)| served.saturating_add(credit)));
        }
        self.forget_idle(priority);
    }

    /// Notes that the least served flow of `priority` had a service of `served`.
    pub(super) fn advance(&mut self, priority: i32, served: u64) {
        let level = self.level(priority);
        if level.time < served {
            level.time = served;
            self.forget_idle(priority);
        }
    }

    /// Forgets flows without sequences that would begin again at their present service.
    fn forget_idle(&mut self, priority: i32) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        let is_due = |(served, _): &(u64, usize)| served.saturating_add(self.credit) <= level.time;
        while let Some((_, id)) = level.idle.first().copied().filter(is_due) {
            level.idle.pop_first();
            let flow = self.flows.remove(id);
            self.ids.remove(&(flow.priority, flow.client));
        }
        if level.num_live == 0 {
            self.levels.remove(&priority);
        }
    }

    pub(super) fn wait(&mut self, id: usize, key: Key, slot: usize) {
        let flow = &mut self.flows[id];
        if flow.waiting.is_empty() {
            let time = self.levels.get(&flow.priority).map_or(0, |level| level.time);
            flow.served = flow.served.max(time.saturating_sub(self.credit));
        }
        self.num_waiting += usize::from(flow.waiting.insert(key, slot).is_none());
    }

    pub(super) fn stop_waiting(&mut self, id: usize, key: Key) {
        self.num_waiting -= usize::from(self.flows[id].waiting.remove(&key).is_some());
    }

    #[inline]
    pub(super) fn charge(&mut self, id: usize, num_tokens: usize) {
        self.flows[id].served += num_tokens as u64;
    }

    /// Refunds charged tokens that were not computed after all. A flow that had used its credit gains none by that.
    pub(super) fn refund(&mut self, id: usize, num_tokens: usize) {
        let had_credit = self.is_in_credit(id);
        let flow = &mut self.flows[id];
        flow.served = flow.served.saturating_sub(num_tokens as u64);
        let (priority, served) = (flow.priority, flow.served);
        if !had_credit && let Some(level) = self.levels.get_mut(&priority) {
            level.time = level.time.min(served);
        }
    }

    /// Returns the flows that have used their credit.
    pub(super) fn without_credit(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().map(|(_, flow)| flow).filter(|flow| !self.has_credit(flow))
    }

    pub(super) fn get(&self, id: usize) -> &Flow {
        &self.flows[id]
    }

    pub(super) fn num_waiting(&self) -> usize {
        self.num_waiting
    }

    /// Returns the flows with waiting sequences, in arbitrary order.
    pub(super) fn with_waiting(&self) -> impl Iterator<Item = (usize, &Flow)> {
        let flows = if self.num_waiting > 0 { Some(self.flows.iter()) } else { None };
        flows.into_iter().flatten().filter(|(_, flow)| !flow.waiting.is_empty())
    }

    /// # Errors
    /// The broken invariant. `live` counts the sequences of each flow, of which `waiting` wait in all.
    pub(super) fn check(&self, live: &HashMap<usize, usize>, waiting: usize) -> Result<(), String> {
        let queued: usize = self.flows.iter().map(|(_, flow)| flow.waiting.len()).sum();
        if waiting != queued || waiting != self.num_waiting {
            return Err(format!("{waiting} wait, {queued} are queued, {} are counted", self.num_waiting));
        }
        for (id, flow) in &self.flows {
            let level = self.levels.get(&flow.priority).ok_or("a flow has no level")?;
            let is_idle = level.idle.contains(&(flow.served, id));
            if flow.num_live != live.get(&id).copied().unwrap_or(0) || is_idle != (flow.num_live == 0) {
                return Err(format!("flow {id} has {} sequences, is_idle is {is_idle}", flow.num_live));
            }
            if is_idle && flow.served.saturating_add(self.credit) <= level.time {
                return Err(format!("flow {id} is remembered at {} when {} has passed", flow.served, level.time));
            }
        }
        for (priority, level) in &self.levels {
            let num_live =
                self.flows.iter().filter(|(_, flow)| flow.priority == *priority && flow.num_live > 0).count();
            if level.num_live != num_live || num_live == 0 || level.idle.len() > MAX_IDLE_FLOWS {
                return Err(format!("priority {priority} has {num_live} flows, not as {level:?}"));
            }
        }
        if self.ids.len() == self.flows.len() { Ok(()) } else { Err("a flow is not found by its client".into()) }
    }
}
