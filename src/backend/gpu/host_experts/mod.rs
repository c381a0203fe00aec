//! Experts whose weights lie in the host's memory, computed there by the CPU's kernels.
//!
//! The device chooses the experts of a step's rows. `send_experts` writes rows, choices and weights to page-locked
//! memory. The stream then calls the host (`Stream::launch_host`), whose threads compute the sums. A kernel adds them
//! to the rows. All of it is queued work, so it is part of captured graphs, and nothing else of a step changes.
//!
//! Weights have the layout of the CPU's kernels. For steps of many rows, which copy the weights (`staging`), `Unpacker`
//! restores the layout of the device's kernels.

mod exchange;

pub(super) use exchange::{Exchange, NO_TURN};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::ExpertSpec;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::{Isa, LentExperts, LentWork};
use crate::{Error, Result};

/// The time that threads without work spin: longer than the device takes from one layer's experts to the next.
const SPIN: Duration = Duration::from_micros(300);

/// Rows of the step that measures the CPU. They use most experts of a layer.
const MEASURED_ROWS: usize = 32;
/// The bounds of the rows from which on experts are copied.
const LEAST_COPIED_ROWS: usize = 16;
const MOST_COPIED_ROWS: usize = 1024;

/// The CPU of a backend: its threads, and the experts that it computes.
#[derive(Debug)]
pub(super) struct HostCpu {
    pub pool: ThreadPool,
    pub isa: Isa,
    layers: Mutex<Vec<Arc<LentExperts>>>,
    /// The rows of the last step of each turn. A captured graph has more.
    rows: Vec<AtomicUsize>,
    has_failed: AtomicBool,
}

impl HostCpu {
    /// # Errors
    /// See `ThreadPool::new`.
    pub(super) fn new(num_threads: usize, isa: Isa, turns: usize) -> Result<Self> {
        let (pool, layers) = (ThreadPool::spinning(num_threads, SPIN)?, Mutex::default());
        let rows = (0..turns).map(|_| AtomicUsize::new(0)).collect();
        Ok(Self { pool, isa, layers, rows, has_failed: AtomicBool::new(false) })
    }

    /// Adds the experts of a layer. Returns their number.
    pub(super) fn add(&self, experts: LentExperts) -> usize {
        let mut layers = self.layers.lock();
        layers.push(Arc::new(experts));
        layers.len() - 1
    }

    /// True if there are experts of this kind.
    pub(super) fn has(&self, spec: &ExpertSpec) -> bool {
        self.layers.lock().iter().any(|experts| experts.spec() == spec)
    }

    /// Returns the rows of a step that the CPU's experts compute in this many seconds, at the rate of a measured step
    /// of one layer. Call it before the first step.
    pub(super) fn rows_in(&self, seconds: f64) -> Result<usize> {
        let layers = self.layers.lock().len();
        let Some(experts) = self.layer(0) else { return Ok(LEAST_COPIED_ROWS) };
        let spec = *experts.spec();
        let pairs = MEASURED_ROWS * spec.used;
        let (x, weights) = (vec![1.0; MEASURED_ROWS * spec.hidden_size], vec![1.0; pairs]);
        let numbers: Vec<u32> = (0..pairs).map(|pair| (pair % spec.num) as u32).collect();
        let (mut out, mut work) = (x.clone(), LentWork::new(self.isa, &spec, MEASURED_ROWS)?);
        let mut measured = 0.0;
        // The first time wakes the threads.
        for _ in 0..2 {
            let start = Instant::now();
            experts.mix(&x, &numbers, &weights, &mut out, &mut work, &self.pool);
            measured = start.elapsed().as_secs_f64();
        }
        let rows = seconds / (measured * layers as f64).max(f64::MIN_POSITIVE) * MEASURED_ROWS as f64;
        Ok((rows as usize).clamp(LEAST_COPIED_ROWS, MOST_COPIED_ROWS))
    }

    fn layer(&self, number: usize) -> Option<Arc<LentExperts>> {
        self.layers.lock().get(number).cloned()
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

    fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Returns the failure of a step that has run, once.
    ///
    /// # Errors
    /// `Error::Internal`.
    pub(super) fn check(&self) -> Result<()> {
        match self.has_failed.swap(false, Ordering::AcqRel) {
            true => Err(Error::internal("the CPU's part of a step panicked; the log has the reason")),
            false => Ok(()),
        }
    }
}
