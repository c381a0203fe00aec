//! Plain floats, the formats with one scale (and minimum) of 32 to 128 elements, and the ternary formats.
//!
//! In the 4- and 5-bit formats a byte holds element `j` in its low nibble and element `j + 16` in its high one.

use super::{half_at, u32_at};

pub(super) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(super) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half_at(block, 0);
}

pub(super) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::bf16::from_le_bytes(*block).to_f32();
}

/// d (f16), 16 bytes of nibbles; value = d · (q − 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, q) in block[2..].iter().enumerate() {
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// d, m (f16), 16 bytes of nibbles; value = d · q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, q) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// Returns the 5-bit numbers `j` and `j + 16`: four bits from a nibble, the fifth from bit `j` or `j + 16` of `high`.
fn five_bits(nibbles: u8, high: u32, j: usize) -> (f32, f32) {
    let low = (nibbles & 15) | (((high >> j) & 1) << 4) as u8;
    let upper = (nibbles >> 4) | (((high >> (j + 16)) & 1) << 4) as u8;
    (f32::from(low), f32::from(upper))
}

/// d (f16), 32 fifth bits, 16 bytes of nibbles; value = d · (q − 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (half_at(block, 0), u32_at(block, 2));
    for (j, q) in block[6..].iter().enumerate() {
        let (low, upper) = five_bits(*q, high, j);
        out[j] = d * (low - 16.0);
        out[j + 16] = d * (upper - 16.0);
    }
}

/// d, m (f16), 32 fifth bits, 16 bytes of nibbles; value = d · q + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), u32_at(block, 4));
    for (j, q) in block[8..].iter().enumerate() {
        let (low, upper) = five_bits(*q, high, j);
        out[j] = d * low + m;
        out[j + 16] = d * upper + m;
    }
}

/// d (f16), 32 signed bytes; value = d · q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (value, q) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(*q as i8);
    }
}

/// 48 bytes of five trits and 4 bytes of four, d (f16); value = d · (trit − 1). A byte is a fixed-point fraction in
/// base 3. Multiplying by 3^t moves trit t to the front, and `* 3 >> 8` reads it.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = half_at(block, 52);
    let parts = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
    let bytes_by_trit = parts
        .into_iter()
        .flat_map(|(bytes, trits)| POWERS[..trits].iter().flat_map(move |p| bytes.iter().map(|b| b.wrapping_mul(*p))));
    for (value, fraction) in out.iter_mut().zip(bytes_by_trit) {
        let trit = (u16::from(fraction) * 3) >> 8;
        *value = d * (f32::from(trit) - 1.0);
    }
}

/// 64 bytes of four 2-bit numbers, d (f16); value = d · (q − 1).
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 64);
    for (e, value) in out.iter_mut().enumerate() {
        let q = (block[e / 128 * 32 + e % 32] >> (2 * (e / 32 % 4))) & 3;
        *value = d * (f32::from(q) - 1.0);
    }
}

/// d (f16), 16 bytes of eight bits, the lowest first; value = d, or −d where the bit is clear.
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half_at(block, 0);
    for (e, value) in out.iter_mut().enumerate() {
        *value = if (block[2 + e / 8] >> (e % 8)) & 1 == 1 { d } else { -d };
    }
}

/// d (f16), 16 bytes of four 2-bit numbers, the lowest first; value = d · (q − 1).
pub(super) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = half_at(block, 0);
    for (e, value) in out.iter_mut().enumerate() {
        let q = (block[2 + e / 4] >> (2 * (e % 4))) & 3;
        *value = d * (f32::from(q) - 1.0);
    }
}
