//! Activations quantized to 8 bits: blocks of 32 with one f32 scale, in the layout of the micro-kernel.
//!
//! The kernel multiplies groups of up to 16 rows. Within a group, the blocks of all rows with the same `k` are adjacent
//! (`[block][row]`), so the kernel reads memory sequentially. `kernels::quantize` has the quantizer.

/// Elements per quantization block, which is also the kernel's step along `k`.
pub const BLOCK: usize = 32;
/// Rows of a full group.
pub const GROUP: usize = 16;

/// 32 activations `x[i] ≈ scale * quants[i]`. The sums are for weights with an offset or a minimum. A block fills one
/// cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Q8Block {
    pub quants: [i8; BLOCK],
    pub scale: f32,
    /// `scale * Σ quants`, over all 32 and over each half.
    pub sum: f32,
    pub half_sums: [f32; 2],
    /// `-Σ quants`, over all 32 and over each half. They are negated, because kernels start from `offset * -Σ`.
    pub neg_quant_sum: i32,
    pub neg_quant_half_sums: [i32; 2],
    pub padding: i32,
}

impl Q8Block {
    pub const ZERO: Self = Self {
        quants: [0; BLOCK],
        scale: 0.0,
        sum: 0.0,
        half_sums: [0.0; 2],
        neg_quant_sum: 0,
        neg_quant_half_sums: [0; 2],
        padding: 0,
    };
}

/// Returns the rows that a group of `n` occupies: the next size for which a micro-kernel exists.
pub fn padded_group(n: usize) -> usize {
    match n {
        0..=2 => n.max(1),
        3..=4 => 4,
        5..=8 => 8,
        9..=12 => 12,
        _ => 16,
    }
}
