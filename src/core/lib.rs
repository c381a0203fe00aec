//! Values that all other crates exchange: the input of a step and what it selects, a request's settings, errors.
//!
//! Start with `batch`: the scheduler writes it, and the devices read it. Only types and their own rules belong here: no
//! file, no device, no thread. Of the workspace, it knows no other crate.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod batch;
pub mod config;
pub mod error;
pub mod images;
pub mod interrupt;
#[cfg(feature = "python")]
mod python;
pub mod selection;
pub mod sync;

pub use error::{Error, Result};
