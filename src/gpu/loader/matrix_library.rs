//! Opens the vendor's matrix library at load: finds it, tests it with the model's shapes, and accounts for its memory.

use std::path::{Path, PathBuf};

use super::{GpuLoader, stacks};
use crate::backend::Upload;
use crate::config::ComputeDtype;
use crate::error::shortage;
use crate::launch::plans::VENDOR_WEIGHTS_BYTES;
use crate::tuning::LibraryRows;
use crate::vendor;
use crate::vendor::blas::{self, Element, VendorBlas};
use crate::weights::dense::kept_bytes;
use crate::{Error, Result};

/// Bytes for the vendor's library, apart from kept weights: weights dequantised for one product, and its workspace.
pub(super) const LIBRARY_BYTES: u64 = VENDOR_WEIGHTS_BYTES + blas::WORKSPACE_BYTES;

impl GpuLoader {
    /// Returns the vendor's matrix library, and the fewest rows that it serves.
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

    /// Opens the vendor's matrix library if it may serve and fits in `spare` bytes. Tests it with the model's shapes,
    /// before anything else takes device memory. A problem is logged once, and our own kernels serve. Returns the bytes
    /// of weights that may be kept dequantised for it: all of them if `spare` has room, or none.
    ///
    /// # Errors
    /// Only the library serves 8-bit floats. If they are requested, `InvalidRequest` says why the library does not
    /// multiply them, `OutOfMemory` that they do not fit.
    pub(super) fn open_library(&mut self, uploads: &[Upload<'_>], spare: u64) -> Result<u64> {
        let dtype = self.options.compute_dtype;
        let is_asked_for = dtype == ComputeDtype::Fp8;
        // Copies of weights would take the room of weights that lie in the host's memory.
        let kept = match &self.placement {
            Some(_) => 0,
            None => stacks(uploads).filter_map(|parts| kept_bytes(parts, dtype)).sum::<u64>(),
        };
        let (needed, spare) = (LIBRARY_BYTES, spare.saturating_add(self.library_reserve));
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

    /// Opens the library of this file and tests it. A problem is logged and kept for reports.
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
            let products = products.map_err(|error| error.to_string())?;
            vendor::trial::check(self.device.properties(), library, &products, &self.options)?;
            let mut blas = VendorBlas::open_file(&self.device, library)?;
            // A library that is not tested may still lack them.
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
