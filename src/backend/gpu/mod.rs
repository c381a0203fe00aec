//! The GPU backend, on AMD's HIP or NVIDIA's CUDA. One half is the layer over the driver: a device with its memory,
//! streams, events, graphs and kernels, on either platform, opened at run time. The other is the engine's: loader, ops,
//! recorded steps.
#![allow(unsafe_code)] // Foreign calls, and memory that a device writes.

mod arena;
mod args;
mod backend;
mod buckets;
mod buffer;
mod checks;
mod child;
mod compile;
mod compute;
mod dense;
mod describe;
mod device;
#[cfg(test)]
mod device_tests;
mod driver;
mod functions;
mod gpu_step;
mod graph;
mod graphs;
pub mod helper;
mod job;
mod kernel;
mod kernels;
mod launcher;
mod library;
mod loader;
pub mod measure;
mod memory;
mod module;
mod ops;
#[cfg(test)]
mod ownership_tests;
mod plans;
mod product;
mod queue;
mod rehearsal;
mod replay;
mod report;
mod search;
mod select;
mod stacks;
mod step;
mod stream;
mod sys;
#[cfg(test)]
pub(crate) mod tests;
mod transfers;
pub mod trial;
mod tuning;
mod upload;
mod vendor;

pub use backend::GpuBackend;
pub use buffer::{Buffer, ExpertWork, Experts, KvLayer, Matrix, Rope, Vector};
pub use compile::plan::{KernelType, Unit};
pub use compile::{MatrixUnit, Origin, embedded_targets};
pub use device::Device;
pub use driver::{DeviceProperties, Listed, MemoryInfo, Survey};
pub use gpu_step::GpuStep;
pub use graph::Graph;
pub use kernel::{EXPERT_RUNS, KernelId, MATMUL_ROWS, check_experts, check_kv_layers};
pub use kernels::Kernels;
pub use loader::GpuLoader;
pub use memory::{DeviceBuffer, DevicePtr, DeviceSlice, HostBuffer, MappedBuffer};
pub use module::{Function, KernelArgs, Module};
pub use report::{KernelRow, kernel_rows, matrix_library, recorded_steps};
pub use stream::{Event, Stream};
pub use vendor::survey::{LibrarySurvey, survey as survey_library};
