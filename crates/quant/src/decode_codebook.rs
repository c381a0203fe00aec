//! Formats whose numbers index a table: IQ4, MXFP4 and NVFP4 (one element each), IQ3, IQ2 and IQ1 (four or eight at
//! once).

use super::codebooks::{self, even_signs};
use super::{half_at, nibble, u16_at, u32_at};

/// Decodes nibbles: the low ones are the first 16 elements, the high ones the rest.
fn sixteen_levels(scale: f32, levels: &[i8; 16], quants: &[u8], out: &mut [f32; 32]) {
    for (j, q) in quants.iter().enumerate() {
        out[j] = scale * f32::from(levels[usize::from(q & 15)]);
        out[j + 16] = scale * f32::from(levels[usize::from(q >> 4)]);
    }
}

/// d (f16), 16 bytes of nibbles.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    sixteen_levels(half_at(block, 0), &codebooks::IQ4, &block[2..], out);
}

/// d, 16 bits of upper scale bits, 4 bytes of scale nibbles, 128 of nibbles; sub-blocks of 32, scales less 32.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high) = (half_at(block, 0), u16_at(block, 2));
    for (sub, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = nibble(&block[4..8], sub) | (((high >> (2 * sub)) & 3) << 4) as u8;
        let scale = d * (f32::from(scale) - 32.0);
        sixteen_levels(scale, &codebooks::IQ4, &block[8 + sub * 16..24 + sub * 16], values);
    }
}

/// A power of two as E8M0 (bias 127), then 16 bytes of E2M1 nibbles (OCP Microscaling Formats v1.0). The table holds
/// doubled values, so the scale is 2^(e − 128), which is below the smallest normal f32 for e < 2.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let exponent = u32::from(block[0]);
    let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
    sixteen_levels(f32::from_bits(bits), &codebooks::E2M1_DOUBLED, &block[1..], out);
}

/// Returns half of an unsigned E4M3 number. The NaN code counts as zero.
fn half_of_e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    match (exponent, fraction) {
        (15, 7) => 0.0,
        // Subnormal: eighths of 2^-6.
        (0, _) => fraction as f32 / 1024.0,
        // The bias is 7 there and 127 here.
        _ => f32::from_bits((exponent + 119) << 23 | fraction << 20),
    }
}

/// Decodes 4 unsigned E4M3 scales (bias 7) and 32 bytes of E2M1 nibbles. A sub-block has 16 values in 8 bytes: the
/// first half in low nibbles, the second half in high nibbles. The table has doubled values, so the scale is halved.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (sub, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half_of_e4m3(block[sub]);
        for (j, q) in block[4 + 8 * sub..12 + 8 * sub].iter().enumerate() {
            values[j] = scale * f32::from(codebooks::E2M1_DOUBLED[usize::from(q & 15)]);
            values[j + 8] = scale * f32::from(codebooks::E2M1_DOUBLED[usize::from(q >> 4)]);
        }
    }
}

/// Writes `scale · ±point` for the points of one or two codebook entries. Bit `i` of `signs` negates element `i`.
fn signed<'a>(scale: f32, points: impl Iterator<Item = &'a i8>, signs: u8, out: &mut [f32; 8]) {
    for (i, (value, point)) in out.iter_mut().zip(points).enumerate() {
        let point = if (signs >> i) & 1 == 1 { -point } else { *point };
        *value = scale * f32::from(point);
    }
}

/// d, then for each 32 elements four 8-bit indices and a word: four 7-bit sign indices, a 4-bit scale on top.
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (part, l) = (2 + g / 4 * 8, g % 4);
        let word = u32_at(block, part + 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        let entry = &codebooks::IQ2_XXS[usize::from(block[part + l])];
        signed(scale, entry.iter(), even_signs(word >> (7 * l)), values);
    }
}

/// d, 32 words (9-bit index, 7-bit sign index), 8 bytes of scale nibbles for each 16 elements.
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 2 + 2 * g);
        let scale = d * (0.5 + f32::from(nibble(&block[66..74], g / 2))) * 0.25;
        let entry = &codebooks::IQ2_XS[usize::from(word & 511)];
        signed(scale, entry.iter(), even_signs(u32::from(word >> 9)), values);
    }
}

/// d, 32 low index bytes, 32 sign bytes, 8 bytes of upper index bit pairs, 8 of scale nibbles for each 16 elements.
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = usize::from(block[66 + g / 4] >> (2 * (g % 4))) & 3;
        let scale = d * (0.5 + f32::from(nibble(&block[74..82], g / 2))) * 0.25;
        let entry = &codebooks::IQ2_S[usize::from(block[2 + g]) | (high << 8)];
        signed(scale, entry.iter(), block[34 + g], values);
    }
}

/// d, 64 indices of four elements, then for each 32 elements a word: four 7-bit sign indices, a 4-bit scale on top.
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u32_at(block, 66 + g / 4 * 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let entry = |k: usize| codebooks::IQ3_XXS[usize::from(block[2 + k])].iter();
        signed(scale, entry(2 * g).chain(entry(2 * g + 1)), even_signs(word >> (7 * (g % 4))), values);
    }
}

/// d, 64 low index bytes, 8 bytes of ninth index bits, 32 sign bytes, 4 bytes of scale nibbles for each 32 elements.
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * (1.0 + 2.0 * f32::from(nibble(&block[106..110], g / 4)));
        let entry = |k: usize| {
            let ninth = usize::from(block[66 + k / 8] >> (k % 8)) & 1;
            codebooks::IQ3_S[usize::from(block[2 + k]) | (ninth << 8)].iter()
        };
        signed(scale, entry(2 * g).chain(entry(2 * g + 1)), block[74 + g], values);
    }
}

/// The offset that IQ1 adds to or subtracts from each point, so that a level of zero is not wasted.
const IQ1_DELTA: f32 = 0.125;

fn shifted(scale: f32, index: usize, negative: bool, out: &mut [f32; 8]) {
    let delta = if negative { -IQ1_DELTA } else { IQ1_DELTA };
    for (value, point) in out.iter_mut().zip(&codebooks::IQ1[index]) {
        *value = scale * (f32::from(*point) + delta);
    }
}

/// d, 32 low index bytes, then for each 32 elements a word: four upper index triples, a 3-bit scale, the delta's sign.
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 34 + g / 4 * 2);
        let scale = d * f32::from(2 * ((word >> 12) & 7) + 1);
        let high = usize::from(word >> (3 * (g % 4))) & 7;
        shifted(scale, usize::from(block[2 + g]) | (high << 8), word & 0x8000 != 0, values);
    }
}

/// 32 low index bytes, 16 bytes of nibbles (upper index triple, the delta's sign), four words of four 3-bit scales for
/// 16 elements each. The top nibbles of those words, the lowest first, make up d.
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let words = [0, 1, 2, 3].map(|i| u16_at(block, 48 + 2 * i));
    let d = words.iter().enumerate().fold(0, |bits, (i, word)| bits | ((word >> 12) << (4 * i)));
    let d = half::f16::from_bits(d).to_f32();
    for (g, values) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let sub = g / 2;
        let scale = d * f32::from(2 * ((words[sub / 4] >> (3 * (sub % 4))) & 7) + 1);
        let upper = nibble(&block[32..48], g);
        shifted(scale, usize::from(block[g]) | (usize::from(upper & 7) << 8), upper & 8 != 0, values);
    }
}
