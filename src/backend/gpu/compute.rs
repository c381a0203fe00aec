//! The tools that the ops of every step use, apart from the step's own integers: the launcher, the workspace, and the
//! matrix library, if any.

use super::args::Format;
use super::buffer::{Buffer, Segment};
use super::launcher::Launcher;
use super::library::Library;
use super::vendor::blas;
use super::{DeviceBuffer, DeviceSlice};
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
    pub fn new(launcher: Launcher, workspace: Workspace, library: Option<Library>, common: Option<Format>) -> Self {
        Self { launcher, workspace, library, common }
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

    /// Dequantises those segments (with their columns) that have reserved room for it.
    pub(super) fn keep_dequantized(&self, segments: &[(Segment, usize)]) -> Result<()> {
        let Some(library) = &self.library else { return Ok(()) };
        segments.iter().try_for_each(|(segment, cols)| library.keep(&self.launcher, segment, *cols))
    }
}
