//! The budget of one rendering: steps, and live bytes.
//!
//! The counts are per thread, because each rendering has its own thread. Every string, list and mapping that a template
//! creates is charged here BEFORE its memory is allocated. So a template that keeps doubling a string fails with an
//! error and does not exhaust memory.

use std::cell::Cell;

use super::fault::{Fault, Res};

/// A step is one evaluated node of the template, or `BYTES_PER_STEP` bytes that are copied or searched. A long chat
/// takes a hundred per message.
const STEPS: u64 = 2_000_000;
const BYTES_PER_STEP: u64 = 1024;
/// The most live bytes: several times the longest output, because a template joins a message in several steps.
const LIVE_BYTES: usize = 256 << 20;

thread_local! {
    /// The remaining work in bytes, so that many small copies count as much as a large one.
    static WORK_LEFT: Cell<u64> = const { Cell::new(0) };
    static BYTES_LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread the budget of one rendering.
pub(super) fn start() {
    WORK_LEFT.set(STEPS * BYTES_PER_STEP);
    BYTES_LEFT.set(LIVE_BYTES);
}

pub(super) fn spend(steps: usize) -> Res<()> {
    spend_work((steps as u64).saturating_mul(BYTES_PER_STEP))
}

/// Spends the steps of reading or copying `bytes` bytes.
pub(super) fn work(bytes: usize) -> Res<()> {
    spend_work(bytes as u64)
}

fn spend_work(bytes: u64) -> Res<()> {
    let left = WORK_LEFT.get().checked_sub(bytes);
    WORK_LEFT.set(left.unwrap_or(0));
    left.map(|_| ()).ok_or_else(|| Fault::new(format!("it does not end within {STEPS} steps")))
}

/// Bytes that are counted as long as this value lives.
#[derive(Debug, Default)]
pub(super) struct Charge(usize);

impl Charge {
    pub(super) fn new(bytes: usize) -> Res<Self> {
        let mut charge = Self::default();
        charge.add(bytes)?;
        Ok(charge)
    }

    pub(super) fn add(&mut self, bytes: usize) -> Res<()> {
        work(bytes)?;
        let Some(left) = BYTES_LEFT.get().checked_sub(bytes) else {
            return Err(Fault::new(format!("it needs more than {LIVE_BYTES} bytes of memory")));
        };
        BYTES_LEFT.set(left);
        self.0 += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        BYTES_LEFT.set(BYTES_LEFT.get() + self.0);
    }
}
