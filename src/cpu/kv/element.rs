//! The element types of the KV cache. Kernels are generic over the stored type and compute in f32.
#![allow(unsafe_code)] // An exclusively borrowed pool is given to the threads as atomics.

use std::fmt::Debug;
use std::sync::atomic::{AtomicI8, AtomicU16, AtomicU32, Ordering};

use half::f16;

use crate::simd::{LANES, Simd};
use crate::storage::Element;

/// The largest i8 whose negative is an i8 too. A head's largest element becomes this.
pub(super) const LEVELS: f32 = 127.0;

/// An element type of stored K and V.
pub(in super::super) trait KvElement: Element + Debug + Send + Sync {
    /// An atomic of the same size and bits, which several threads may write.
    type Atomic: Sync + Debug;
    /// True if each head of a token has a scale that its elements are multiplied by.
    const HAS_SCALES: bool;

    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V;
    /// Loads up to 16 elements; the remaining lanes are zero.
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V;
    /// Rounds to the nearest storable value, ties to even.
    fn round<S: Simd>(s: S, v: S::V) -> [Self; LANES];
    fn store(self, at: &Self::Atomic);
    fn as_atomic(x: &mut [Self]) -> &[Self::Atomic];
}

impl KvElement for f16 {
    type Atomic = AtomicU16;
    const HAS_SCALES: bool = false;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load_f16(x)
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_f16_partial(x)
    }
    #[inline(always)]
    fn round<S: Simd>(s: S, v: S::V) -> [Self; LANES] {
        s.to_f16(v)
    }
    #[inline(always)]
    fn store(self, at: &AtomicU16) {
        at.store(self.to_bits(), Ordering::Relaxed);
    }
    fn as_atomic(x: &mut [Self]) -> &[AtomicU16] {
        // SAFETY: f16 is a transparent u16, and AtomicU16 has its size and alignment. The exclusive borrow is given up
        // for the shared one.
        unsafe { &*(std::ptr::from_mut(x) as *const [AtomicU16]) }
    }
}

impl KvElement for f32 {
    type Atomic = AtomicU32;
    const HAS_SCALES: bool = false;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load(x)
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_partial(x)
    }
    #[inline(always)]
    fn round<S: Simd>(s: S, v: S::V) -> [Self; LANES] {
        let mut out = [0.0; LANES];
        s.store(v, &mut out);
        out
    }
    #[inline(always)]
    fn store(self, at: &AtomicU32) {
        at.store(self.to_bits(), Ordering::Relaxed);
    }
    fn as_atomic(x: &mut [Self]) -> &[AtomicU32] {
        // SAFETY: AtomicU32 has the size and alignment of f32, and any bits are an f32. The exclusive borrow is given
        // up for the shared one.
        unsafe { &*(std::ptr::from_mut(x) as *const [AtomicU32]) }
    }
}

impl KvElement for i8 {
    type Atomic = AtomicI8;
    const HAS_SCALES: bool = true;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load_i8(x)
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        let mut lanes = [0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        s.load_i8(&lanes)
    }
    /// NaN becomes the lowest level; the scale of its head is NaN.
    #[inline(always)]
    fn round<S: Simd>(s: S, v: S::V) -> [Self; LANES] {
        s.to_i8(s.min(s.max(v, s.splat(-LEVELS)), s.splat(LEVELS)))
    }
    #[inline(always)]
    fn store(self, at: &AtomicI8) {
        at.store(self, Ordering::Relaxed);
    }
    fn as_atomic(x: &mut [Self]) -> &[AtomicI8] {
        // SAFETY: AtomicI8 has the size and alignment of i8. The exclusive borrow is given up for the shared one.
        unsafe { &*(std::ptr::from_mut(x) as *const [AtomicI8]) }
    }
}
