//! The operations of a step. `Ops` are the few that every device must implement. `Fusions` combine them, and a device
//! overrides a fusion if one launch is cheaper than several.
//!
//! Buffers are row-major f32 `[rows, cols]`. An op handles the rows that its arguments name and writes only its output.
//! A result row depends on its own inputs alone, bit for bit, and never on the number of rows computed with it (batch
//! invariance). Every op first calls `validate` on its arguments.

use super::Backend;
use super::op_args::{
    Activate, AddNorm, AddRows, Attention, CopyBlocks, DeltaNet, Embed, GateColumns, GateHeads, GateRows,
    GatedActivation, GatherRows, HeadProducts, JoinRows, LevelRows, Linear, Mamba, Mamba2, MambaConvolution,
    MixExperts, NormExperts, NormGatedLinear, NormInPlace, NormLinear, NormRows, RopeAndStore, RopeAndStoreLatent,
    RopeAngles, RopeAttention, ScaleRows, ShortConvolution, Sparsify, Streams,
};
use crate::Result;

/// The ops of a step. They take the batch from the step, so it is not an argument.
pub trait Ops<B: Backend> {
    /// Returns the number of token rows that the ops compute. It exceeds the batch if the device captured the step for
    /// every batch up to a size.
    fn num_tokens(&self) -> usize;

    /// Returns the number of rows of logits that the ops compute, which may also exceed the batch.
    fn num_logits(&self) -> usize;

    /// Fails if the step has to stop. The decoder calls it between layers. Once an interrupt is due, ops skip their
    /// work, so the remaining ops of a layer take almost no time.
    ///
    /// # Errors
    /// `Error::Interrupted`.
    fn check_interrupt(&self) -> Result<()>;

