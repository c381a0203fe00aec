//! The vendor's matrix library, cuBLASLt or hipBLASLt: where it is used, whether it is right, and its calls.
//! `ops::vendor` is what the backend does with it. Nothing needs it: whatever is wrong with it leads to our own
//! kernels.

mod allowed;
pub mod blas;
mod shapes;
pub mod survey;
pub mod trial;

pub use shapes::products;

use crate::backend::gpu::DeviceProperties;
use crate::config::GpuOptions;

/// Whether the library is wanted at all, or why not. Batch invariance needs one order of summation; a driver that was
/// given by its path comes without the vendor's other libraries unless they are asked for.
///
/// # Errors
/// What to say of it.
pub fn wanted(options: &GpuOptions, properties: &DeviceProperties) -> std::result::Result<(), String> {
    if options.vendor_blas == Some(false) {
        Err("ROCMFORGE_VENDOR_BLAS=0".to_owned())
    } else if options.batch_invariant {
        Err("results are batch-invariant".to_owned())
    } else if options.vendor_blas == Some(true) {
        Ok(())
    } else if options.library.is_some() {
        Err("the driver was given by its path".to_owned())
    } else {
        allowed::check(properties)
    }
}
