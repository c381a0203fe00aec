//! The tools that the ops of every step use, apart from the step's own integers: the launcher, the workspace, and the
//! matrix library, if any.

use std::sync::Arc;

use super::buffer::{Buffer, ExpertMatrix, Experts, Matrix, Segment, Staged};
use super::host_experts::{Aside, Exchange, HostCpu, NO_TURN};
use super::launch::args::Format;
use super::launch::launcher::Launcher;
use super::vendor::blas;
use super::vendor::products::Library;
use super::weights::expert_cache::ExpertCache;
use super::weights::staging::{STAGED_ROWS, Staging};
use super::{DeviceBuffer, DeviceSlice};
use crate::backend::ExpertCacheUse;
use crate::{Error, Result};

/// Memory that ops use one after the other.
pub struct Workspace {
    partial: DeviceBuffer,
    counters: DeviceBuffer,
    /// Rows converted from one format to another, with room for all rows of a step.
    conversion: Buffer,
}

pub struct Compute {
    launcher: Launcher,
    workspace: Workspace,
    library: Option<Library>,
    common: Option<Format>,
    staging: Option<Staging>,
    cache: Option<ExpertCache>,
    host: Option<Host>,
}

/// The CPU, if it computes experts.
pub(super) struct Host {
    pub cpu: Arc<HostCpu>,
    /// There if some of the experts have copies on the device. Its drop waits for calls before exchanges are freed.
    pub aside: Option<Aside>,
    /// Kept here for queued work and captured graphs.
    pub exchanges: Vec<Arc<Exchange>>,
    /// The turn of the step, if it is captured, or `NO_TURN`.
    pub turn: u32,
    /// The fewest rows of a step for which copies of the experts take less time than the CPU.
    pub copied_rows: usize,
}

impl Workspace {
    /// `partial` has `PARTIAL_BYTES`. `counters` are 0, and every kernel leaves them at 0.
    pub fn new(partial: DeviceBuffer, counters: DeviceBuffer, conversion: Buffer) -> Self {
        Self { partial, counters, conversion }
    }

    /// Returns the memory for partial sums of split products and split attention.
    pub fn partial(&self) -> DeviceSlice<'_> {
        self.partial.slice()
    }

    /// Returns the counters by which the last block of a split product or of split attention is found.
    pub fn counters(&self) -> DeviceSlice<'_> {
        self.counters.slice()
    }

    /// Returns the rows in `format`: from `x`, or from the conversion buffer if `x` has another format.
    pub fn rows_in<'b>(&'b self, format: Format, x: &'b Buffer, rows: usize, cols: usize) -> Result<DeviceSlice<'b>> {
        let from = if x.format() == format { x } else { &self.conversion };
        from.read_any("the buffer of rows", rows, cols)
    }
}

impl Compute {
    /// `common` is the format that all matrices take on the matrix units, if they agree on one.
    pub(super) fn new(
        launcher: Launcher,
        workspace: Workspace,
        library: Option<Library>,
        common: Option<Format>,
        (staging, cache, host): (Option<Staging>, Option<ExpertCache>, Option<Host>),
    ) -> Self {
        Self { launcher, workspace, library, common, staging, cache, host }
    }

    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    /// Returns the library, with the launcher and the workspace that its products need.
    ///
    /// # Errors
    /// `Error::Internal` if there is none.
    pub fn with_library(&mut self) -> Result<(&mut Library, &Launcher, &Workspace)> {
        match &mut self.library {
            Some(library) => Ok((library, &self.launcher, &self.workspace)),
            None => Err(Error::internal("row-major activations without a vendor's library")),
        }
    }

    /// Returns the format that all matrices take on the matrix units, if they agree on one.
    pub fn common(&self) -> Option<Format> {
        self.common
    }

    /// Returns the fewest rows for which the vendor's library serves; `None` without it.
    pub fn library_rows(&self) -> Option<usize> {
        self.library.as_ref().and_then(Library::rows)
    }