    /// `out[i] = scale * table[token_ids[i]]` for the step's tokens.
    fn embed(&mut self, args: Embed<'_, B>) -> Result<()>;

    /// `out[i] += table[row of token i]`, for a table of positions or of the two texts of a pair.
    fn add_rows(&mut self, args: AddRows<'_, B>) -> Result<()>;

    /// `out = x / rms(x) * weight + bias`; a LayerNorm does this with `x - mean(x)` in place of `x`.
    fn norm_rows(&mut self, args: NormRows<'_, B>) -> Result<()>;

    /// `x = norm(x)`, with a norm as in `norm_rows`.
    fn norm_in_place(&mut self, args: NormInPlace<'_, B>) -> Result<()>;

    /// `out = factor * (out + norm(x))`, with a norm as in `norm_rows`.
    fn add_norm(&mut self, args: AddNorm<'_, B>) -> Result<()>;

    /// `out[r] = matrix · x[r] (+ bias)`, or `out[r] +=` this if `add` is set. `out` has one column per row of the
    /// stacked matrix.
    fn linear(&mut self, args: Linear<'_, B>) -> Result<()>;

    /// `out[r][i] = act(x[r][i])`.
    fn activation(&mut self, args: Activate<'_, B>) -> Result<()>;

    /// `out[r][i] = act(gate_up[r][i]) * gate_up[r][cols + i]` with `cols` output columns. `Activation` lists the
    /// variants that combine the two differently.
    fn gated_activation(&mut self, args: GatedActivation<'_, B>) -> Result<()>;

    /// `out[r] *= sigmoid(weight · norm(x[r]))`, one factor per row.
    fn gate_rows(&mut self, args: GateRows<'_, B>) -> Result<()>;

    /// `out[r][h][i] *= f(gate[r][h])`, one factor per head of a row; `f` is the sigmoid or the softplus.
    fn gate_heads(&mut self, args: GateHeads<'_, B>) -> Result<()>;

    /// `out[r][i] = act(gate[r][i]) * x[r][first + i]`, combined as in `gated_activation`.
    fn gate_columns(&mut self, args: GateColumns<'_, B>) -> Result<()>;

    /// `out[r] = sum_e weight_e * down_e · (act(gate_e · x[r]) * (up_e · x[r]))`, or `out[r] +=` this if `add` is set.
    /// The sum covers the experts that the router chooses for the row as `ExpertSpec` says. The router may read another
    /// buffer than `x`.
    fn experts(&mut self, args: MixExperts<'_, B>) -> Result<()>;

    /// Computes cos and sin of every rotated pair at the step's positions, each times the magnitude of the RoPE:
    /// `out[i] = [cos; num_pairs] ++ [sin; num_pairs]`.
    fn rope_angles(&mut self, args: RopeAngles<'_, B>) -> Result<()>;

    /// Applies the q/k norms, if any, and RoPE to q and k, in place in the stacked `qkv`. Stores k and v in the cache
    /// at the group's `slot_mapping`, unless the rows hold q alone.
    fn rope_and_store_kv(&mut self, args: RopeAndStore<'_, B>) -> Result<()>;

    /// `out[r][h] = matrix_h · x[r][h]`, one product per head.
    fn head_products(&mut self, args: HeadProducts<'_, B>) -> Result<()>;

    /// Completes the rows of latent attention. Each head of q gets its rotated elements after the absorbed ones. The
    /// normed latent and the rotated key are stored as one row of the cache at the group's `slot_mapping`. A
    /// temperature scales whole queries.
    fn rope_and_store_latent(&mut self, args: RopeAndStoreLatent<'_, B>) -> Result<()>;

    /// Computes attention of the step's q rows over the paged cache, for any mix of query lengths. The KV layer's kind
    /// decides whether it is causal, limited to a sliding window or chunk, or bidirectional. A sliding window includes
    /// the token itself. Bidirectional attention covers the tokens in the cache at that time. If the rows have gates,
    /// the result is multiplied by their sigmoids.
    fn attention(&mut self, args: Attention<'_, B>) -> Result<()>;

    /// Computes a gated delta net over the step's sequences. The batch names the state that each sequence starts from
    /// and the states to save. For the tokens in order:
    /// - q, k and v go through a causal convolution and SiLU; q and k are divided by their lengths.
    /// - `beta = sigmoid(first gate)` and `g = exp(decay * softplus(second gate + bias))`.
    /// - The state S of each value head becomes `g S + beta k (v - g S^T k)^T`.
    /// - The output is the RMS norm of `S^T q / sqrt(key size)` over each head, times its weights and `silu(z)`.
    fn delta_net(&mut self, args: DeltaNet<'_, B>) -> Result<()>;

    /// Computes a Mamba-2 mixer over the step's sequences, with states as in `delta_net`. For the tokens in order:
    /// - x, B and C go through a causal convolution with bias and SiLU.
    /// - With `t = softplus(time step + bias)`, the state S of each head becomes `exp(t decay) S + B (t x)^T`.
    /// - `y = S^T C + skip x`.
    /// - The output is the RMS norm of `y silu(z)` over each group, times its weights, or plain `y silu(z)` without a
    ///   norm.
    fn mamba2(&mut self, args: Mamba2<'_, B>) -> Result<()>;

    /// Computes the causal convolution of a Mamba mixer's x over the step's sequences, with bias and SiLU. The states
    /// are read as in `delta_net`; `mamba` saves them.
    fn mamba_convolution(&mut self, args: MambaConvolution<'_, B>) -> Result<()>;

    /// Computes a Mamba mixer over the step's sequences, with states as in `delta_net`, from the convolved x. For the
    /// tokens in order:
    /// - With `t = softplus(time step)` of each channel, row i of the state S becomes `exp(t decay_i) S_i + B_i t x`.
    /// - The output is `(S^T C + skip x) silu(z)`.
    fn mamba(&mut self, args: Mamba<'_, B>) -> Result<()>;

    /// `out[r] = [left[r] | right[r]]`, or with states `[left[r] | right[r - 1]]`. A sequence's first row takes its
    /// state in place of the row before; that is zeros at the beginning of the sequence. The state becomes the last row
    /// of `right`.
    fn join_rows(&mut self, args: JoinRows<'_, B>) -> Result<()>;

    /// Computes a short convolution over the step's sequences, with states as in `delta_net`:
    /// `out = C convolution(B x)`. All products are elementwise.
    fn short_convolution(&mut self, args: ShortConvolution<'_, B>) -> Result<()>;

    /// `x = cap(scale * x)` in place; the cap is optional.
    fn scale_rows(&mut self, args: ScaleRows<'_, B>) -> Result<()>;

    /// Clips the first `cols` columns of rows of `2 * cols`, the gates of a feed-forward: `x = max(0, x - cutoff)`. The
    /// cutoff is the mean of the row's gates plus `deviations` standard deviations (gaussian top-k).
    fn sparsify(&mut self, args: Sparsify<'_, B>) -> Result<()>;

    /// `out[r] = x[r] * rms(like[r]) / rms(x[r])`. The mean square of `x[r]` counts as at least `least`.
    fn level_rows(&mut self, args: LevelRows<'_, B>) -> Result<()>;

    /// Predicts the hidden streams of each token (AltUp, arXiv 2301.13310): `stream_k += sum_j c_kj * stream_j`, with
    /// `c = weight · tanh(scale * routed)`. Stream 0 is `active`, and its prediction is also written to `predicted`.
    fn predict_streams(&mut self, args: Streams<'_, B>) -> Result<()>;

    /// Corrects predicted streams after a layer has changed the active one: `stream_k = prediction_k + (1 + c_k) *
    /// (active - predicted)`, with `c` as in `predict_streams`.
    fn correct_streams(&mut self, args: Streams<'_, B>) -> Result<()>;

    /// `out[i] = x[logits_indices[i]]`: gathers the rows whose logits the step needs.
    fn gather_rows(&mut self, args: GatherRows<'_, B>) -> Result<()>;

    /// Executes the step's copy-on-write copies of a KV group on one of the group's layers.
    fn copy_blocks(&mut self, args: CopyBlocks<'_, B>) -> Result<()>;
}

/// Chains of ops that a device may fuse. Intermediate buffers have undefined contents afterwards.
pub trait Fusions<B: Backend>: Ops<B> {
    /// `out = linear(matrix, norm(x))`, or `linear(matrix, x)` without a norm.
    fn norm_linear(&mut self, args: NormLinear<'_, B>) -> Result<()> {
        args.validate()?;
        let NormLinear { x, norm, matrix, rows, normed, out } = args;
        let Some(norm) = norm else {
            return self.linear(Linear { x, matrix, rows, out, add: false });
        };
        self.norm_rows(NormRows { x, norm, rows, out: normed })?;
        self.linear(Linear { x: normed, matrix, rows, out, add: false })
    }

    /// `out = gated_activation(linear(gate_up, norm(x)))`, with an optional norm as in `norm_linear`.
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

    /// `rope_and_store_kv`, then `attention` over the cache with the new tokens.
    fn rope_attention(&mut self, args: RopeAttention<'_, B>) -> Result<()> {
        let RopeAttention { qkv, layout, rotation, scoring, sinks, biases, group, kv, out } = args;
        self.rope_and_store_kv(RopeAndStore { qkv: &mut *qkv, layout, rotation, group, kv: &mut *kv })?;
        self.attention(Attention { qkv, layout, scoring, sinks, biases, group, kv, out })
    }
}
