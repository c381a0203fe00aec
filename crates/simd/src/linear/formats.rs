//! The block formats that the micro-kernels multiply, each as data: the place and the number of bits of its codes, and
//! the decoding of a tile's scales. Layouts are those of ggml's `ggml-common.h`; `quant` is the oracle.
//!
//! Kernels see every format as blocks of 32 unsigned codes: `weight = scale * (code - 2^OFFSET) + min`. Each block or
//! half block has one scale (and min). `codebooks` has the formats without bit planes.

use super::lanes::{Lanes, unroll};
use rocmforge_quant::GgmlType;

/// The place of the codes of four consecutive elements: four consecutive bytes with the same shift, or adjacent bits of
/// one byte.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Position {
    pub byte: usize,
    pub shift: u32,
}

/// Scales and minimums of a block of 32 (or of its two halves) for 16 rows.
pub(super) struct Scales<L: Lanes> {
    pub scale: [L::Floats; 2],
    pub min: [L::Floats; 2],
}

impl<L: Lanes> Scales<L> {
    /// # Safety
    /// The conditions of `Lanes` hold.
    #[inline(always)]
    pub(super) unsafe fn new(scale: L::Floats, min: L::Floats) -> Self {
        Self { scale: [scale; 2], min: [min; 2] }
    }
}

/// A block format. `b` counts blocks of 32 within a GGUF block, and `g` counts groups of four elements within a block
/// of 32.
pub(super) trait Format {
    const TYPE: GgmlType;
    /// Bits of a code in the low plane: 1, 2, 4 or 8, or 0 if `codes` computes it from side bytes. `HIGH` is the number
    /// of bits above them in the high plane: 0, 1 or 2.
    const LOW: u32;
    const HIGH: u32 = 0;
    /// True if the file's codes are signed bytes. Packing flips bit 7.
    const SIGNED: bool = false;
    /// log2 of the offset that is subtracted from the codes.
    const OFFSET: Option<u32> = None;
    /// True if blocks have a minimum besides the scale.
    const MIN: bool = false;
    /// Scales per block of 32: 1 or 2.
    const SCALES: usize = 1;
    /// The values of the codes, if codes are indices.
    const TABLE: Option<[u8; 16]> = None;
    const MAX_CODE: u8 = if Self::LOW == 8 { 255 } else { (1 << (Self::LOW + Self::HIGH)) - 1 };
    /// True if the low, or the high, bits of four elements are adjacent bits of a byte, not bits in each of four bytes.
    const LOW_BITS_ADJACENT: bool = false;
    const HIGH_BITS_ADJACENT: bool = false;
    /// All bytes of a GGUF block that are not codes, as ranges `(first byte, bytes per unit, units)`.
    const SIDE: &'static [(usize, usize, usize)];

    fn low(_b: usize, _g: usize) -> Position {
        Position::default()
    }
    fn high(_b: usize, _g: usize) -> Position {
        Position::default()
    }
    /// Returns the low bits of a group of four codes of 16 rows as bytes. `line` counts the groups with the same shift.
    /// See `layout::Layout` for the planes.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold; `planes` are those of a block and have `LOW + HIGH` lines of 64 bytes.
    #[inline(always)]
    unsafe fn low_codes<L: Lanes>(planes: *const u8, part: usize, line: usize) -> L::Bytes {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = L::load(planes.add(64 * line));
            let codes = match Self::LOW {
                8 => codes,
                low => L::bits(codes, low * part as u32, (1 << low) - 1),
            };
            match &Self::TABLE {
                Some(table) => L::lookup(codes, table),
                None => codes,
            }
        }
    }

    /// Returns the 8 groups of block `b`.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold; `side` points to the 16 rows' side bytes of one GGUF block, `planes` to the
    /// planes of block `b`.
    #[inline(always)]
    unsafe fn codes<L: Lanes>(_side: *const u8, planes: *const u8, _b: usize) -> [L::Bytes; 8] {
        const { assert!(Self::HIGH == 0 || Self::TABLE.is_none()) };
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = (Self::LOW as usize, Self::HIGH as usize);
            let mut out = [L::load(planes); 8];
            unroll!(g in 0..8, {
                out[g] = Self::low_codes::<L>(planes, g / low, g % low);
                if high > 0 {
                    let line = L::load(planes.add(64 * (low + g % high.max(1))));
                    let shift = (high * (g / high.max(1))) as u32;
                    out[g] = L::merge_bits(out[g], line, shift, (1 << high) - 1, Self::LOW);
                }
            });
            out
        }
    }

    /// Decodes the scales of block `b` from the side bytes of 16 rows. The bytes are ordered by unit, with the rows
    /// adjacent.
    ///
    /// # Safety
    /// The conditions of `Lanes` hold; `side` points to the 16 rows' side bytes of one GGUF block.
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L>;
}