    /// True if the vendor's library has refused a product. It gets no more products then.
    pub fn library_refused(&self) -> bool {
        self.library.as_ref().is_some_and(|library| library.refusal().is_some())
    }

    /// Stops using the library.
    pub fn give_up_library(&mut self, refusal: blas::Refusal) {
        if let Some(library) = &mut self.library {
            library.retire(refusal);
        }
    }

    /// Returns the format in which a product takes its activations. `on_units` is the format of the matrix kernels.
    pub fn activation_format(&self, on_units: Option<Format>, rows: usize) -> Format {
        self.launcher.tuning().activation_format(on_units, rows, self.library_rows())
    }

    /// Converts `x` to `format`, into the conversion buffer.
    pub fn convert(&mut self, x: &Buffer, rows: usize, cols: usize, format: Format) -> Result<()> {
        self.launcher.norm_rows(x, None, rows, cols, &mut self.workspace.conversion, format)
    }

    /// Waits for copies of weights that a failed step has left.
    pub(super) fn settle_staging(&mut self) -> Result<()> {
        self.staging.as_mut().map_or(Ok(()), Staging::settle)
    }

    /// Lets the cache of experts follow their uses, before a step.
    pub(super) fn step_cache(&mut self) -> Result<()> {
        self.cache.as_mut().map_or(Ok(()), |cache| cache.step(self.launcher.stream()))
    }

    /// Returns the uses of the cache of experts: zeros without one.
    pub(super) fn cache_uses(&self) -> ExpertCacheUse {
        self.cache.as_ref().map(ExpertCache::uses).unwrap_or_default()
    }

    /// Notes the rows of the next step, for the CPU.
    pub(super) fn begin_host(&mut self, turn: usize, rows: usize, is_captured: bool) {
        if let Some(host) = &mut self.host {
            host.cpu.begin(turn, rows);
            host.turn = if is_captured { turn as u32 } else { NO_TURN };
        }
    }

    /// Measures from how many rows on copies of experts take less time than the CPU.
    ///
    /// # Errors
    /// Errors of a copy, and of the memory for the measurement.
    pub(super) fn measure_host(&mut self) -> Result<()> {
        if let (Some(host), Some(staging)) = (&mut self.host, &self.staging)
            && let Some(copies) = staging.seconds_per_packed_byte()?
        {
            host.copied_rows = host.cpu.copied_rows(copies)?;
            tracing::info!(
                "steps of {} rows and more copy experts to the device, others use the CPU",
                host.copied_rows
            );
        }
        Ok(())
    }

    /// Returns the fewest rows of a step that copies experts; `None` if the CPU computes them in all steps.
    pub(super) fn copied_rows(&self) -> Option<usize> {
        let copies = self.staging.as_ref().is_some_and(Staging::copies_packed);
        self.host.as_ref().filter(|_| copies).map(|host| host.copied_rows)
    }

    /// Queues the CPU's call, behind everything so far. With `is_aside`, the next kernels do not wait for it.
    ///
    /// # Safety
    /// See `Stream::launch_host`.
    pub(super) unsafe fn launch_host(&mut self, exchange: &Exchange, is_aside: bool) -> Result<()> {
        let stream = self.launcher.stream();
        match self.host.as_mut().and_then(|host| host.aside.as_mut()).filter(|_| is_aside) {
            // SAFETY: the caller's promise.
            Some(aside) => unsafe { aside.launch(stream, exchange) },
            // SAFETY: as above.
            None => unsafe { stream.launch_host(exchange) },
        }
    }

    /// Lets kernels that are queued from now on wait for a call with `is_aside`.
    pub(super) fn join_host(&mut self) -> Result<()> {
        let aside = self.host.as_mut().and_then(|host| host.aside.as_mut());
        aside.map_or(Ok(()), |aside| aside.join(self.launcher.stream()))
    }

