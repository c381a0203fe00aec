//! The operations of a step: the few that every device has to have, and fusions of them, which a device overrides where
//! one launch is cheaper than several.
//!
//! Buffers are row-major f32 `[rows, cols]`; an op handles the rows that its arguments name and writes only its output.
//! A result row depends on its own inputs alone, bit for bit: never on how many rows were computed with it (batch
//! invariance). Every op begins with its arguments' `validate`.

use super::Backend;
use super::op_args::{
    Activate, AddNorm, AddRows, Attention, CopyBlocks, DeltaNet, Embed, GateColumns, GateRows, GatedActivation,
    GatherRows, HeadProducts, JoinRows, Linear, Mamba2, MixExperts, NormExperts, NormGatedLinear, NormInPlace,
    NormLinear, NormRows, RopeAndStore, RopeAndStoreLatent, RopeAngles, RopeAttention, ScaleLogits, ShortConvolution,
};
use crate::Result;

/// The ops that every device has within a step. The batch is the step's own: no op is told of it again.
pub trait Ops<B: Backend> {
    /// Rows of tokens that the ops compute: the batch's, or more where the device records the step for every batch up
    /// to a size.
    fn num_tokens(&self) -> usize;

    /// Rows of logits that the ops compute: those that the batch wants, or more, as above.
    fn num_logits(&self) -> usize;

    /// Returns an error where the step is not to go on. Asked between layers: once an interrupt is due, ops leave out
    /// work, so what comes after takes next to no time.
    ///
    /// # Errors
    /// `Error::Interrupted`.
    fn check_interrupt(&self) -> Result<()>;