/// Columns in a span, whose scales precede its codes. At this size the scales of every type fill whole cache lines.
const SPAN: usize = 512;

/// Returns the GGUF blocks of `elements` in a span.
pub(super) const fn span_blocks(elements: usize) -> usize {
    SPAN / elements
}

/// Bytes of a two-byte unit (an f16) for 16 rows.
pub(super) const HALVES: usize = 32;
/// Bytes of a one-byte unit for 16 rows.
pub(super) const BYTES: usize = 16;

/// Returns the place of nibbles in a block of 32: elements 0 to 15 are low nibbles, 16 to 31 high ones.
const fn nibbles(start: usize, g: usize) -> Position {
    Position { byte: start + 4 * (g % 4), shift: 4 * (g / 4) as u32 }
}

/// Returns the place of the 2-bit codes of Q2_K and Q3_K, and of Q6_K's high bits. 32 bytes hold 128 elements, with one
/// shift per 32 elements.
const fn pairs(start: usize, b: usize, g: usize) -> Position {
    Position { byte: start + 32 * (b / 4) + 4 * g, shift: 2 * (b % 4) as u32 }
}

/// Implements types with one f16 scale per block, with or without an f16 minimum.
macro_rules! simple {
    ($name:ident { $($item:item)* } min: $min:literal) => {
        #[allow(non_camel_case_types)] // ggml's own names
        pub(super) struct $name;
        impl Format for $name {
            const TYPE: GgmlType = GgmlType::$name;
            const MIN: bool = $min;
            $($item)*
            #[inline(always)]
            unsafe fn scales<L: Lanes>(side: *const u8, _b: usize) -> Scales<L> {
                // SAFETY: the caller's promise; the side bytes start with the scale, then the minimum.
                unsafe {
                    let scale = L::load_f16(side);
                    Scales::new(scale, if $min { L::load_f16(side.add(HALVES)) } else { scale })
                }
            }
        }
    };
}

simple!(Q4_0 {
    const LOW: u32 = 4;
    const OFFSET: Option<u32> = Some(3);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(_b: usize, g: usize) -> Position { nibbles(2, g) }
} min: false);

simple!(Q4_1 {
    const LOW: u32 = 4;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 2)];
    fn low(_b: usize, g: usize) -> Position { nibbles(4, g) }
} min: true);

simple!(Q5_0 {
    const LOW: u32 = 4;
    const HIGH: u32 = 1;
    const OFFSET: Option<u32> = Some(4);
    const HIGH_BITS_ADJACENT: bool = true;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(_b: usize, g: usize) -> Position { nibbles(6, g) }
    fn high(_b: usize, g: usize) -> Position { Position { byte: 2 + g / 2, shift: 4 * (g % 2) as u32 } }
} min: false);

simple!(Q5_1 {
    const LOW: u32 = 4;
    const HIGH: u32 = 1;
    const HIGH_BITS_ADJACENT: bool = true;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 2)];
    fn low(_b: usize, g: usize) -> Position { nibbles(8, g) }
    fn high(_b: usize, g: usize) -> Position { Position { byte: 4 + g / 2, shift: 4 * (g % 2) as u32 } }
} min: true);

