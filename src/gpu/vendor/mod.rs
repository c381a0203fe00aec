//! The vendor's matrix library, cuBLASLt or hipBLASLt: where it is used, whether its results are right, and its calls.
//! `products` is its use by the backend. It is optional: after any problem our own kernels serve.

mod allowed;
pub(super) mod blas;
pub(crate) mod products;
mod shapes;
pub(super) mod survey;
pub(super) mod trial;

pub(super) use shapes::products;

use crate::DeviceProperties;
use crate::config::GpuOptions;
use crate::tuning::{LibraryRows, Tuning};

/// Returns the fewest rows that the library may serve, or the reason why it may not. Batch invariance needs one order
/// of summation. A driver given by its path comes without the vendor's other libraries, unless they are requested.
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
