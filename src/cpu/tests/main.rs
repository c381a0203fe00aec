//! Tests that use the crate as others do, so that its kernels are not compiled a second time for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod conformance;
mod kv;
mod linear;
mod parts;

// The crates below, by the names that files of the crate use.
use rocmforge_backend as backend;
use rocmforge_core::{Error, Result, interrupt, sync};
