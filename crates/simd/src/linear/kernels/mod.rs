//! Micro-kernels: one tile of 16 outputs times one group of activation rows. The algorithms are written once over
//! `Lanes` and instantiated here for each instruction set.
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
pub use float::element_bytes;

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use super::by_type::with_format;
use super::formats::Format;
use super::lanes::Lanes;
use super::q8::Q8Block;
use crate::{Isa, Level};
use float::Element;
use rocmforge_quant::GgmlType;

/// The arguments of a micro-kernel: `out[r * out_stride + lane] = scale · Σ w[lane] · x[r] (+ bias[lane])` for
/// `r < rows` and `lane < lanes`, or `+=` if `add` is set.
pub struct TileArgs {
    /// The tile. Block formats have spans of side bytes and code planes (see `layout`), float formats have elements
    /// column by column.
    pub weights: *const u8,
    /// The tile's codes from `KernelSet::make_codes`, or null.
    pub codes: *const u8,
    /// Blocks of 32 (block formats) or columns (float formats).
    pub steps: usize,
    /// `[step][group]` of `Q8Block` (block formats) or f32 (float formats).
    pub activations: *const u8,
    /// Rows that the group occupies in `activations`, including padding.
    pub group: usize,
    /// Rows to write, at most `group`.
    pub rows: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub add: bool,
    /// Outputs to write, at most 16.
    pub lanes: usize,
    pub scale: f32,
    /// 16 f32, or null.
    pub bias: *const f32,
    /// The result of `prefetches_near`.
    pub near: bool,
}

/// True if the weights of single rows should be prefetched into the first-level cache instead of the second. On AMD's
/// Zen 5 (family 1Ah) this is up to 1.3 times as fast. On Zen 4 it was a seventh to a third slower, and on an Intel
/// Xeon it made no difference.
pub fn prefetches_near() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        static NEAR: LazyLock<bool> = LazyLock::new(|| {
            let (name, version) = (__cpuid(0), __cpuid(1).eax);
            let name = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes);
            // Families above 15 are encoded as 15 plus an extension.
            let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
            name.as_flattened() == b"AuthenticAMD" && family >= 0x1a
        });
        *NEAR
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl TileArgs {
    /// Prefetches the lines that `store` will write. Rows of outputs are far apart, and hardware prefetchers follow
    /// only a few at a time.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold.
    #[inline(always)]
    unsafe fn prefetch_out<L: Lanes, const R: usize>(&self, first: usize) {
        for r in first..first + R {
            // SAFETY: any address may be prefetched.
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
                let acc = L::mul(acc, L::splat_f32(self.scale));
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
pub type Kernel = unsafe fn(&TileArgs);

/// Computes the codes of a tile with this many blocks, `CODES` bytes each.
///
/// # Safety
/// The processor has the kernel's instruction set, and the pointers are valid for these bytes.
type MakeCodes = unsafe fn(*const u8, usize, *mut u8);

/// The kernels of one format and instruction set.
#[derive(Clone, Copy)]
pub struct KernelSet {
    /// By the size of the group.
    multiply: [Kernel; 6],
    /// `None` if all groups of rows read codes from the tile.
    make_codes: Option<MakeCodes>,
}

impl std::fmt::Debug for KernelSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KernelSet")
    }
}

impl KernelSet {
    /// Returns the kernel for a group of `group` rows, a result of `q8::padded_group`.
    pub fn for_group(&self, group: usize) -> Kernel {
        self.multiply[match group {
            0..=1 => 0,
            2 => 1,
            3..=4 => 2,
            5..=8 => 3,
            9..=12 => 4,
            _ => 5,
        }]
    }

    /// Computes the codes of a tile of `steps` blocks that is multiplied with several groups, and returns a pointer to
    /// them. Returns null if the kernels read codes from the tile.
    ///
    /// # Safety
    /// The processor has the instruction set; the tile is of the kernels' format and has `steps` blocks.
    pub unsafe fn make_codes(&self, tile: &[u8], steps: usize, lines: &mut Vec<Line>) -> *const u8 {
        let Some(make_codes) = self.make_codes else { return std::ptr::null() };
        lines.resize((steps * CODES / size_of::<Line>()).max(lines.len()), Line([0; 64]));
        // SAFETY: the caller's promise, and the lines have room for the codes.
        unsafe { make_codes(tile.as_ptr(), steps, lines.as_mut_ptr().cast()) };
        lines.as_ptr().cast()
    }
}

/// A cache line.
#[derive(Clone)]
#[repr(align(64))]
pub struct Line(#[expect(dead_code, reason = "kernels write and read it by its address")] [u8; 64]);

/// Compiles the generic kernels for one instruction set, for these sizes of groups (see `KernelSet::for_group`).
macro_rules! shells {
    ($module:ident, $lanes:path, [$($size:literal),+] $(, $features:literal)?) => {
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
                let multiply: [Kernel; 6] = [$(block::<F, $size>),+];
                KernelSet { multiply, make_codes: block::makes_codes::<$lanes, F>().then_some(make_codes::<F>) }
            }

            pub(super) fn floats<E: Element>() -> KernelSet {
                let multiply: [Kernel; 6] = [$(float::<E, $size>),+];
                KernelSet { multiply, make_codes: None }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
shells!(
    with_avx512,
    avx512::Avx512,
    [1, 2, 4, 8, 12, 16],
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
);
// One kernel computes groups of any size above 4, in both of these.
#[cfg(target_arch = "x86_64")]
shells!(with_avx2, avx2::Avx2, [1, 2, 4, 8, 8, 8], "avx2,fma,f16c");
shells!(with_scalar, scalar::Scalar, [1, 2, 4, 8, 8, 8]);

/// Returns the kernels of a type, or `None` if its rows have to be decoded to f32.
pub fn kernels(isa: Isa, ggml_type: GgmlType) -> Option<KernelSet> {
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

/// Quantizes one row into every `stride`-th block of `out`. Ignores the tail of `x` past a multiple of 32.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [Q8Block], stride: usize) {
    // SAFETY: an `Isa` exists only if the processor has its instructions.
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