simple!(Q8_0 {
    const LOW: u32 = 8;
    const SIGNED: bool = true;
    const OFFSET: Option<u32> = Some(7);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(_b: usize, g: usize) -> Position { Position { byte: 2 + 4 * g, shift: 0 } }
} min: false);

simple!(TQ2_0 {
    const LOW: u32 = 2;
    const OFFSET: Option<u32> = Some(0);
    const SIDE: &'static [(usize, usize, usize)] = &[(64, 2, 1)];
    fn low(b: usize, g: usize) -> Position { pairs(0, b, g) }
} min: false);

simple!(Q2_0 {
    const LOW: u32 = 2;
    const LOW_BITS_ADJACENT: bool = true;
    const OFFSET: Option<u32> = Some(0);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(b: usize, g: usize) -> Position { Position { byte: 2 + 8 * b + g, shift: 0 } }
} min: false);

/// The non-linear 4-bit values of IQ4_NL and IQ4_XS, plus 128.
const IQ4_TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

simple!(IQ4_NL {
    const LOW: u32 = 4;
    const TABLE: Option<[u8; 16]> = Some(IQ4_TABLE);
    const MAX_CODE: u8 = 255;
    const OFFSET: Option<u32> = Some(7);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(_b: usize, g: usize) -> Position { nibbles(2, g) }
} min: false);

/// Twice the values of E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), plus 16.
const E2M1_TABLE: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// OCP MXFP4: E2M1 values with a common E8M0 exponent.
pub(super) struct Mxfp4;

impl Format for Mxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;
    const LOW: u32 = 4;
    const TABLE: Option<[u8; 16]> = Some(E2M1_TABLE);
    const MAX_CODE: u8 = 31;
    const OFFSET: Option<u32> = Some(4);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 1, 1)];
    fn low(_b: usize, g: usize) -> Position {
        nibbles(1, g)
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, _b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            // Half of 2^(e - 127), because the table holds doubled values. The scales 2^-127 and below would be
            // subnormal and become zero. No model has weights that small.
            let e = L::max(L::sub(L::load_u8(side), L::splat_i32(1)), L::splat_i32(0));
            let scale = L::as_f32(L::shl(e, 23));
            Scales::new(scale, scale)
        }
    }
}

/// Decodes the 6-bit scales and minimums of Q4_K and Q5_K, which are packed in 12 bytes.
///
/// # Safety
/// The conditions of `Format::scales` hold; the side bytes are d, dmin, 12 bytes.
#[inline(always)]
unsafe fn scales_k4<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
    // SAFETY: the caller's promise.
    unsafe {
        let packed = side.add(2 * HALVES);
        let byte = |i: usize| packed.add(BYTES * i);
        let (six, four) = (L::splat_i32(63), L::splat_i32(15));
        let (scale, min) = if b < 4 {
            (L::and(L::load_u8(byte(b)), six), L::and(L::load_u8(byte(b + 4)), six))
        } else {
            let low = L::load_u8(byte(b + 4));
            let scale_high = L::shl(L::shr(L::load_u8(byte(b - 4)), 6), 4);
            let min_high = L::shl(L::shr(L::load_u8(byte(b)), 6), 4);
            (L::or(L::and(low, four), scale_high), L::or(L::shr(low, 4), min_high))
        };
        let (d, dmin) = (L::load_f16(side), L::load_f16(side.add(HALVES)));
        // The file subtracts the minimum.
        Scales::new(L::mul(d, L::to_f32(scale)), L::mul(dmin, L::to_f32(L::sub(L::splat_i32(0), min))))
    }
}

