//! Activations quantised to 8 bits: blocks of 32 with one f32 scale, laid out for the micro-kernel.
//!
//! Rows go in groups of up to 16 that the kernel multiplies together; within a group the blocks of all rows with the
//! same `k` lie side by side (`[block][row]`), so that the kernel walks memory in a straight line. The quantiser itself
//! is `kernels::quantize`.

/// Elements per quantisation block, also the kernel's step along `k`.
pub(super) const BLOCK: usize = 32;
/// Rows of a full group.
pub(super) const GROUP: usize = 16;

/// 32 activations `x[i] ≈ scale * quants[i]`, in one cache line with the sums that weights with an offset or a
/// minimum need.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Q8Block {
    pub quants: [i8; BLOCK],
    pub scale: f32,
    /// `scale * Σ quants`, over all 32 and over each half.
    pub sum: f32,
    pub half_sums: [f32; 2],
    /// `-Σ quants`, over all 32 and over each half: negated, because kernels start from `offset * -Σ`.
    pub neg_quant_sum: i32,
    pub neg_quant_half_sums: [i32; 2],
    pub padding: i32,
}

impl Q8Block {
    pub(super) const ZERO: Self = Self {
        quants: [0; BLOCK],
        scale: 0.0,
        sum: 0.0,
        half_sums: [0.0; 2],
        neg_quant_sum: 0,
        neg_quant_half_sums: [0; 2],
        padding: 0,
    };
}

/// How many rows a group of `n` occupies: sizes for which a micro-kernel exists.
pub(super) fn padded_group(n: usize) -> usize {
    match n {
        0..=2 => n.max(1),
        3..=4 => 4,
        5..=8 => 8,
        9..=12 => 12,
        _ => 16,
    }
}
