//! The formats whose codes are computed instead of extracted from planes. Their codes are indices into codebooks of
//! four or eight elements (IQ1, IQ2, IQ3), or trits of a base-three fraction (TQ1_0). Layouts are those of ggml's
//! `ggml-common.h`, as decoded in `quant::decode_codebook` and `quant::decode_basic`.
//!
//! All bytes of their GGUF blocks are side bytes, in units of one, two or four. `codes` computes the codes of a block
//! of 32 from them. Signs turn a codebook's element `v` into the code `64 + v` or `64 - v`.

use super::formats::{BYTES, Format, HALVES, Scales, format};
use super::lanes::{Lanes, unroll};
use rocmforge_quant::{GgmlType, codebooks as tables};

/// Bytes of a four-byte unit for 16 rows: a cache line.
const WORDS: usize = 64;

/// The codes of IQ1 in eighths of the scale, above an offset of 16. Each is a point plus an eighth.
static IQ1_CODES: [[i8; 8]; 2048] = {
    let mut codes = tables::IQ1;
    let mut n = 0;
    while n < codes.len() {
        let mut i = 0;
        while i < 8 {
            codes[n][i] = 8 * codes[n][i] + 17;
            i += 1;
        }
        n += 1;
    }
    codes
};

/// Returns bits `first..first + count` of each lane.
///
/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
unsafe fn field<L: Lanes>(v: L::Ints, first: u32, count: u32) -> L::Ints {
    // SAFETY: the caller's promise.
    unsafe { L::and(L::shr(v, first), L::splat_i32((1 << count) - 1)) }
}

/// Returns the eight sign bits of a 7-bit index. The eighth makes the number of negative signs even.
///
/// # Safety
/// The conditions of `Lanes` hold; the lanes of `index` are below 128.
#[inline(always)]
unsafe fn even_signs<L: Lanes>(index: L::Ints) -> L::Ints {
    /// Bit 7 is set if the number of ones in four bits is odd.
    const ODD: [u8; 16] = [0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0];
    // SAFETY: the caller's promise; the bytes above the lowest are zero, and the table maps zero to zero.
    unsafe {
        let folded = L::and(L::xor(index, L::shr(index, 4)), L::splat_i32(15));
        L::or(index, L::as_ints(L::lookup(L::as_bytes(folded), &ODD)))
    }
}

/// Returns the codes of eight elements of 16 rows: the entries at `index` with the signs of the lanes' lowest eight
/// bits.
///
/// # Safety
/// The conditions of `Lanes` hold; the lanes of `index` are below `N`.
#[inline(always)]
unsafe fn signed_eight<L: Lanes, const N: usize>(
    table: &[[i8; 8]; N],
    index: L::Ints,
    signs: L::Ints,
) -> [L::Bytes; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = L::entries_of_eight(table, index);
        [L::signed::<0>(first, signs), L::signed::<4>(second, signs)]
    }
}

/// Returns the codes of eight elements likewise, from two entries of four.
///
/// # Safety
/// The conditions of `Lanes` hold; the lanes of `indices` are below `N`.
#[inline(always)]
unsafe fn signed_fours<L: Lanes, const N: usize>(
    table: &[[i8; 4]; N],
    indices: [L::Ints; 2],
    signs: L::Ints,
) -> [L::Bytes; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = [L::entries_of_four(table, indices[0]), L::entries_of_four(table, indices[1])];
        [L::signed::<0>(first, signs), L::signed::<4>(second, signs)]
    }
}

/// Returns `scale · (2 · n + 1)`, the form of the scales of all these formats.
///
/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
unsafe fn odd<L: Lanes>(scale: L::Floats, n: L::Ints) -> L::Floats {
    // SAFETY: the caller's promise.
    unsafe { L::mul(scale, L::to_f32(L::or(L::shl(n, 1), L::splat_i32(1)))) }
}