macro_rules! format {
    ($name:ident { $($item:item)* }) => {
        #[allow(non_camel_case_types)] // ggml's own names
        pub(super) struct $name;
        impl Format for $name {
            const TYPE: GgmlType = GgmlType::$name;
            $($item)*
        }
    };
}
pub(super) use format;

format!(Q4_K {
    const LOW: u32 = 4;
    const MIN: bool = true;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 2), (4, 1, 12)];
    fn low(b: usize, g: usize) -> Position {
        Position { byte: 16 + 32 * (b / 2) + 4 * g, shift: 4 * (b % 2) as u32 }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scales_k4(side, b) }
    }
});

format!(Q5_K {
    const LOW: u32 = 4;
    const HIGH: u32 = 1;
    const MIN: bool = true;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 2), (4, 1, 12)];
    fn low(b: usize, g: usize) -> Position {
        Position { byte: 48 + 32 * (b / 2) + 4 * g, shift: 4 * (b % 2) as u32 }
    }
    fn high(b: usize, g: usize) -> Position {
        Position { byte: 16 + 4 * g, shift: b as u32 }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scales_k4(side, b) }
    }
});

format!(Q6_K {
    const LOW: u32 = 4;
    const HIGH: u32 = 2;
    const OFFSET: Option<u32> = Some(5);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(208, 2, 1), (192, 1, 16)];
    fn low(b: usize, g: usize) -> Position {
        Position { byte: 64 * (b / 4) + 32 * (b % 2) + 4 * g, shift: 4 * (b % 4 / 2) as u32 }
    }
    fn high(b: usize, g: usize) -> Position {
        pairs(128, b, g)
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let d = L::load_f16(side);
            let at = side.add(HALVES + 2 * b * BYTES);
            let scale = [L::mul(d, L::to_f32(L::load_i8(at))), L::mul(d, L::to_f32(L::load_i8(at.add(BYTES))))];
            Scales { scale, min: scale }
        }
    }
});

format!(Q2_K {
    const LOW: u32 = 2;
    const MIN: bool = true;
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(80, 2, 2), (0, 1, 16)];
    fn low(b: usize, g: usize) -> Position {
        pairs(16, b, g)
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let (d, dmin) = (L::load_f16(side), L::load_f16(side.add(HALVES)));
            let at = side.add(2 * HALVES + 2 * b * BYTES);
            let (first, second) = (L::load_u8(at), L::load_u8(at.add(BYTES)));
            let scale = |v| L::mul(d, L::to_f32(L::and(v, L::splat_i32(15))));
            let min = |v| L::mul(dmin, L::to_f32(L::sub(L::splat_i32(0), L::shr(v, 4))));
            Scales { scale: [scale(first), scale(second)], min: [min(first), min(second)] }
        }
    }
});

/// Decodes scale `j` of the 16 of a Q3_K block. It has 6 bits with offset 32: the low 4 are nibbles of bytes 0 to 7,
/// the high 2 are in bytes 8 to 11.
///
/// # Safety
/// The conditions of `Format::scales` hold.
#[inline(always)]
unsafe fn q3_scale<L: Lanes>(side: *const u8, j: usize) -> L::Floats {
    // SAFETY: the caller's promise; the side bytes are d and 12 bytes.
    unsafe {
        let bytes = side.add(HALVES);
        let low = L::load_u8(bytes.add(BYTES * (j % 8)));
        let low = L::and(L::shr(low, 4 * (j / 8) as u32), L::splat_i32(15));
        let high = L::load_u8(bytes.add(BYTES * (8 + j % 4)));
        let high = L::and(L::shr(high, 2 * (j / 4) as u32), L::splat_i32(3));
        L::mul(L::load_f16(side), L::to_f32(L::sub(L::or(low, L::shl(high, 4)), L::splat_i32(32))))
    }
}

