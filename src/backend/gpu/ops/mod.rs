//! The ops: arguments are checked, formats chosen, kernels queued.
//!
//! SAFETY of every launch below: the argument struct is the kernel's; addresses come from buffers whose room for the
//! rows was checked, all of which live as long as the backend; and everything is queued on the one stream, in the order
//! of the ops.

mod attention;
mod experts;
mod linear;
mod rows;
mod vendor;

pub use experts::most_runs;
pub use vendor::{Kept, Vendor, kept_bytes, piece_rows};
