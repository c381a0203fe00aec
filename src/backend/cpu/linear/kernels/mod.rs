//! Micro-kernels: one tile of 16 outputs times one group of activation rows. The algorithms are written once over
//! `Lanes`; here are their instantiations for each instruction set.
#![allow(unsafe_code)] // SIMD intrinsics, and raw pointers into the packed matrix

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod float;
mod quantize;
mod scalar;

pub(super) use block::{CODES, side_bytes};
pub(super) use float::element_bytes;

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use super::by_type::with_format;
use super::formats::Format;
use super::lanes::Lanes;
use super::q8::Q8Block;
use crate::backend::cpu::simd::{Isa, Level};
use crate::quant::GgmlType;
use float::Element;

/// One call of a micro-kernel: `out[r * out_stride + lane] = Σ w[lane] · x[r] (+ bias[lane])` for `r < rows` and
/// `lane < lanes`, or `+=` of it.
pub(super) struct TileArgs {
    /// The tile: spans of side bytes and code planes (block formats, see `layout`), or its elements column by column
    /// (float formats).
    pub weights: *const u8,
    /// The codes that `KernelSet::make_codes` has made of the tile, or null.
    pub codes: *const u8,
    /// Blocks of 32 (block formats) or columns (float formats).
    pub steps: usize,
    /// `[step][group]` of `Q8Block` (block formats) or f32 (float formats).
    pub activations: *const u8,
    /// Rows that the group takes in `activations`, those of padding included.
    pub group: usize,
    /// Rows to write, at most `group`.
    pub rows: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub add: bool,
    /// Outputs to write, at most 16.
    pub lanes: usize,
    /// 16 f32, or null.
    pub bias: *const f32,
    /// The result of `prefetches_near`.
    pub near: bool,
}

/// Whether the weights of single rows are best asked for ahead of time into the first-level cache, and not into the
/// second only: on AMD's Zen 5 (family 1Ah) they come up to 1.3 times as fast then, on Zen 4 they came a seventh to a
/// third slower, and on an Intel Xeon no difference could be told.
pub(super) fn prefetches_near() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        static NEAR: LazyLock<bool> = LazyLock::new(|| {
            let (name, version) = (__cpuid(0), __cpuid(1).eax);
            let name = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes);
            // A family above 15 is 15 and what is added to it.
            let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
            name.as_flattened() == b"AuthenticAMD" && family >= 0x1a
        });
        *NEAR
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl TileArgs {
    /// Asks for the lines that `store` will write: rows of outputs lie far apart, and the processor's own prefetchers
    /// do not follow more than a few at a time.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold.
    #[inline(always)]
    unsafe fn prefetch_out<L: Lanes, const R: usize>(&self, first: usize) {
        for r in first..first + R {
            // SAFETY: a prefetch may be of any address.
            unsafe { L::prefetch(self.out.wrapping_add(r * self.out_stride).cast()) };
        }
    }

    /// Writes the accumulators of rows `first..first + R`.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold; `out` is valid for the rows and lanes to be written.
    #[inline(always)]
    unsafe fn store<L: Lanes, const R: usize>(&self, acc: &[L::Floats; R], first: usize) {
        for (r, &acc) in acc.iter().enumerate() {
            if first + r >= self.rows {
                break;
            }
            // SAFETY: the caller's promise, for row `first + r` which is below `rows`.
            unsafe {
                let acc = if self.bias.is_null() { acc } else { L::add(acc, L::load_f32(self.bias.cast())) };
                let out = self.out.add((first + r) * self.out_stride);
                if self.lanes == 16 {
                    L::store(out, if self.add { L::add(L::load_f32(out.cast()), acc) } else { acc });
                } else {
                    let mut all = [0.0f32; 16];
                    L::store(all.as_mut_ptr(), acc);
                    if self.add {
                        (0..self.lanes).for_each(|lane| all[lane] += *out.add(lane));
                    }
                    out.copy_from_nonoverlapping(all.as_ptr(), self.lanes);
                }
            }
        }
    }
}

/// # Safety
/// The processor has the kernel's instruction set; the pointers of the arguments are valid as documented there.
pub(super) type Kernel = unsafe fn(&TileArgs);

/// Makes the codes of a tile of so many blocks, `CODES` bytes for each.
///
/// # Safety
/// The processor has the kernel's instruction set, and the pointers are valid for that.
type MakeCodes = unsafe fn(*const u8, usize, *mut u8);

/// The kernels of one format and instruction set.
#[derive(Clone, Copy)]
pub(super) struct KernelSet {
    /// By size of the group.
    multiply: [Kernel; 6],
    /// `None` where all groups of rows take codes from the tile.
    make_codes: Option<MakeCodes>,
}

impl std::fmt::Debug for KernelSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KernelSet")
    }
}

