//! The engine's requests, from their admission to their end, with their deadlines.

use std::collections::{BTreeSet, HashMap};
use std::mem;

use crate::ids::{RequestId, request_of};
use crate::output::{SharedSink, same_sink};
use crate::request::Request;
use crate::request::sequence::Sequence;
use crate::scheduler::SeqId;

#[derive(Default)]
pub(super) struct Requests {
    by_id: HashMap<RequestId, Request>,
    deadlines: BTreeSet<(u64, RequestId)>,
    /// Requests taken from the commands since the counters were last published.
    num_taken: usize,
}

impl Requests {
    /// Counts a request that is no longer among the commands.
    pub(super) fn note_taken(&mut self) {
        self.num_taken += 1;
    }

    pub(super) fn take_num_taken(&mut self) -> usize {
        mem::take(&mut self.num_taken)
    }

    pub(super) fn insert(&mut self, request: Request) {
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, request.id));
        }
        self.by_id.insert(request.id, request);
    }

    /// Removes a request and its deadline.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Request> {
        let request = self.by_id.remove(&id)?;
        if let Some(deadline) = request.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(request)
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Request> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.by_id.get_mut(&id)
    }

    /// Returns the request of a sequence.
    pub(super) fn of(&self, seq: SeqId) -> Option<&Request> {
        self.get(request_of(seq).0)
    }

    pub(super) fn of_mut(&mut self, seq: SeqId) -> Option<&mut Request> {
        self.get_mut(request_of(seq).0)
    }

    /// Returns a sequence of a request that generates.
    pub(super) fn sequence_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        let (id, index) = request_of(seq);
        self.get_mut(id)?.generation()?.sequences.get_mut(index)
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.by_id.keys().copied().collect()
    }

    /// Returns the requests whose outputs go to a consumer.
    pub(super) fn of_sink(&self, sink: &SharedSink) -> Vec<RequestId> {
        let goes_there = |request: &&Request| request.sink().is_some_and(|other| same_sink(other, sink));
        self.by_id.values().filter(goes_there).map(|request| request.id).collect()
    }

    /// Returns a request that is past its deadline, once.
    pub(super) fn next_expired(&mut self, now: u64) -> Option<RequestId> {
        let (deadline, _) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.deadlines.pop_first().map(|(_, id)| id)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }
}
