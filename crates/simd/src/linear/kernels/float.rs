//! The micro-kernel of float weights: 16 outputs (the lanes) times up to 16 rows of f32 activations. It does one fused
//! multiply-add per element, in the order of `k`.

use super::super::lanes::{Lanes, unroll};
use super::TileArgs;
use super::block::ask_ahead;
use rocmforge_quant::GgmlType;

/// An element type of float weights.
pub(in super::super) trait Element {
    const BYTES: usize;
    /// # Safety
    /// The conditions of `Lanes` hold; 16 elements are read.
    unsafe fn load<L: Lanes>(p: *const u8) -> L::Floats;
}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(in super::super) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<L: Lanes>(p: *const u8) -> L::Floats {
                // SAFETY: the caller's promise.
                unsafe { L::$load(p) }
            }
        }
    };
}
element!(F32, 4, load_f32);
element!(F16, 2, load_f16);
element!(BF16, 2, load_bf16);

/// Returns the bytes of an element of `ggml_type`, or `None` if it is not a float type with a kernel.
pub fn element_bytes(ggml_type: GgmlType) -> Option<usize> {
    match ggml_type {
        GgmlType::F32 => Some(F32::BYTES),
        GgmlType::F16 => Some(F16::BYTES),
        GgmlType::BF16 => Some(BF16::BYTES),
        _ => None,
    }
}

/// # Safety
/// The conditions of `Lanes` hold; `args` is as documented there, with f32 activations.
#[inline(always)]
unsafe fn rows<L: Lanes, E: Element, const R: usize>(args: &TileArgs, first: usize) {
    // SAFETY: the pointers advance over exactly the tile's columns and the group's activations.
    unsafe {
        args.prefetch_out::<L, R>(first);
        let mut acc = [L::splat_f32(0.0); R];
        let mut weights = args.weights;
        let mut x = args.activations.cast::<f32>().add(first);
        let near = R == 1 && args.near;
        for _ in 0..args.steps {
            ask_ahead::<L>(weights, near);
            let w = E::load::<L>(weights);
            unroll!(r in 0..R, {
                acc[r] = L::fma(w, L::splat_f32(*x.add(r)), acc[r]);
            });
            weights = weights.add(16 * E::BYTES);
            x = x.add(args.group);
        }
        args.store::<L, R>(&acc, first);
    }
}

/// Multiplies all rows of a group of `G`. A kernel for more than `MAX_ROWS` takes a group of any size, four rows at a
/// time.
///
/// # Safety
/// The conditions of `rows` hold.
#[inline(always)]
pub(super) unsafe fn group<L: Lanes, E: Element, const G: usize>(args: &TileArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        if G <= L::MAX_ROWS {
            rows::<L, E, G>(args, 0);
        } else {
            for first in (0..args.rows).step_by(4) {
                rows::<L, E, 4>(args, first);
            }
        }
    }
}
