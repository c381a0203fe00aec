//! Products of quantized matrices: the packed layout of a matrix, quantized activations, and the micro-kernels of each
//! tensor type. `quant` of the file formats is the oracle.

mod by_type;
mod codebooks;
mod formats;
mod kernels;
mod lanes;
mod layout;
mod q8;

pub use kernels::{Kernel, KernelSet, Line, TileArgs, element_bytes, kernels, prefetches_near, quantize_row};
pub use layout::{Layout, MAX_BLOCK_BYTES, Place, Spans, TILE};
pub use q8::{BLOCK, GROUP, Q8Block, padded_group};
