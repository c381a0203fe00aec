//! Experts with weights in host memory, which the CPU's kernels compute.
//!
//! The device chooses the experts of a step's rows. `send_experts` writes rows, choices and weights to page-locked
//! memory. The stream then calls the host (`Stream::launch_host`), and threads there compute the sums. A kernel adds
//! them to the rows. All of it is queued work, so it is part of captured graphs, and nothing else of a step changes.
//!
//! With a cache of experts on the device (`expert_cache`), `send_experts` names only those without a slot. The call is
//! then on a second stream (`Aside`), while the device computes the others. Both read one table, so no expert is left
//! out or counted twice.
//!
//! Weights have the layout of the CPU's kernels. For steps of many rows, which copy the weights (`staging`), `Unpacker`
//! restores the layout of the device's kernels.

mod aside;
mod exchange;
mod threshold;

pub(super) use aside::Aside;
pub(super) use exchange::{Exchange, NO_TURN};
pub(super) use threshold::MOST_ROWS;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::ExpertSpec;
use crate::cpu::pool::ThreadPool;
use crate::cpu::{Isa, LENT_ROWS, LentExperts};
use crate::{Error, Result};

/// The time that threads without work spin: longer than the device takes from one layer's experts to the next.
const SPIN: Duration = Duration::from_micros(300);

/// The most rows that are computed at once with experts that no step copies.
const LONG_ROWS: usize = 512;

/// The CPU of a backend: its threads, and the experts that it computes.
#[derive(Debug)]
pub(super) struct HostCpu {
    pub pool: ThreadPool,
    pub isa: Isa,
    layers: Mutex<Vec<HostLayer>>,
    /// The rows of the last step of each turn. A captured graph has more.
    rows: Vec<AtomicUsize>,
    /// The first failure of a call since the last check.
    failure: Mutex<Option<Error>>,
}

/// The experts of a layer.
#[derive(Debug, Clone)]
struct HostLayer {
    experts: Arc<LentExperts>,
    /// Bytes of the copies of all its experts; 0 if they are not copied.
    copied_bytes: u64,
}

impl HostCpu {
    /// # Errors
    /// See `ThreadPool::new`.
    pub(super) fn new(num_threads: usize, isa: Isa, turns: usize) -> Result<Self> {
        let (pool, layers) = (ThreadPool::spinning(num_threads, SPIN)?, Mutex::default());
        let rows = (0..turns).map(|_| AtomicUsize::new(0)).collect();
        Ok(Self { pool, isa, layers, rows, failure: Mutex::default() })
    }

    /// Adds the experts of a layer and the bytes of them that long steps copy. Returns their number.
    pub(super) fn add(&self, experts: LentExperts, copied_bytes: u64) -> usize {
        let mut layers = self.layers.lock();
        layers.push(HostLayer { experts: Arc::new(experts), copied_bytes });
        layers.len() - 1
    }

    /// Returns the most rows of a step of `rows` rows that experts of this kind compute; `None` if there are none.
    pub(super) fn most_rows(&self, spec: &ExpertSpec, rows: usize) -> Option<usize> {
        let layers = self.layers.lock();
        let of_kind = layers.iter().filter(|layer| layer.experts.spec() == spec);
        of_kind.map(|layer| if layer.copied_bytes > 0 { rows.min(MOST_ROWS) } else { rows }).max()
    }

    fn layer(&self, number: usize) -> Option<Arc<LentExperts>> {
        self.layers.lock().get(number).map(|layer| Arc::clone(&layer.experts))
    }

    /// Notes the rows of the next step of a turn.
    pub(super) fn begin(&self, turn: usize, rows: usize) {
        if let Some(of_turn) = self.rows.get(turn) {
            of_turn.store(rows, Ordering::Release);
        }
    }

    fn rows_of(&self, turn: usize) -> Option<usize> {
        self.rows.get(turn).map(|rows| rows.load(Ordering::Acquire))
    }

    /// Returns the most rows that are computed at once with experts of this kind. Where no step copies them, long steps
    /// read all of them for each pass.
    fn rows_at_once(&self, spec: &ExpertSpec) -> usize {
        let layers = self.layers.lock();
        let is_copied = layers.iter().filter(|layer| layer.experts.spec() == spec).all(|layer| layer.copied_bytes > 0);
        if is_copied { LENT_ROWS } else { LONG_ROWS }
    }

    fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    /// Forgets the failure of a step that was given up for another reason. No call may be under way.
    pub(super) fn forget_failure(&self) {
        *self.failure.lock() = None;
    }

    /// Returns the failure of a step that has run, once.
    ///
    /// # Errors
    /// `Error::Internal`.
    pub(super) fn check(&self) -> Result<()> {
        self.failure.lock().take().map_or(Ok(()), Err)
    }
}
