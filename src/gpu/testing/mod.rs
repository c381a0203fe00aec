//! Devices for the tests of this crate and of those above it, which execute kernels without a GPU.

pub mod devices;
pub mod library;
