//! The backend over a driver's library. It is the stand-in (sim/hipsim), whose devices are AMD machine code in a
//! simulator and kernels on the CPU, or this machine's GPU.

mod args;
mod captured;
mod conformance;
mod deep;
#[cfg(test)]
mod device;
mod experts;
mod fp8;
mod memory;
mod order;
#[cfg(test)]
mod ownership;
mod placement;
mod report;
mod selection;
mod self_test;
pub(crate) mod vendor;
