//! SIMD kernels, written once. They are generic over [`Simd`], a token for an instruction set. Its vectors always have
//! 16 f32 lanes: one AVX-512 register, two AVX2 registers or an array. Every operation rounds by IEEE 754, and
//! reductions have a fixed order. All instruction sets thus give equal bits, which the tests check.
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]. [`Isa::run`] runs it inside a function compiled
//! for the instruction set. All functions on the way must be `#[inline(always)]`; otherwise vectors pass through
//! memory.
//!
//! [`linear`] has the products of quantized matrices, whose micro-kernels use the intrinsics of each instruction set.
//!
//! aarch64 uses the scalar form. Its loops over 16 lanes compile to NEON, which belongs to the baseline there.
#![allow(unsafe_code)] // Intrinsics need proof that the CPU has them; the tokens carry it.

pub mod linear;
mod math;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::f16;

pub use math::{clamped_silu, clamped_swiglu, exp, gelu, gelu_erf, sigmoid, silu, squared_relu, tanh};

/// Lanes of every vector.
pub const LANES: usize = 16;

/// The instruction set of the kernels. A value proves that this CPU has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    pub const SCALAR: Self = Self(Level::Scalar);

    /// Returns the best instruction set of this CPU.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::SCALAR)
    }

    /// Returns all instruction sets of this CPU, slowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)] // Other architectures only have the scalar form.
        let mut levels = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_avx2() {
                levels.push(Self(Level::Avx2));
            }
            if x86::has_avx512() {
                levels.push(Self(Level::Avx512));
            }
        }
        levels
    }

    /// Returns the instruction set with this name, if this CPU has it; see [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// Returns the level, for kernels with one form per instruction set.
    pub(crate) fn level(self) -> Level {
        self.0
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar if cfg!(target_arch = "aarch64") => "neon",
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Scalar => kernel.run(scalar::Scalar),
            // SAFETY: the level is constructed only after the CPU was found to have it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { x86::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { x86::run_avx512(kernel) },
        }
    }
}

/// An algorithm for any instruction set. `run` must be `#[inline(always)]`.
pub trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The operations of the kernels on 16 f32 lanes.
pub trait Simd: Copy {
    type V: Copy;

    /// Vectors of 16 that fit in registers at once, which bounds register tiles.
    const REGISTERS: usize;

    fn splat(self, x: f32) -> Self::V;
    /// Prefetches a cache line into the second-level cache, if the instruction set can.
    #[inline(always)]
    fn prefetch<T>(self, _x: &T) {}
    fn load(self, x: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    fn load_f16(self, x: &[f16; LANES]) -> Self::V;
    /// Rounds to nearest, ties to even.
    fn to_f16(self, v: Self::V) -> [f16; LANES];
    fn load_i8(self, x: &[i8; LANES]) -> Self::V;
    /// Loads the low half of each byte, and the high half: unsigned numbers up to 15.
    fn load_nibbles(self, x: &[i8; LANES]) -> [Self::V; 2];
    /// Rounds numbers in `-128.0..=127.0` to the nearest whole one, ties to even.
    fn to_i8(self, v: Self::V) -> [i8; LANES];

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`, which is b if either is NaN, as on x86.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest whole number, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for whole `n` in `-126..=127`.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Lanes of `a` if `x < limit`, otherwise of `b` (also for NaN).
    fn select_lt(self, x: Self::V, limit: f32, a: Self::V, b: Self::V) -> Self::V;
    /// Keeps the lanes whose bit in `keep` is set; the others become `other`.
    fn keep_lanes(self, v: Self::V, keep: u16, other: f32) -> Self::V;

    /// Adds the lanes by halves: lane i + lane i+8, then i+4, i+2, i+1.
    fn sum(self, v: Self::V) -> f32;
    /// Returns the largest lane, by [`Simd::max`] in the order of [`Simd::sum`].
    fn maximum(self, v: Self::V) -> f32;

    /// Loads up to 16 values; the remaining lanes are zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    #[inline(always)]
    fn store_partial(self, v: Self::V, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }

    #[inline(always)]
    fn load_f16_partial(self, x: &[f16]) -> Self::V {
        let mut lanes = [f16::ZERO; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load_f16(&lanes)
    }
}
