//! The CPU backend: a thread pool, SIMD kernels chosen once at run time, and the ops of `Backend` on them.

pub mod linear;
pub mod pool;
pub mod simd;
