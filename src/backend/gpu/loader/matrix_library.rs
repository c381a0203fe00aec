//! Opens the vendor's matrix library at a load: finds it, tries it with the model's shapes, and counts its memory.

use std::path::{Path, PathBuf};

use super::budget::most_cols;
use super::{GpuLoader, aligned, stacks};
use crate::backend::Upload;
use crate::backend::gpu::args::Format;
use crate::backend::gpu::dense::kept_bytes;
use crate::backend::gpu::plans::VENDOR_WEIGHTS_BYTES;
use crate::backend::gpu::tuning::LibraryRows;
use crate::backend::gpu::vendor;
use crate::backend::gpu::vendor::blas::{self, Element, VendorBlas};
use crate::config::ComputeDtype;
use crate::error::shortage;
use crate::{Error, Result};

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
    ///
    /// # Errors
    /// The text says why it does not serve.
    fn locate_library(&self) -> std::result::Result<(PathBuf, LibraryRows), String> {
        let rows = vendor::wanted(&self.options, self.device.properties(), &self.tuning)
            .inspect_err(|reason| tracing::info!("long prompts use our own matrix kernels: {reason}"))?;
        let located = VendorBlas::locate(&self.device, &self.options)
            .inspect_err(|problem| tracing::info!("no matrix library, so long prompts use our own kernels: {problem}"));
        Ok((located?, rows))
    }

    /// Opens the vendor's matrix library if it is to serve and `spare` bytes are enough for it, and tries it with the
    /// shapes of the model, before anything else takes the device's memory. Whatever is wrong with it is said once, and
    /// our own kernels serve. Answers how many bytes of weights may be kept dequantised for it: those that `spare` has
    /// room for too, or none.
    ///
    /// # Errors
    /// Nothing else serves where 8-bit floats are asked for: `InvalidRequest` says why the library does not multiply
    /// them, `OutOfMemory` that they do not fit.
    pub(super) fn open_library(&mut self, uploads: &[Upload<'_>], spare: u64) -> Result<u64> {
        let dtype = self.options.compute_dtype;
        let is_asked_for = dtype == ComputeDtype::Fp8;
        let kept = stacks(uploads).filter_map(|parts| kept_bytes(parts, dtype)).sum::<u64>();
        let needed = self.library_bytes(most_cols(uploads));
        if is_asked_for && needed + kept > spare {
            return Err(Error::OutOfMemory {
                what: format!("weights as 8-bit floats, beside the file's, on {}", self.device.label()),
                requested: needed + kept,
                available: spare,
                advice: "leave compute_dtype at 'auto', or lower kv_cache_memory or max_model_len",
            });
        }
        let located = self.locate_library();
        let tried = located.and_then(|(library, rows)| self.try_library(&library, &rows, [needed, spare], uploads));
        match tried {
            Ok(()) if needed + kept <= spare => Ok(kept),
            Err(problem) if is_asked_for => {
                Err(Error::invalid("compute_dtype", dtype.name(), format!("'auto': {problem}")))
            }
            Ok(()) | Err(_) => Ok(0),
        }
    }

    /// Opens the library of this file, and tries it. What is wrong with it is said, and noted.
    fn try_library(
        &mut self,
        library: &Path,
        rows: &LibraryRows,
        [needed, spare]: [u64; 2],
        uploads: &[Upload<'_>],
    ) -> std::result::Result<(), String> {
        let open = || {
            if needed > spare {
                return Err(format!("beside weights and KV cache it needs {}", shortage(needed, spare)));
            }
            let dtype = self.options.compute_dtype;
            let products = vendor::products(stacks(uploads), self.limits.tokens, rows, dtype);
            vendor::trial::check(self.device.properties(), library, &products, &self.options)?;
            let mut blas = VendorBlas::open_file(&self.device, library)?;
            // A library that is not tried may lack them all the same.
            let fp8 = products.into_iter().filter(|product| product.input == Element::Fp8);
            fp8.into_iter().try_for_each(|product| blas.prepare(product))?;
            Ok(blas)
        };
        let opened = open().map(|blas| self.blas = Some(blas));
        opened.inspect_err(|problem| {
            tracing::warn!(library = %library.display(), "our own kernels in place of the matrix library: {problem}");
            self.library_problem = Some(problem.clone());
        })
    }
}
