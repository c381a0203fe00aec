//! Shares the steps among clients. The sequences of one client at one priority are a *flow*.
//!
//! A flow counts the tokens that were computed for it, and among those of one priority the flow that was served least
//! is the next to get prompt tokens or to be let in. So clients that always have prompts waiting get equally many
//! tokens, however many requests each has sent, and however long they are. Within a flow the order is by arrival.
//!
//! Nobody saves up much: a flow that had nothing waiting begins at most `credit` tokens behind what the flow that is
//! next has had (`Level::time`, the virtual time of fair queueing). So who comes now and then goes first, and steps
//! with its prompts are not filled up with what others have waiting. Nobody escapes by pausing either: a flow that has
//! used some of that is remembered without sequences until the others have caught up. It is bounded how many are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use slab::Slab;

use super::sequence::Key;

/// Flows without sequences that are remembered of each priority.
const MAX_IDLE_FLOWS: usize = 1024;

/// The sequences of one client at one priority.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) priority: i32,
    pub(super) client: Option<Arc<str>>,
    /// Tokens that were computed for it, from where it began.
    pub(super) served: u64,
    /// Its waiting sequences' slots.
    pub(super) waiting: BTreeMap<Key, usize>,
    /// Its sequences that wait or run.
    num_live: usize,
}

/// The flows of one priority.
#[derive(Debug)]
struct Level {
    /// Tokens that the flow that was next had been served, where it had used its credit.
    time: u64,
    /// Flows with sequences.
    num_live: usize,
    /// Flows without sequences, by what they were served.
    idle: BTreeSet<(u64, usize)>,
}

impl Flow {
    pub(super) fn num_running(&self) -> usize {
        self.num_live - self.waiting.len()
    }
}

#[derive(Debug)]
pub(super) struct Flows {
    /// Tokens by which a flow may be behind when it begins.
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

    /// The tokens that a flow which begins now counts as served.
    fn beginning(&mut self, priority: i32) -> u64 {
        let credit = self.credit;
        self.level(priority).time.saturating_sub(credit)
    }

    /// Whether a flow was served less than others that have used their credit.
    pub(super) fn is_in_credit(&self, id: usize) -> bool {
        self.has_credit(&self.flows[id])
    }

    fn has_credit(&self, flow: &Flow) -> bool {
        self.levels.get(&flow.priority).is_some_and(|level| flow.served < level.time)
    }

    /// Whether of the flows with sequences some have credit, and others have none.
    pub(super) fn differ(&self) -> bool {
        let num_live: usize = self.levels.values().map(|level| level.num_live).sum();
        let mut live = self.flows.iter().map(|(_, flow)| flow).filter(|flow| flow.num_live > 0);
        num_live > 1
            && live.next().is_some_and(|first| live.any(|flow| self.has_credit(flow) != self.has_credit(first)))
    }

    /// The flow of a client at a priority, with one sequence more.
    pub(super) fn join(&mut self, priority: i32, client: Option<Arc<str>>) -> usize {
        let served = self.beginning(priority);
        let id = *self.ids.entry((priority, client.clone())).or_insert_with(|| {
            let flow = Flow { priority, client, served, waiting: BTreeMap::new(), num_live: 0 };
            self.flows.insert(flow)
        });
        self.join_again(id);
        id
    }

    /// One sequence more for a flow that there is.
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

    /// A sequence of the flow has ended.
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
            // Nobody has to catch up with anybody.
            level.time = u64::MAX;
        } else if level.idle.len() > MAX_IDLE_FLOWS {
            level.time = level.time.max(level.idle.first().map_or(0, |(served, _)| served.saturating_add(credit)));
        }
        self.forget_idle(priority);
    }

    /// The flow that was served least of those of `priority` had been served this much.
    pub(super) fn advance(&mut self, priority: i32, served: u64) {
        let level = self.level(priority);
        if level.time < served {
            level.time = served;
            self.forget_idle(priority);
        }
    }

    /// Forgets flows without sequences that would begin anew where they stand.
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

    /// Tokens that were charged are not computed after all. A flow that had used its credit has not won some by that.
    pub(super) fn refund(&mut self, id: usize, num_tokens: usize) {
        let had_credit = self.is_in_credit(id);
        let flow = &mut self.flows[id];
        flow.served = flow.served.saturating_sub(num_tokens as u64);
        let (priority, served) = (flow.priority, flow.served);
        if !had_credit && let Some(level) = self.levels.get_mut(&priority) {
            level.time = level.time.min(served);
        }
    }

    /// The flows that have used their credit.
    pub(super) fn without_credit(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().map(|(_, flow)| flow).filter(|flow| !self.has_credit(flow))
    }

    pub(super) fn get(&self, id: usize) -> &Flow {
        &self.flows[id]
    }

    pub(super) fn num_waiting(&self) -> usize {
        self.num_waiting
    }

    /// Flows with waiting sequences, in no order that means anything.
    pub(super) fn with_waiting(&self) -> impl Iterator<Item = (usize, &Flow)> {
        let flows = if self.num_waiting > 0 { Some(self.flows.iter()) } else { None };
        flows.into_iter().flatten().filter(|(_, flow)| !flow.waiting.is_empty())
    }

    /// # Errors
    /// The invariant that is broken; `live` counts a flow's sequences, of which `waiting` wait.
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