/// Decodes the scale of a block from the upper four bits of a word; its other bits are signs. The smallest scale is
/// `unit` times the file's scale.
///
/// # Safety
/// The conditions of `Format::scales` hold; `words` points to the 16 rows' words.
#[inline(always)]
unsafe fn scale_of_words<L: Lanes>(d: L::Floats, unit: f32, words: *const u8) -> Scales<L> {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = odd::<L>(L::mul(d, L::splat_f32(unit)), L::shr(L::as_ints(L::load(words)), 28));
        Scales::new(scale, scale)
    }
}

/// Decodes one scale for each half of block `b`, from the two nibbles of a byte.
///
/// # Safety
/// The conditions of `Format::scales` hold; `nibbles` points to the 16 rows' bytes.
#[inline(always)]
unsafe fn scales_of_halves<L: Lanes>(d: L::Floats, nibbles: *const u8) -> Scales<L> {
    // SAFETY: the caller's promise.
    unsafe {
        let d = L::mul(d, L::splat_f32(0.125));
        let nibbles = L::load_u8(nibbles);
        let scale = [odd::<L>(d, field::<L>(nibbles, 0, 4)), odd::<L>(d, field::<L>(nibbles, 4, 4))];
        Scales { scale, min: scale }
    }
}

/// Implements a format. `$codes` computes the two groups of four of eight elements; `i` counts four such pairs in block
/// `b`.
macro_rules! computed {
    ($name:ident { $($item:item)* } codes($lanes:ident, $side:ident, $b:ident, $i:ident) $codes:block) => {
        #[allow(non_camel_case_types)] // ggml's own names
        pub(super) struct $name;
        impl Format for $name {
            const TYPE: GgmlType = GgmlType::$name;
            const LOW: u32 = 0;
            $($item)*
            #[inline(always)]
            unsafe fn codes<$lanes: Lanes>($side: *const u8, _planes: *const u8, $b: usize) -> [$lanes::Bytes; 8] {
                // SAFETY: the caller's promise: the side bytes are those of `SIDE`, and an index has as many bits as
                // its codebook needs.
                unsafe {
                    let mut out = [$lanes::as_bytes($lanes::splat_i32(0)); 8];
                    unroll!($i in 0..4, {
                        let [first, second] = $codes;
                        (out[2 * $i], out[2 * $i + 1]) = (first, second);
                    });
                    out
                }
            }
        }
    };
}

computed!(IQ2_XXS {
    const MAX_CODE: u8 = 127;
    const OFFSET: Option<u32> = Some(6);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 16)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scale_of_words(L::load_f16(side), 0.125, side.add(HALVES + WORDS * (2 * b + 1))) }
    }
} codes(L, side, b, i) {
    let indices = L::as_ints(L::load(side.add(HALVES + WORDS * 2 * b)));
    let word = L::as_ints(L::load(side.add(HALVES + WORDS * (2 * b + 1))));
    let signs = even_signs::<L>(field::<L>(word, 7 * i as u32, 7));
    signed_eight::<L, _>(&tables::IQ2_XXS, field::<L>(indices, 8 * i as u32, 8), signs)
});

computed!(IQ2_XS {
    const MAX_CODE: u8 = 127;
    const OFFSET: Option<u32> = Some(6);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 16), (66, 1, 8)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scales_of_halves(L::load_f16(side), side.add(HALVES + 16 * WORDS + BYTES * b)) }
    }
} codes(L, side, b, i) {
    // Two 16-bit words in a unit, each with the index and the index of the signs.
    let words = L::as_ints(L::load(side.add(HALVES + WORDS * (2 * b + i / 2))));
    let first = 16 * (i as u32 % 2);
    let signs = even_signs::<L>(field::<L>(words, first + 9, 7));
    signed_eight::<L, _>(&tables::IQ2_XS, field::<L>(words, first, 9), signs)
});

