//! The CPU backend: a thread pool, SIMD kernels chosen once at run time, and the ops of `Backend` built on both.
//!
//! - `loader` packs weights for the kernels and allocates memory (`storage`); `backend` computes steps in it.
//! - `ops` is a step's operations, and the other modules have one kind of operation each.
//! - `linear` multiplies rows by packed matrices, with the kernels of `rocmforge_simd`.
//! - `attention` reads the KV cache, whose types are in `kv`.
//! - `states` has the layers with recurrent states.
//! - `pool` shares work among threads, and `split` decides how.
//! - `experts` is lent to the GPU backend, which leaves experts in the host's memory to this one.
//!
//! Start with `ops`, then `linear` and `pool`. Of the workspace, this crate knows the traits of `rocmforge_backend`,
//! the kernels of `rocmforge_simd`, block formats and batches: no GPU and no model.

mod activation;
mod attention;
mod cpu_backend;
mod experts;
mod kv;
pub mod linear;
mod loader;
mod norm;
mod ops;
pub mod pool;
mod rows;
mod split;
mod state_layer;
mod states;
mod storage;

// The crates below, by the names that the files of this one use.
use rocmforge_backend as backend;
use rocmforge_config as config;
use rocmforge_core::{Error, Result, batch, interrupt, sync};
use rocmforge_gguf::{quant, tensor};

pub use cpu_backend::{CpuBackend, HeadMatrices};
pub use experts::{ExpertWork, Experts, LENT_ROWS, LentExperts, LentWork, NO_EXPERT};
pub use kv::KvLayer;
pub use loader::CpuLoader;
pub use ops::CpuStep;
pub use rocmforge_simd as simd;
pub use simd::Isa;
pub use state_layer::StateLayer;
pub use storage::Storage;
