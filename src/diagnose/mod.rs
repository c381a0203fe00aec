//! Reports for people: devices and kernels of this machine (`doctor`), a device's test (`device_test`), the check of a
//! model file (`check`), the devices that it runs on (`support`), and the engine's log (`events`). The engine needs
//! none of it.

pub mod check;
pub mod device_test;
pub mod doctor;
pub mod events;
pub mod support;
