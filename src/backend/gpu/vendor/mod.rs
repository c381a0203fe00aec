//! The vendor's matrix library, cuBLASLt or hipBLASLt: where it is used, whether it is right, and its calls.
//! `library` is what the backend does with it. Nothing needs it: whatever is wrong with it leads to our own
//! kernels.

mod allowed;
pub(super) mod blas;
mod shapes;
pub(super) mod survey;
pub(super) mod trial;

pub(super) use shapes::products;

use crate::backend::gpu::DeviceProperties;
use crate::backend::gpu::tuning::{LibraryRows, Tuning};
use crate::config::GpuOptions;

/// The rows from which on the library is to serve, or why it is not. Batch invariance needs one order of summation; a
/// driver that was given by its path comes without the vendor's other libraries unless they are asked for.
///
/// # Errors
/// The text says why it does not serve.
pub(super) fn wanted(
    options: &GpuOptions,
    properties: &DeviceProperties,
    tuning: &Tuning,
) -> std::result::Result<LibraryRows, String> {
    if options.vendor_blas == Some(false) {
        return Err("switched off (vendor_blas=False or ROCMFORGE_VENDOR_BLAS=0)".to_owned());
    }
    let rows = tuning.library.ok_or("results are batch-invariant")?;
    if options.vendor_blas == Some(true) {
        return Ok(rows);
    }
    if options.library.is_some() {
        return Err("the driver was given by its path".to_owned());
    }
    allowed::check(properties).map(|()| rows)
}