format!(Q3_K {
    const LOW: u32 = 2;
    const HIGH: u32 = 1;
    const OFFSET: Option<u32> = Some(2);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(108, 2, 1), (96, 1, 12)];
    fn low(b: usize, g: usize) -> Position {
        pairs(32, b, g)
    }
    fn high(b: usize, g: usize) -> Position {
        Position { byte: 4 * g, shift: b as u32 }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = [q3_scale::<L>(side, 2 * b), q3_scale::<L>(side, 2 * b + 1)];
            Scales { scale, min: scale }
        }
    }
});

format!(IQ4_XS {
    const LOW: u32 = 4;
    const TABLE: Option<[u8; 16]> = Some(IQ4_TABLE);
    const MAX_CODE: u8 = 255;
    const OFFSET: Option<u32> = Some(7);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 1, 2), (4, 1, 4)];
    fn low(b: usize, g: usize) -> Position {
        nibbles(8 + 16 * b, g)
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let byte = |i: usize| L::load_u8(side.add(HALVES + BYTES * i));
            let low = L::and(L::shr(byte(2 + b / 2), 4 * (b % 2) as u32), L::splat_i32(15));
            let high = L::and(L::shr(byte(b / 4), 2 * (b % 4) as u32), L::splat_i32(3));
            let scale = L::to_f32(L::sub(L::or(low, L::shl(high, 4)), L::splat_i32(32)));
            let scale = L::mul(L::load_f16(side), scale);
            Scales::new(scale, scale)
        }
    }
});

/// Half the value of E4M3 numbers without a sign, whose NaN counts as zero.
///
/// # Safety
/// The conditions of `Lanes` hold; `p` points to the 16 rows' bytes.
#[inline(always)]
unsafe fn half_of_e4m3<L: Lanes>(p: *const u8) -> L::Floats {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = L::and(L::load_u8(p), L::splat_i32(127));
        // Subnormal numbers have the exponent of the smallest normal ones, without their eight eighths.
        let above_least = L::max(L::sub(L::shr(bits, 3), L::splat_i32(1)), L::splat_i32(0));
        let eighths = L::sub(bits, L::shl(above_least, 3));
        // 2^-10 of the least exponent: that of E4M3, 2^-6, for eighths and halved. Below NaN, `bits - 127` is
        // negative, so that its upper bits are ones; of NaN none is.
        let power = L::shl(L::sub(above_least, L::splat_i32(10 - 127)), 23);
        let power = L::and(power, L::sub(bits, L::splat_i32(127)));
        L::mul(L::to_f32(eighths), L::as_f32(power))
    }
}

/// E2M1 values under an E4M3 scale of 16.
pub(super) struct Nvfp4;

impl Format for Nvfp4 {
    const TYPE: GgmlType = GgmlType::NVFP4;
    const LOW: u32 = 4;
    const TABLE: Option<[u8; 16]> = Some(E2M1_TABLE);
    const MAX_CODE: u8 = 31;
    const OFFSET: Option<u32> = Some(4);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 1, 4)];
    /// The first eight of 16 elements are low nibbles, the others high ones.
    fn low(b: usize, g: usize) -> Position {
        Position { byte: 4 + 16 * b + 8 * (g / 4) + 4 * (g % 2), shift: 4 * (g / 2 % 2) as u32 }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise; there are four scales for two blocks.
        unsafe {
            let at = side.add(2 * b * BYTES);
            let scale = [half_of_e4m3::<L>(at), half_of_e4m3::<L>(at.add(BYTES))];
            Scales { scale, min: scale }
        }
    }
}

format!(Q1_0 {
    const LOW: u32 = 1;
    const LOW_BITS_ADJACENT: bool = true;
    const MIN: bool = true;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1)];
    fn low(b: usize, g: usize) -> Position {
        Position { byte: 2 + 4 * b + g / 2, shift: 4 * (g % 2) as u32 }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, _b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            // Codes of 0 and 1 stand for -d and d.
            let d = L::load_f16(side);
            Scales::new(L::add(d, d), L::mul(d, L::splat_f32(-1.0)))
        }
    }
});
