//! Reports for people: what this machine offers (`doctor`), whether a device computes rightly (`device_test`), whether
//! a model file is whole (`check`), and what the engine says beside its results (`events`). The engine needs none of
//! it.

pub mod check;
pub mod device_test;
pub mod doctor;
pub mod events;
