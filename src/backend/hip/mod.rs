//! The HIP backend. This half is the layer over the driver: a device with its memory, streams, events, graphs and
//! kernels, on either platform of HIP, opened at run time.
#![allow(unsafe_code)] // Foreign calls, and memory that a device writes.

mod compile;
mod device;
#[cfg(test)]
mod device_tests;
mod driver;
mod graph;
mod kernels;
mod memory;
mod module;
#[cfg(test)]
mod ownership_tests;
mod stream;
mod sys;

pub use compile::Origin;
pub use compile::plan::{KernelType, Unit};
pub use device::Device;
pub use driver::{DeviceProperties, MemoryInfo};
pub use graph::Graph;
pub use kernels::{HEAD_SIZES, KernelId, Kernels, MATMUL_ROWS};
pub use memory::{DeviceBuffer, DevicePtr, HostBuffer};
pub use module::{Function, KernelArgs, Module};
pub use stream::{Event, Stream};
