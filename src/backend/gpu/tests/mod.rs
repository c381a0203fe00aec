//! The backend over a driver's library: the stand-in (sim/hipsim), whose devices are AMD machine code in a simulator
//! and kernels on the CPU; or the GPU of this machine.

mod args;
mod conformance;
mod deep;
pub(crate) mod devices;
mod experts;
mod fp8;
mod memory;
mod order;
mod recorded;
mod report;
mod selection;
mod self_test;
pub(crate) mod vendor;
