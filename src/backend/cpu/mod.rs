//! The CPU backend: a thread pool, SIMD kernels chosen once at run time, and the ops of `Backend` built on both.

mod activation;
mod attention;
mod backend;
mod experts;
mod gate_heads;
mod gate_rows;
mod kv;
mod latent;
pub mod linear;
mod loader;
mod norm;
mod ops;
pub mod pool;
mod rope;
mod split;
mod state_layer;
mod states;
mod storage;
mod streams;
#[cfg(test)]
mod tests;

pub use backend::{CpuBackend, HeadMatrices};
pub use experts::{ExpertWork, Experts};
pub(crate) use experts::{LENT_ROWS, LentExperts, LentWork};
pub use kv::KvLayer;
pub use loader::CpuLoader;
pub use ops::CpuStep;
pub(crate) use rocmforge_simd as simd;
pub use simd::Isa;
pub use state_layer::StateLayer;
pub use storage::Storage;
