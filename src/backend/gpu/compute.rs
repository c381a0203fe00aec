//! The tools that the ops of every step compute with, beside the step's own numbers: the launcher, the workspace, and
//! the matrix library where there is one.

use super::args::Format;
use super::buffer::{Buffer, Segment};
use super::launcher::Launcher;
use super::library::Library;
use super::vendor::blas;
use super::{DeviceBuffer, DeviceSlice};
use crate::{Error, Result};

/// Memory that ops use in turn.
pub struct Workspace {
    partial: DeviceBuffer,
    counters: DeviceBuffer,
    /// Rows on their way from one format to another.
    conversion: Buffer,
}

pub struct Compute {
    launcher: Launcher,
    workspace: Workspace,
    library: Option<Library>,
    common: Option<Format>,
}

impl Workspace {
    /// `partial` has `PARTIAL_BYTES`; `counters` are 0, as every kernel leaves them.
    pub fn new(partial: DeviceBuffer, counters: DeviceBuffer, conversion: Buffer) -> Self {
        Self { partial, counters, conversion }
    }

    /// Memory for partial sums of split products and attention.
    pub fn partial(&self) -> DeviceSlice<'_> {
        self.partial.slice()
    }

    /// Counters by which the blocks of a split product or of attention find the last one.
    pub fn counters(&self) -> DeviceSlice<'_> {
        self.counters.slice()
    }

    /// Returns the rows in `format`: those of `x`, or of the conversion buffer where `x` has another format.
    pub fn rows_in<'b>(&'b self, format: Format, x: &'b Buffer, rows: usize, cols: usize) -> Result<DeviceSlice<'b>> {
        let from = if x.format() == format { x } else { &self.conversion };
        from.read("the buffer of rows", rows, cols)
    }
}

impl Compute {
    /// `common` is the format that all matrices take on the matrix units, if they agree.
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
    /// `Error::Internal` where there is none.
    pub fn with_library(&mut self) -> Result<(&mut Library, &Launcher, &Workspace)> {
        match &mut self.library {
            Some(library) => Ok((library, &self.launcher, &self.workspace)),
            None => Err(Error::internal("row-major activations without a vendor's library")),
        }
    }

    /// The format that all matrices take on the matrix units, if they agree.
    pub fn common(&self) -> Option<Format> {
        self.common
    }

    /// Number of rows from which on the vendor's library serves; `None` where there is none.
    pub fn library_rows(&self) -> Option<usize> {
        self.library.as_ref().and_then(Library::rows)
    }

    /// Whether the vendor's library has refused a product, so that it is not asked any more.
    pub fn library_refused(&self) -> bool {
        self.library.as_ref().is_some_and(|library| library.refusal().is_some())
    }

    /// Goes on without the library.
    pub fn give_up_library(&mut self, refusal: blas::Refusal) {
        let Some(library) = &mut self.library else { return };
        let unused = library.retire(refusal);
        // Rows of this step may be row-major already, and all of them have to be converted for our kernels.
        if self.workspace.conversion.memory().bytes() < unused.bytes() {
            self.workspace.conversion = Buffer::new(unused.clone());
        }
    }

    /// The format in which a product takes its activations, `on_units` being that of the matrix kernels.
    pub fn activation_format(&self, on_units: Option<Format>, rows: usize) -> Format {
        self.launcher.tuning().activation_format(on_units, rows, self.library_rows())
    }

    /// Brings `x` into the buffer of conversions, in `format`.
    pub fn convert(&mut self, x: &Buffer, rows: usize, cols: usize, format: Format) -> Result<()> {
        self.launcher.norm_rows(x, None, rows, cols, &mut self.workspace.conversion, format)
    }

    /// Dequantises the segments (with their columns) that have a place for it.
    pub(super) fn keep_dequantized(&self, segments: &[(Segment, usize)]) -> Result<()> {
        let Some(library) = &self.library else { return Ok(()) };
        segments.iter().try_for_each(|(segment, cols)| library.keep(&self.launcher, segment, *cols))
    }
}
