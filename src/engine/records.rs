//! What is remembered of finished requests, bounded in time and number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ids::RequestId;
use super::output::{FinishReason, RequestMetrics};
use crate::Error;

/// Records kept at most, whatever the retention.
pub(super) const MAX_RECORDS: usize = 10_000;

/// The end of one request.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    pub id: RequestId,
    pub name: Arc<str>,
    /// Of the sequence that ended last.
    pub finish_reason: FinishReason,
    pub error: Option<Error>,
    pub prompt_tokens: usize,
    /// Over all its sequences.
    pub generated_tokens: usize,
    pub metrics: RequestMetrics,
}

/// Finished requests by name, oldest first. Times are microseconds of the engine's clock.
#[derive(Debug)]
pub(super) struct Records {
    retention: u64,
    by_age: VecDeque<(u64, Arc<RequestRecord>)>,
    by_name: HashMap<Arc<str>, Arc<RequestRecord>>,
}

impl Records {
    pub(super) fn new(retention: Duration) -> Self {
        let retention = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        Self { retention, by_age: VecDeque::new(), by_name: HashMap::new() }
    }

    pub(super) fn insert(&mut self, record: RequestRecord, now: u64) {
        let record = Arc::new(record);
        self.by_name.insert(Arc::clone(&record.name), Arc::clone(&record));
        self.by_age.push_back((now, record));
        self.purge(now);
    }

    /// The latest finished request of that name.
    pub(super) fn get(&mut self, name: &str, now: u64) -> Option<RequestRecord> {
        self.purge(now);
        self.by_name.get(name).map(|record| RequestRecord::clone(record))
    }

    pub(super) fn len(&mut self, now: u64) -> usize {
        self.purge(now);
        self.by_age.len()
    }

    fn purge(&mut self, now: u64) {
        while let Some((finished, _)) = self.by_age.front() {
            let expired = now.saturating_sub(*finished) > self.retention;
            if !expired && self.by_age.len() <= MAX_RECORDS {
                break;
            }
            if let Some((_, record)) = self.by_age.pop_front()
                && self.by_name.get(&record.name).is_some_and(|latest| latest.id == record.id)
            {
                self.by_name.remove(&record.name);
            }
        }
    }
}
