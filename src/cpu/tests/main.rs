//! Tests that use the crate as others do, so that its kernels are not compiled a second time for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod conformance;