    /// `out[i] = scale * table[token_ids[i]]` for the step's tokens.
    fn embed(&mut self, args: Embed<'_, B>) -> Result<()>;

    /// `out[i] += table[row of token i]`, the table being one of positions, or of the texts of a pair.
    fn add_rows(&mut self, args: AddRows<'_, B>) -> Result<()>;

    /// `out = x / rms(x) * weight + bias`, or, as the norm's kind says, the same of `x - mean(x)`.
    fn norm_rows(&mut self, args: NormRows<'_, B>) -> Result<()>;

    /// `x = norm(x)`, the norm as in `norm_rows`.
    fn norm_in_place(&mut self, args: NormInPlace<'_, B>) -> Result<()>;

    /// `out = factor * (out + norm(x))`, the norm as in `norm_rows`.
    fn add_norm(&mut self, args: AddNorm<'_, B>) -> Result<()>;

    /// `out[r] = matrix · x[r] (+ bias)`, or that added to what `out[r]` holds; `out` has one column per row of the
    /// stacked matrix.
    fn linear(&mut self, args: Linear<'_, B>) -> Result<()>;

    /// `out[r][i] = act(x[r][i])`.
    fn activation(&mut self, args: Activate<'_, B>) -> Result<()>;

    /// `out[r][i] = act(gate_up[r][i]) * gate_up[r][cols + i]` with `cols` output columns; `Activation` says what else
    /// an activation makes of the two.
    fn gated_activation(&mut self, args: GatedActivation<'_, B>) -> Result<()>;

    /// `out[r] *= sigmoid(weight · norm(x[r]))`: each row by one number.
    fn gate_rows(&mut self, args: GateRows<'_, B>) -> Result<()>;

    /// `out[r][i] = act(gate[r][i]) * x[r][first + i]`, combined as in `gated_activation`.
    fn gate_columns(&mut self, args: GateColumns<'_, B>) -> Result<()>;

    /// `out[r] = sum_e weight_e * down_e · (act(gate_e · x[r]) * (up_e · x[r]))` over the experts that the router
    /// chooses for the row (or for the row of another buffer), as `ExpertSpec` says, or that added to what `out[r]`
    /// holds.
    fn experts(&mut self, args: MixExperts<'_, B>) -> Result<()>;

    /// cos and sin of every rotated pair for the step's positions: `out[i] = [cos; num_pairs] ++ [sin; num_pairs]`,
    /// each times the RoPE's magnitude.
    fn rope_angles(&mut self, args: RopeAngles<'_, B>) -> Result<()>;

    /// q/k norms (where given) and RoPE on q and k, in place in the stacked `qkv`; stores k and v into the cache at the
    /// group's `slot_mapping`. Of rows that hold q alone nothing is stored.
    fn rope_and_store_kv(&mut self, args: RopeAndStore<'_, B>) -> Result<()>;

    /// `out[r][h] = matrix_h · x[r][h]`: of each head its own product.
    fn head_products(&mut self, args: HeadProducts<'_, B>) -> Result<()>;

    /// Completes the rows of latent attention: each head of q gets its rotated elements behind the absorbed ones; the
    /// norm of the latent and behind it the key, with RoPE, are stored as one row of the cache, at the group's
    /// `slot_mapping`. A temperature is a factor on the whole of each query.
    fn rope_and_store_latent(&mut self, args: RopeAndStoreLatent<'_, B>) -> Result<()>;

    /// Attention of the step's q rows over the paged cache; any mix of query lengths. It is causal, and where the KV
    /// layer is of a sliding window, a token attends to the last tokens of the window alone, itself among them; or it
    /// goes in both directions, as the layer's kind says, over the tokens that the cache has by then. The result is
    /// multiplied by the sigmoids of the rows' gates, where they have some.
    fn attention(&mut self, args: Attention<'_, B>) -> Result<()>;

    /// A gated delta net over the step's sequences, each from the state that the batch names to those that it is to
    /// keep. In the order of the tokens: q, k and v go through a causal convolution and SiLU; q and k are divided by
    /// their lengths; with `beta = sigmoid(first gate)` and `g = exp(decay * softplus(second gate + bias))`, the state
    /// S of each value head becomes `g S + beta k (v - g S^T k)^T`; the output is the RMS norm of `S^T q / sqrt(key
    /// size)` over each head, times its weights and `silu(z)`.
    fn delta_net(&mut self, args: DeltaNet<'_, B>) -> Result<()>;

    /// A Mamba-2 mixer over the step's sequences, with states as in `delta_net`. In the order of the tokens: x, B and C
    /// go through a causal convolution with bias and SiLU; with `t = softplus(time step + bias)`, the state S of each
    /// head becomes `exp(t decay) S + B (t x)^T`, and `y = S^T C + skip x`; the output is the RMS norm of `y silu(z)`
    /// over each group, times its weights.
    fn mamba2(&mut self, args: Mamba2<'_, B>) -> Result<()>;

    /// `out[r] = [left[r] | right[r]]`; with states `[left[r] | right[r - 1]]`, where of each sequence's first row what
    /// its state holds takes the place of the row before, zeros at its beginning, and the state becomes its last row.
    fn join_rows(&mut self, args: JoinRows<'_, B>) -> Result<()>;

    /// A short convolution over the step's sequences, with states as in `delta_net`: `out = C convolution(B x)`, all
    /// products element by element.
    fn short_convolution(&mut self, args: ShortConvolution<'_, B>) -> Result<()>;

    /// `logits = cap(scale * logits)` in place, `cap(x) = softcap * tanh(x / softcap)` where the model has it.
    fn scale_logits(&mut self, args: ScaleLogits<'_, B>) -> Result<()>;

    /// `out[i] = x[logits_indices[i]]`: the rows whose logits the step wants.
    fn gather_rows(&mut self, args: GatherRows<'_, B>) -> Result<()>;

    /// Executes the step's copy-on-write copies of a KV group on one of its layers.
    fn copy_blocks(&mut self, args: CopyBlocks<'_, B>) -> Result<()>;
}

/// Chains of ops that a device may do at once. It may leave anything in the buffers between them.
pub trait Fusions<B: Backend>: Ops<B> {
    /// `out = linear(matrix, norm(x))`, without a norm `linear(matrix, x)`.
    fn norm_linear(&mut self, args: NormLinear<'_, B>) -> Result<()> {
        args.validate()?;
        let NormLinear { x, norm, matrix, rows, normed, out } = args;
        let Some(norm) = norm else {
            return self.linear(Linear { x, matrix, rows, out, add: false });
        };
        self.norm_rows(NormRows { x, norm, rows, out: normed })?;
        self.linear(Linear { x: normed, matrix, rows, out, add: false })
    }

    /// `out = gated_activation(linear(gate_up, norm(x)))`, the norm as in `norm_linear`.
    fn norm_gated_linear(&mut self, args: NormGatedLinear<'_, B>) -> Result<()> {
        args.validate()?;
        let cols = args.cols();
        let NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out } = args;
        self.norm_linear(NormLinear { x, norm, matrix: gate_up, rows, normed, out: products })?;
        self.gated_activation(GatedActivation { gate_up: products, activation, rows, cols, out })
    }

    /// `residual += experts(norm(residual))`.
    fn norm_experts(&mut self, args: NormExperts<'_, B>) -> Result<()> {
        args.validate()?;
        let NormExperts { norm, experts, rows, normed, work, residual } = args;
        self.norm_rows(NormRows { x: residual, norm, rows, out: normed })?;
        self.experts(MixExperts { x: normed, routed: None, experts, rows, work, out: residual, add: true })
    }

    /// `rope_and_store_kv`, then `attention` over the cache, the new tokens included.
    fn rope_attention(&mut self, args: RopeAttention<'_, B>) -> Result<()> {
        let RopeAttention { qkv, layout, rotation, scoring, sinks, group, kv, out } = args;
        self.rope_and_store_kv(RopeAndStore { qkv: &mut *qkv, layout, rotation, group, kv: &mut *kv })?;
        self.attention(Attention { qkv, layout, scoring, sinks, group, kv, out })
    }
}
