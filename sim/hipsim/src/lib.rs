//! A stand-in for AMD's HIP runtime (libamdhip64.so including hipRTC) on machines without an AMD GPU.
//!
//! It exports the calls that the engine makes. Its devices execute AMD machine code in `amdsim`, or kernels that were
//! compiled for the CPU through `kernels/host/gpu_cpu.h`. It is stricter than a driver: it always does the worst that a
//! driver may do. The crate's README describes its settings and checks.
//!
//! [`api`] holds the exported functions, the only place with foreign pointers. The modules below it use safe types,
//! except for [`memory`], which maps memory, and [`cpu`], which calls compiled kernels.
#![allow(unsafe_code)] // a C interface, memory mappings, dlopen; every block says why it is sound
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod api;
mod compile;
mod cpu;
mod device;
mod execute;
mod guard;
mod guarded_pages;
mod handle;
mod image;
mod log;
mod memory;
mod module;
mod runtime;
mod settings;
mod status;
mod streams;
mod target;

pub use status::Status;
