//! Opens the vendor's matrix library at a load: finds it, tries it with the model's shapes, and counts its memory.

use std::path::PathBuf;

use super::budget::most_cols;
use super::{GpuLoader, aligned, stacks};
use crate::backend::Upload;
use crate::backend::gpu::args::Format;
use crate::backend::gpu::dense::kept_bytes;
use crate::backend::gpu::plans::VENDOR_WEIGHTS_BYTES;
use crate::backend::gpu::tuning::LibraryRows;
use crate::backend::gpu::vendor;
use crate::backend::gpu::vendor::blas::{self, VendorBlas};
use crate::error::shortage;

impl GpuLoader {
    /// Bytes that the vendor's library needs, beside weights that are kept for it.
    pub(super) fn library_bytes(&self, max_cols: usize) -> u64 {
        self.library_weights_bytes(max_cols) + blas::WORKSPACE_BYTES
    }

    /// Bytes for weights on their way to the library, or for all rows of a step, should it refuse in the middle of one.
    pub(super) fn library_weights_bytes(&self, max_cols: usize) -> u64 {
        aligned(VENDOR_WEIGHTS_BYTES.max(Format::most_bytes(self.limits.tokens, max_cols)))
    }

    /// The vendor's matrix library, if it is to serve and is there, and from how many rows on it serves.
    fn locate_library(&self) -> Option<(PathBuf, LibraryRows)> {
        let rows = vendor::wanted(&self.options, self.device.properties(), &self.tuning)
            .inspect_err(|reason| tracing::info!("long prompts use our own matrix kernels: {reason}"))
            .ok()?;
        let located = VendorBlas::locate(&self.device, &self.options)
            .inspect_err(|problem| tracing::info!("no matrix library, so long prompts use our own kernels: {problem}"));
        Some((located.ok()?, rows))
    }

    /// Opens the vendor's matrix library if it is to serve and `spare` bytes are enough for it, and tries it with the
    /// shapes of the model, before anything else takes the device's memory. Whatever is wrong with it is said once, and
    /// our own kernels serve. Answers how many bytes of weights may be kept dequantised for it: those that `spare` has
    /// room for too, or none.
    pub(super) fn open_library(&mut self, uploads: &[Upload<'_>], spare: u64) -> u64 {
        let Some((library, rows)) = self.locate_library() else { return 0 };
        let needed = self.library_bytes(most_cols(uploads));
        let open = || {
            if needed > spare {
                return Err(format!("beside weights and KV cache it needs {}", shortage(needed, spare)));
            }
            let products = vendor::products(stacks(uploads), self.limits.tokens, &rows);
            vendor::trial::check(self.device.properties(), &library, &products, &self.options)?;
            VendorBlas::open_file(&self.device, &library)
        };
        match open() {
            Ok(library) => self.blas = Some(library),
            Err(problem) => {
                tracing::warn!(library = %library.display(), "our own kernels in place of the matrix library: {problem}");
                self.library_problem = Some(problem);
                return 0;
            }
        }
        let kept = stacks(uploads).filter_map(kept_bytes).sum::<u64>();
        if needed + kept <= spare { kept } else { 0 }
    }
}
