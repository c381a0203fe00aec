//! Reports for users; the engine does not need them.
//!
//! - `doctor`: devices and kernels of this machine.
//! - `device_test`: the test of a device.
//! - `check`: the check of a model file.
//! - `support`: the devices that a model file runs on.
//! - `events`: the engine's log.

pub mod check;
pub mod device_test;
pub mod doctor;
pub mod events;
pub mod support;