    /// Waits for a call of the CPU that a failed step has left. With `has_failed`, its failure counts no more.
    pub(super) fn settle_host(&mut self, has_failed: bool) -> Result<()> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.aside.as_mut().map_or(Ok(()), Aside::settle)?;
        if has_failed {
            host.cpu.forget_failure();
        }
        Ok(())
    }

    /// Keeps for ever what queued calls of the CPU use. They may still run if the wait for them has failed.
    pub(super) fn keep_host(&self) {
        for exchange in self.host.iter().flat_map(|host| &host.exchanges) {
            std::mem::forget(Arc::clone(exchange));
        }
    }

    /// Returns the failure of the CPU's part of a step that has run.
    ///
    /// # Errors
    /// See `HostCpu::check`.
    pub(super) fn check_host(&self) -> Result<()> {
        self.host.as_ref().map_or(Ok(()), |host| host.cpu.check())
    }

    /// Returns the turn for the CPU's calls.
    pub(super) fn host_turn(&self) -> u32 {
        self.host.as_ref().map_or(NO_TURN, |host| host.turn)
    }

    /// True if products of this many rows read copies of the experts on the device.
    pub(super) fn copies_experts(&self, experts: &Experts, rows: usize) -> bool {
        let is_long = self.host.as_ref().is_some_and(|host| rows >= host.copied_rows);
        is_long && experts.is_staged() && self.staging.as_ref().is_some_and(Staging::is_active)
    }

    /// Begins a step of this many rows that is not captured.
    pub(super) fn begin_staging(&mut self, rows: usize) -> Result<()> {
        let copied_rows = self.host.as_ref().map_or(STAGED_ROWS, |host| host.copied_rows);
        self.staging.as_mut().map_or(Ok(()), |staging| staging.begin(self.launcher.stream(), rows, copied_rows))
    }

    /// Ends a step.
    pub(super) fn end_staging(&mut self) -> Result<()> {
        self.staging.as_mut().map_or(Ok(()), |staging| staging.end(self.launcher.stream()))
    }

    /// Returns the matrix with its tiles in the device's copy, for a product of this many rows. `None` if kernels read
    /// the tiles in place. After the launches, call `release_staged`.
    pub(super) fn staged(&mut self, matrix: &Matrix, rows: usize) -> Result<Option<Matrix>> {
        let weight = matrix.staged.filter(|_| rows >= STAGED_ROWS);
        self.take_staged(weight)?.map(|copy| matrix.moved_to(&copy)).transpose()
    }

    /// Like `staged`, for the matrices of experts. Those of the CPU's layout are copied from other numbers of rows on.
    pub(super) fn staged_experts(&mut self, matrix: &ExpertMatrix, rows: usize) -> Result<Option<ExpertMatrix>> {
        let copied_rows = self.host.as_ref().filter(|_| matrix.packed.is_some()).map_or(STAGED_ROWS, |h| h.copied_rows);
        let weight = matrix.staged.filter(|_| rows >= copied_rows);
        Ok(self.take_staged(weight)?.map(|copy| matrix.moved_to(copy)))
    }

    fn take_staged(&mut self, weight: Option<Staged>) -> Result<Option<DeviceBuffer>> {
        match (&mut self.staging, weight) {
            (Some(staging), Some(weight)) => staging.take(self.launcher.stream(), weight),
            _ => Ok(None),
        }
    }

    /// Gives back all copies that were taken.
    pub(super) fn release_staged(&mut self) -> Result<()> {
        self.staging.as_mut().map_or(Ok(()), |staging| staging.release(self.launcher.stream()))
    }

    /// Dequantises those segments (with their columns) that have reserved room for it.
    pub(super) fn keep_dequantized(&self, segments: &[(Segment, usize)]) -> Result<()> {
        let Some(library) = &self.library else { return Ok(()) };
        segments.iter().try_for_each(|(segment, cols)| library.keep(&self.launcher, segment, *cols))
    }
}
