//! The K formats: super-blocks of 256 with 6-bit (or 4-bit, or 8-bit) scales of sub-blocks under one f16 scale.

use super::half_at;

/// Returns the 2-bit number of element `e`: 32 bytes hold 128 elements, 32 of them in each pair of bits.
fn two_bits(bytes: &[u8], e: usize) -> u8 {
    (bytes[e / 128 * 32 + e % 32] >> (2 * (e / 32 % 4))) & 3
}

/// 16 bytes of scale (low nibble) and minimum (high), 64 of 2-bit numbers, d, dmin; sub-blocks of 16.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (sub, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub] & 15);
        let minimum = dmin * f32::from(scales[sub] >> 4);
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(two_bits(quants, sub * 16 + i)) - minimum;
        }
    }
}

/// 32 bytes of third bits, 64 of 2-bit numbers, 12 of 6-bit scales, d; sub-blocks of 16.
/// A third bit that is *clear* subtracts 4. Scales: four low bits in bytes 0..8, two high ones in bytes 8..12.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (third, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (sub, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = (scales[sub % 8] >> (4 * (sub / 8))) & 15;
        let high = (scales[8 + sub % 4] >> (2 * (sub / 4))) & 3;
        let scale = d * (f32::from(low | (high << 4)) - 32.0);
        for (i, value) in values.iter_mut().enumerate() {
            let e = sub * 16 + i;
            let offset = if (third[e % 32] >> (e / 32)) & 1 == 1 { 0.0 } else { 4.0 };
            *value = scale * (f32::from(two_bits(quants, e)) - offset);
        }
    }
}

/// Returns scale and minimum of sub-block `sub` (0..8) of Q4_K and Q5_K, 6 bits each. The first four are the low six
/// bits of bytes 0..4 and 4..8. The top two bits of these bytes complete the nibbles of bytes 8..12 to the last four.
fn scale_and_minimum(packed: &[u8], sub: usize) -> (f32, f32) {
    let (scale, minimum) = match sub.checked_sub(4) {
        None => (packed[sub] & 63, packed[sub + 4] & 63),
        Some(i) => (
            (packed[8 + i] & 15) | ((packed[i] >> 6) << 4), //
            (packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4),
        ),
    };
    (f32::from(scale), f32::from(minimum))
}

/// Returns the 4-bit number `i` of sub-block `sub`: two sub-blocks of 32 share 32 bytes, the even one in the low
/// nibbles.
fn four_bits(bytes: &[u8], sub: usize, i: usize) -> u8 {
    (bytes[sub / 2 * 32 + i] >> (4 * (sub % 2))) & 15
}

/// d, dmin, 12 bytes of scales and minima, 128 of nibbles; sub-blocks of 32.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..144]);
    for (sub, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, sub);
        let (scale, minimum) = (d * scale, dmin * minimum);
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(four_bits(quants, sub, i)) - minimum;
        }
    }
}

/// d, dmin, 12 bytes of scales and minima, 32 of fifth bits (bit `sub` of byte `i`), 128 of nibbles; sub-blocks of 32.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, fifth, quants) = (&block[4..16], &block[16..48], &block[48..176]);
    for (sub, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, sub);
        let (scale, minimum) = (d * scale, dmin * minimum);
        for (i, value) in values.iter_mut().enumerate() {
            let q = four_bits(quants, sub, i) | (((fifth[i] >> sub) & 1) << 4);
            *value = scale * f32::from(q) - minimum;
        }
    }
}

/// 128 bytes of nibbles (64 bytes hold 128 elements), 64 of upper bit pairs, 16 signed scales, d; sub-blocks of 16.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (sub, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub] as i8);
        for (i, value) in values.iter_mut().enumerate() {
            let e = sub * 16 + i;
            let nibble = (low[e / 128 * 64 + e % 64] >> (4 * (e / 64 % 2))) & 15;
            *value = scale * (f32::from(nibble | (two_bits(high, e) << 4)) - 32.0);
        }
    }
}
