//! Instructions that apply a closure to one, two or three sources, the same in every lane.
#![allow(unsafe_code)]

use super::{Decoded, Decoder, Step, step};
use crate::lane::Lane;
use crate::operand::{Dest, Source};
use crate::wave::GROUP;

/// Declares a loop over the lanes of a group. On x86-64 it is always compiled for AVX2 and FMA: `CodeObject::load` has
/// refused processors without them.
macro_rules! lanes {
    ($name:ident, $inner:ident, <$($type:ident),*>, ($($value:ident),*)) => {
        #[allow(clippy::too_many_arguments)]
        #[inline]
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
        fn $inner<$($type: Lane,)* R: Lane>($($value: &[$type; GROUP],)* f: impl Fn($($type),*) -> R) -> [R; GROUP] {
            let mut results = [R::ZERO; GROUP];
            for lane in 0..GROUP {
                results[lane] = f($($value[lane]),*);
            }
            results
        }

        #[inline(always)]
        pub(crate) fn $name<$($type: Lane,)* R: Lane>($($value: &[$type; GROUP],)* f: impl Fn($($type),*) -> R) -> [R; GROUP] {
            // SAFETY: a code object is loaded only where these instructions exist, and only loaded ones are executed.
            #[cfg(target_arch = "x86_64")]
            unsafe { $inner($($value,)* f) }
            #[cfg(not(target_arch = "x86_64"))]
            $inner($($value,)* f)
        }
    };
}

lanes!(map1, map1_inner, <A>, (a));
lanes!(map2, map2_inner, <A, B>, (a, b));
lanes!(map3, map3_inner, <A, B, C>, (a, b, c));

pub(crate) trait Function: Send + Sync + 'static {}
impl<T: Send + Sync + 'static> Function for T {}

impl Decoder<'_> {
    pub(crate) fn unary<A: Lane, R: Lane>(&self, f: impl Fn(A) -> R + Copy + Function) -> Decoded<Step> {
        self.expect_sources(1)?;
        let (dest, a) = (self.dest::<R>(0)?, self.source::<A>(1)?);
        Ok(step(move |wave| {
            for group in 0..wave.groups() {
                let result = map1(&a.group::<A>(wave, group), f);
                dest.put(wave, group, result);
            }
        }))
    }

    pub(crate) fn binary<A: Lane, B: Lane, R: Lane>(&self, f: impl Fn(A, B) -> R + Copy + Function) -> Decoded<Step> {
        self.expect_sources(2)?;
        let (dest, a, b) = (self.dest::<R>(0)?, self.source::<A>(1)?, self.source::<B>(2)?);
        Ok(step(move |wave| {
            for group in 0..wave.groups() {
                let result = map2(&a.group::<A>(wave, group), &b.group::<B>(wave, group), f);
                dest.put(wave, group, result);
            }
        }))
    }

    pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, R: Lane>(
        &self,
        f: impl Fn(A, B, C) -> R + Copy + Function,
    ) -> Decoded<Step> {
        self.expect_sources(3)?;
        Ok(ternary(self.dest::<R>(0)?, (self.source::<A>(1)?, self.source::<B>(2)?, self.source::<C>(3)?), f))
    }

    /// Two sources, with the destination as the third: `fmac`.
    pub(crate) fn accumulate<A: Lane, B: Lane, R: Lane>(
        &self,
        f: impl Fn(A, B, R) -> R + Copy + Function,
    ) -> Decoded<Step> {
        self.expect_sources(2)?;
        let accumulator = Source::parse::<R>(self.operand(0)?)?;
        Ok(ternary(self.dest::<R>(0)?, (self.source::<A>(1)?, self.source::<B>(2)?, accumulator), f))
    }

    pub(crate) fn expect_sources(&self, count: usize) -> Decoded<()> {
        match self.operand_count() {
            found if found == count + 1 => Ok(()),
            found => Err(format!("{found} operands instead of {}", count + 1)),
        }
    }
}

pub(super) fn ternary<A: Lane, B: Lane, C: Lane, R: Lane>(
    dest: Dest,
    (a, b, c): (Source, Source, Source),
    f: impl Fn(A, B, C) -> R + Copy + Function,
) -> Step {
    step(move |wave| {
        for group in 0..wave.groups() {
            let (x, y) = (a.group::<A>(wave, group), b.group::<B>(wave, group));
            let result = map3(&x, &y, &c.group::<C>(wave, group), f);
            dest.put(wave, group, result);
        }
    })
}