impl KernelSet {
    /// The kernel for a group of `group` rows, a result of `q8::padded_group`.
    pub(super) fn for_group(&self, group: usize) -> Kernel {
        self.multiply[match group {
            0..=1 => 0,
            2 => 1,
            3..=4 => 2,
            5..=8 => 3,
            9..=12 => 4,
            _ => 5,
        }]
    }

    /// Returns what the kernels are to have as codes of a tile of `steps` blocks that is multiplied with several
    /// groups: null where they take them from the tile.
    ///
    /// # Safety
    /// The processor has the instruction set; the tile is of the kernels' format and has `steps` blocks.
    pub(super) unsafe fn make_codes(&self, tile: &[u8], steps: usize, lines: &mut Vec<Line>) -> *const u8 {
        let Some(make_codes) = self.make_codes else { return std::ptr::null() };
        lines.resize((steps * CODES / size_of::<Line>()).max(lines.len()), Line([0; 64]));
        // SAFETY: the caller's promise, and the lines have room for the codes.
        unsafe { make_codes(tile.as_ptr(), steps, lines.as_mut_ptr().cast()) };
        lines.as_ptr().cast()
    }
}

/// A line of the processor's caches.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Line(#[expect(dead_code, reason = "kernels write and read it by its address")] [u8; 64]);

/// Compiles the generic kernels for one instruction set.
macro_rules! shells {
    ($module:ident, $lanes:path $(, $features:literal)?) => {
        mod $module {
            use super::*;

            /// # Safety
            /// See `Kernel`.
            $(#[target_feature(enable = $features)])?
            unsafe fn block<F: Format, const G: usize>(args: &TileArgs) {
                // SAFETY: this function is compiled for the instruction set; the rest is the caller's promise.
                unsafe { block::group::<$lanes, F, G>(args) }
            }

            /// # Safety
            /// See `Kernel`.
            $(#[target_feature(enable = $features)])?
            unsafe fn float<E: Element, const G: usize>(args: &TileArgs) {
                // SAFETY: as above.
                unsafe { float::group::<$lanes, E, G>(args) }
            }

            /// # Safety
            /// The processor has the instruction set.
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn quantize(x: &[f32], out: &mut [Q8Block], stride: usize) {
                // SAFETY: as above.
                unsafe { quantize::row::<$lanes>(x, out, stride) }
            }

            /// # Safety
            /// See `MakeCodes`.
            $(#[target_feature(enable = $features)])?
            unsafe fn make_codes<F: Format>(tile: *const u8, steps: usize, out: *mut u8) {
                // SAFETY: as above.
                unsafe { block::make_codes::<$lanes, F>(tile, steps, out) }
            }

            pub(super) fn blocks<F: Format>() -> KernelSet {
                let multiply =
                    [block::<F, 1>, block::<F, 2>, block::<F, 4>, block::<F, 8>, block::<F, 12>, block::<F, 16>];
                KernelSet { multiply, make_codes: block::makes_codes::<$lanes, F>().then_some(make_codes::<F>) }
            }

            pub(super) fn floats<E: Element>() -> KernelSet {
                let multiply =
                    [float::<E, 1>, float::<E, 2>, float::<E, 4>, float::<E, 8>, float::<E, 12>, float::<E, 16>];
                KernelSet { multiply, make_codes: None }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
shells!(with_avx512, avx512::Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
shells!(with_avx2, avx2::Avx2, "avx2,fma,f16c");
shells!(with_scalar, scalar::Scalar);

/// The kernels of a type; `None` when it has none and its rows are to be decoded to f32.
pub(super) fn kernels(isa: Isa, ggml_type: GgmlType) -> Option<KernelSet> {
    macro_rules! choose {
        ($list:ident :: <$ty:ty>) => {
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => with_avx512::$list::<$ty>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => with_avx2::$list::<$ty>(),
                Level::Scalar => with_scalar::$list::<$ty>(),
            }
        };
    }
    match ggml_type {
        GgmlType::F32 => Some(choose!(floats::<float::F32>)),
        GgmlType::F16 => Some(choose!(floats::<float::F16>)),
        GgmlType::BF16 => Some(choose!(floats::<float::BF16>)),
        _ => with_format!(ggml_type, F => choose!(blocks::<F>)),
    }
}

/// Quantises one row into every `stride`-th block of `out`; the tail of `x` past a multiple of 32 is ignored.
pub(super) fn quantize_row(isa: Isa, x: &[f32], out: &mut [Q8Block], stride: usize) {
    // SAFETY: an `Isa` exists only where the processor has its instructions.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => with_avx512::quantize(x, out, stride),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => with_avx2::quantize(x, out, stride),
            Level::Scalar => with_scalar::quantize(x, out, stride),
        }
    }
}
