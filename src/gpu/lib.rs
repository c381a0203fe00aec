//! The GPU backend, on AMD's HIP or NVIDIA's CUDA, whose libraries are opened at run time. It has two layers. The lower
//! one wraps the driver of either platform: a device with its memory, streams, events, graphs and kernels. The upper
//! one serves the engine: the loader, the ops and the captured graphs.
//!
//! The build script compiles the kernels in `kernels/`, at the root of the repository, into the library.
//!
//! Start with `gpu_backend` and `ops`, then `launch`. Of the workspace, this crate knows the traits of
//! `rocmforge_backend`, the experts and instruction sets of `rocmforge_cpu`, settings, block formats and batches: no
//! model. The feature `testing` adds devices for the tests of other crates, which execute kernels without a GPU.
#![cfg_attr(
    any(test, feature = "testing"),
    allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)
)]
#![allow(unsafe_code)] // Foreign calls, and memory that a device writes.

mod buffer;
mod cache;
mod capture;
mod compile;
mod compute;
mod device;
mod driver;
mod gpu_backend;
pub mod helper;
mod host_experts;
mod job;
mod launch;
mod loader;
mod ops;
mod report;
mod select;
mod step;
mod sys;
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
pub(crate) mod tests;
pub mod trial;
mod tuning;
mod vendor;
mod weights;

// The crates below, by the names that the files of this one use.
use rocmforge_backend as backend;
use rocmforge_config as config;
#[cfg(test)]
use rocmforge_conformance as conformance;
use rocmforge_core::{Error, Result, batch, error, images, interrupt, selection};
use rocmforge_cpu as cpu;
use rocmforge_gguf::{quant, tensor};

pub use buffer::{Buffer, ExpertWork, Experts, KvLayer, Matrix, Rope, Vector};
pub use compile::plan::{KernelType, Unit};
pub use compile::{MatrixUnit, Origin, embedded_targets};
pub use device::Device;
pub use device::code_object::{Function, KernelArgs, Module};
pub use device::graph::Graph;
pub use device::memory::{DeviceBuffer, DevicePtr, DeviceSlice, HostBuffer, MappedBuffer};
pub use device::stream::{Event, Stream};
pub use driver::{DeviceProperties, Listed, MemoryInfo, Survey};
pub use gpu_backend::GpuBackend;
pub use gpu_backend::gpu_step::GpuStep;
pub use launch::catalog::{EXPERT_RUNS, KernelId, MATMUL_ROWS, check_experts, check_kv_layers};
pub use launch::loaded::Kernels;
pub use loader::GpuLoader;
pub use report::measure;
pub use report::{KernelRow, graph_capture, kernel_rows, matrix_library, system_lines};
pub use vendor::survey::{LibrarySurvey, survey as survey_library};
