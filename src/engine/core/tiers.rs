//! The engine thread's use of the tiers below the device.

use super::Core;
use crate::Result;
use crate::ids::request_of;
use crate::offload::{FileEvent, Offload};
use crate::output::FinishReason;
use crate::scheduler::NewSequence;
use crate::stats::OffloadStats;

impl Core {
    /// Returns the number of sequences that are not scheduled before something else of theirs is ready.
    pub(super) fn num_held(&self) -> usize {
        self.images.num_waiting() + self.offload.as_ref().map_or(0, Offload::num_waiting)
    }

    /// Begins to move what the step that was scheduled last is about to overwrite, and what waiting sequences need.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn move_contents(&mut self) -> Result<()> {
        self.offload.as_mut().map_or(Ok(()), |offload| offload.move_contents(self.device.executor_mut()))
    }

    /// Copies some contents that are evicted soon. Takes those that have arrived on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn save_ahead(&mut self) -> Result<()> {
        let Some(offload) = &mut self.offload else { return Ok(()) };
        // A sequence that waited for them may be scheduled at once.
        self.waits_for_others &= !offload.end_loads(false, self.device.executor_mut())?;
        offload.save_ahead(self.device.executor_mut())
    }

    /// True if contents are on their way to the device.
    pub(crate) fn is_loading(&self) -> bool {
        self.offload.as_ref().is_some_and(Offload::is_loading)
    }

    /// Waits for copies to the device, unless requests are left.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn finish_loads(&mut self) -> Result<()> {
        let is_idle = !self.has_requests();
        let offload = self.offload.as_mut().filter(|_| is_idle);
        offload.map_or(Ok(()), |offload| offload.finish_loads(self.device.executor_mut()))
    }

    /// Copies all contents that are evicted soon, while the engine is idle.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn save_while(&mut self, is_idle: impl Fn() -> bool) -> Result<()> {
        let Some(offload) = &mut self.offload else { return Ok(()) };
        loop {
            let saved = offload.stats().index.saved;
            offload.save_ahead(self.device.executor_mut())?;
            offload.end_saves(true, self.device.executor_mut())?;
            // A host without memory for copies ends it as well.
            if offload.stats().index.saved == saved || !is_idle() {
                return Ok(());
            }
        }
    }

    /// Schedules a request, or has the contents read that it can continue from.
    pub(super) fn schedule_new(&mut self, sequence: NewSequence) -> Result<()> {
        let now = self.now();
        let sequence = match &mut self.offload {
            Some(offload) => offload.fetch(sequence),
            None => Some(sequence),
        };
        sequence.map_or(Ok(()), |sequence| self.scheduler.add(sequence, now))
    }

    /// Takes a report about files, and schedules the requests that need not wait any more.
    pub(super) fn take_file_event(&mut self, event: FileEvent) {
        let now = self.now();
        let ready = self.offload.as_mut().map(|offload| offload.take_event(event)).unwrap_or_default();
        for sequence in ready {
            let (request, _) = request_of(sequence.id);
            if let Err(error) = self.scheduler.add(sequence, now) {
                self.end_request(request, FinishReason::Error, Some(error), now);
            }
        }
    }

    /// Writes everything to files. The engine computes nothing more.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn write_all(&mut self) -> Result<()> {
        let now = self.now();
        let Some(offload) = &mut self.offload else { return Ok(()) };
        // Their blocks have contents of the requests that ran last. Copies come after the steps on the device.
        self.scheduler.abandon_steps(now);
        // The caller's progress shows how much is left.
        let report = |written| self.shared.stats.write().kv_offload.disk_written = written;
        offload.write_all(self.device.executor_mut(), &report)
    }

    pub(crate) fn offload_stats(&self) -> OffloadStats {
        self.offload.as_ref().map_or_else(OffloadStats::default, Offload::stats)
    }
}
