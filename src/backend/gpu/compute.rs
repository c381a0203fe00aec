//! What the ops of every step compute with, beside the step's own numbers: the launcher, the workspace, and the matrix
//! library where there is one.

use super::DeviceBuffer;
use super::args::Format;
use super::buffer::Buffer;
use super::launcher::Launcher;
use super::vendor::blas::{self, VendorBlas};

/// The library, and the device memory that its products need.
pub struct Library {
    pub blas: VendorBlas,
    pub workspace: DeviceBuffer,
    /// `VENDOR_WEIGHTS_BYTES` at least, for weights that are not kept; and for all rows of a step in another format.
    pub weights: DeviceBuffer,
    /// It serves products of so many rows and more.
    pub least_rows: usize,
    /// What it has refused: from then on our own kernels serve.
    pub refusal: Option<blas::Refusal>,
}

/// Memory that ops use in turn.
pub struct Workspace {
    /// Partial sums of split products and attention, and the counters by which their blocks find the last one.
    pub partial: DeviceBuffer,
    pub counters: DeviceBuffer,
    /// Rows on their way from one format to another.
    pub conversion: Buffer,
}

pub struct Compute {
    pub launcher: Launcher,
    pub workspace: Workspace,
    pub library: Option<Library>,
    /// What all matrices take on the matrix units, if they agree.
    pub common: Option<Format>,
}

impl Compute {
    /// From how many rows on the vendor's library serves; `None` where there is none.
    pub fn library_rows(&self) -> Option<usize> {
        self.library.as_ref().filter(|library| library.refusal.is_none()).map(|library| library.least_rows)
    }

    /// Whether the vendor's library has refused a product, so that it is not asked any more.
    pub fn library_refused(&self) -> bool {
        self.library.as_ref().is_some_and(|library| library.refusal.is_some())
    }

    /// The format in which a product takes its activations, `on_units` being that of the matrix kernels.
    pub fn activation_format(&self, on_units: Option<Format>, rows: usize) -> Format {
        self.launcher.tuning().activation_format(on_units, rows, self.library_rows())
    }
}
