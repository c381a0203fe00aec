//! The unpacked codebooks of the IQ formats, and the other tables that blocks index.

use super::grids;

/// Unpacks a codebook: `N` entries of `LEN` elements, each an index of `16 / LEN` bits into `levels`.
const fn unpack<const LEN: usize, const N: usize>(packed: &[u16; N], levels: &[i8]) -> [[i8; LEN]; N] {
    let bits = 16 / LEN;
    let mut entries = [[0; LEN]; N];
    let mut n = 0;
    while n < N {
        let mut i = 0;
        while i < LEN {
            entries[n][i] = levels[(packed[n] >> (bits * i)) as usize & ((1 << bits) - 1)];
            i += 1;
        }
        n += 1;
    }
    entries
}

const LEVELS_IQ2: [i8; 3] = [8, 25, 43];
const LEVELS_IQ1: [i8; 3] = [-1, 0, 1];

pub static IQ2_XXS: [[i8; 8]; 256] = unpack(&grids::IQ2_XXS, &LEVELS_IQ2);
pub static IQ2_XS: [[i8; 8]; 512] = unpack(&grids::IQ2_XS, &LEVELS_IQ2);
pub static IQ2_S: [[i8; 8]; 1024] = unpack(&grids::IQ2_S, &LEVELS_IQ2);
pub static IQ3_XXS: [[i8; 4]; 256] = unpack(&grids::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub static IQ3_S: [[i8; 4]; 512] = unpack(&grids::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
pub static IQ1: [[i8; 8]; 2048] = unpack(&grids::IQ1, &LEVELS_IQ1);

/// The 16 levels of IQ4_NL and IQ4_XS.
pub(super) static IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of E2M1 (OCP Microscaling Formats v1.0, §5.3.3), doubled to be whole; the scale is halved instead.
pub(super) static E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns the eight sign bits of a 7-bit index. The eighth makes the number of negative signs even.
pub(super) const fn even_signs(index: u32) -> u8 {
    let low = (index & 0x7f) as u8;
    low | ((low.count_ones() as u8 & 1) << 7)
}
