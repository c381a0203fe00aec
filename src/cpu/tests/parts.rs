//! The parts that know nothing of the rest, with the tests in their files. They are compiled here, since the library
//! itself is not compiled for tests: its kernels take a minute.
#![allow(dead_code, unreachable_pub)]

#[allow(unsafe_code)] // as `linear` does
#[path = "../linear/memory.rs"]
mod memory;
#[path = "../pool/mod.rs"]
mod pool;
#[path = "../experts/routes.rs"]
mod routes;
#[path = "../states/softplus.rs"]
mod softplus;
#[path = "../storage.rs"]
mod storage;