computed!(IQ2_S {
    const MAX_CODE: u8 = 127;
    const OFFSET: Option<u32> = Some(6);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 16), (66, 1, 16)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scales_of_halves(L::load_f16(side), side.add(HALVES + 16 * WORDS + BYTES * (8 + b))) }
    }
} codes(L, side, b, i) {
    let low = L::as_ints(L::load(side.add(HALVES + WORDS * b)));
    let signs = L::as_ints(L::load(side.add(HALVES + WORDS * (8 + b))));
    let high = field::<L>(L::load_u8(side.add(HALVES + 16 * WORDS + BYTES * b)), 2 * i as u32, 2);
    let index = L::or(field::<L>(low, 8 * i as u32, 8), L::shl(high, 8));
    signed_eight::<L, _>(&tables::IQ2_S, index, L::shr(signs, 8 * i as u32))
});

computed!(IQ3_XXS {
    const MAX_CODE: u8 = 127;
    const OFFSET: Option<u32> = Some(6);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 24)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe { scale_of_words(L::load_f16(side), 0.25, side.add(HALVES + WORDS * (16 + b))) }
    }
} codes(L, side, b, i) {
    let indices = L::as_ints(L::load(side.add(HALVES + WORDS * (2 * b + i / 2))));
    let word = L::as_ints(L::load(side.add(HALVES + WORDS * (16 + b))));
    let signs = even_signs::<L>(field::<L>(word, 7 * i as u32, 7));
    let first = 16 * (i as u32 % 2);
    let indices = [field::<L>(indices, first, 8), field::<L>(indices, first + 8, 8)];
    signed_fours::<L, _>(&tables::IQ3_XXS, indices, signs)
});

computed!(IQ3_S {
    const MAX_CODE: u8 = 127;
    const OFFSET: Option<u32> = Some(6);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 16), (66, 1, 8), (74, 4, 8), (106, 1, 4)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let nibbles = L::load_u8(side.add(HALVES + 24 * WORDS + BYTES * (8 + b / 2)));
            let scale = if b.is_multiple_of(2) { field::<L>(nibbles, 0, 4) } else { field::<L>(nibbles, 4, 4) };
            let scale = odd::<L>(L::load_f16(side), scale);
            Scales::new(scale, scale)
        }
    }
} codes(L, side, b, i) {
    let low = L::as_ints(L::load(side.add(HALVES + WORDS * (2 * b + i / 2))));
    let ninth = L::load_u8(side.add(HALVES + 16 * WORDS + BYTES * b));
    let signs = L::as_ints(L::load(side.add(HALVES + 16 * WORDS + 8 * BYTES + WORDS * b)));
    let (first, bit) = (16 * (i as u32 % 2), 2 * i as u32);
    let indices = [
        L::or(field::<L>(low, first, 8), L::shl(field::<L>(ninth, bit, 1), 8)),
        L::or(field::<L>(low, first + 8, 8), L::shl(field::<L>(ninth, bit + 1, 1), 8)),
    ];
    signed_fours::<L, _>(&tables::IQ3_S, indices, L::shr(signs, 8 * i as u32))
});

/// Returns the codes of eight elements of IQ1. The index has eight low bits and three high bits. Another bit lowers all
/// eight codes by a quarter of the scale: from an eighth above their points to an eighth below.
///
/// # Safety
/// The conditions of `Lanes` hold; lanes are below 256, 8 and 2.
#[inline(always)]
unsafe fn iq1_codes<L: Lanes>(low: L::Ints, high: L::Ints, lowered: L::Ints) -> [L::Bytes; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        // Subtracts two from each byte of a lane. No byte is below nine, so none borrows from the next.
        let lower = L::and(L::sub(L::splat_i32(0), lowered), L::splat_i32(0x0202_0202));
        L::entries_of_eight(&IQ1_CODES, L::or(low, L::shl(high, 8)))
            .map(|codes| L::as_bytes(L::sub(L::as_ints(codes), lower)))
    }
}

