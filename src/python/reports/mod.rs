//! Reports on the machine and on model files.

pub(super) mod device_test;
pub(super) mod doctor;
pub(super) mod inspect;