computed!(IQ1_S {
    const MAX_CODE: u8 = 25;
    const OFFSET: Option<u32> = Some(4);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 2, 1), (2, 4, 8), (34, 2, 8)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let word = L::load_u16(side.add(HALVES + 8 * WORDS + HALVES * b));
            let d = L::mul(L::load_f16(side), L::splat_f32(0.125));
            let scale = odd::<L>(d, field::<L>(word, 12, 3));
            Scales::new(scale, scale)
        }
    }
} codes(L, side, b, i) {
    let low = L::as_ints(L::load(side.add(HALVES + WORDS * b)));
    let word = L::load_u16(side.add(HALVES + 8 * WORDS + HALVES * b));
    iq1_codes::<L>(field::<L>(low, 8 * i as u32, 8), field::<L>(word, 3 * i as u32, 3), L::shr(word, 15))
});

computed!(IQ1_M {
    const MAX_CODE: u8 = 25;
    const OFFSET: Option<u32> = Some(4);
    const SCALES: usize = 2;
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 4, 8), (32, 1, 16), (48, 2, 4)];
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let word = |i: usize| L::load_u16(side.add(8 * WORDS + 16 * BYTES + HALVES * i));
            // The f16 consists of the upper nibbles of the words, lowest first.
            let nibble = |i: usize| L::shl(L::shr(word(i), 12), 4 * i as u32);
            let bits = L::or(L::or(nibble(0), nibble(1)), L::or(nibble(2), nibble(3)));
            let sign = L::shl(L::shr(bits, 15), 31);
            // An f32 has three more exponent bits and a bias larger by 112. The scales are in eighths.
            let magnitude = L::shl(L::and(bits, L::splat_i32(0x7fff)), 13);
            let d = L::mul(L::as_f32(L::or(sign, magnitude)), L::splat_f32(f32::from_bits((127 + 112 - 3) << 23)));
            let word = word(b / 2);
            let word = if b.is_multiple_of(2) { word } else { L::shr(word, 6) };
            let scale = [odd::<L>(d, field::<L>(word, 0, 3)), odd::<L>(d, field::<L>(word, 3, 3))];
            Scales { scale, min: scale }
        }
    }
} codes(L, side, b, i) {
    let low = L::as_ints(L::load(side.add(WORDS * b)));
    let nibbles = L::load_u8(side.add(8 * WORDS + BYTES * (2 * b + i / 2)));
    let first = 4 * (i as u32 % 2);
    iq1_codes::<L>(field::<L>(low, 8 * i as u32, 8), field::<L>(nibbles, first, 3), field::<L>(nibbles, first + 3, 1))
});

format!(TQ1_0 {
    const LOW: u32 = 0;
    const MAX_CODE: u8 = 2;
    const OFFSET: Option<u32> = Some(0);
    const SIDE: &'static [(usize, usize, usize)] = &[(0, 4, 13), (52, 2, 1)];
    /// 160 elements in 32 bytes of five trits, 80 in 16 bytes of five, 16 in four bytes of four. Each of these ranges
    /// starts with the first trits of all its bytes.
    #[inline(always)]
    unsafe fn codes<L: Lanes>(side: *const u8, _planes: *const u8, b: usize) -> [L::Bytes; 8] {
        const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
        // SAFETY: the caller's promise: the side bytes begin with 13 lines.
        unsafe {
            let mut out = [L::as_bytes(L::splat_i32(0)); 8];
            unroll!(g in 0..8, {
                let fours = 8 * b + g;
                let (line, trit) = match fours {
                    0..40 => (fours % 8, fours / 8),
                    40..60 => (8 + fours % 4, (fours - 40) / 4),
                    _ => (12, fours - 60),
                };
                out[g] = L::trits(L::load(side.add(WORDS * line)), POWERS[trit]);
            });
            out
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Lanes>(side: *const u8, _b: usize) -> Scales<L> {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = L::load_f16(side.add(13 * WORDS));
            Scales::new(scale, scale)
        }
    }
});
