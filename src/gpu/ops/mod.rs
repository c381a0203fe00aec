//! The ops of a step: each checks its arguments, chooses formats and queues kernels.
//!
//! SAFETY of every launch below: addresses come from memory whose room for the rows was checked. The backend co-owns
//! all of it, and waits for queued work before it lets go. Everything is queued on one stream, in the order of the ops.
//! The types of `Launcher::launch` ensure that the argument struct is the kernel's.

mod attention;
mod experts;
mod latent;
mod linear;
mod rows;
mod states;
mod streams;

pub(super) use states::{mamba2_pairs_bytes, pairs_bytes as delta_net_pairs_bytes};

pub(super) use experts::most_runs;

use super::GpuBackend;
use super::gpu_backend::gpu_step::GpuStep;
use super::launch::args::Format;
use super::launch::catalog::{CORRECT_STREAMS, PREDICT_STREAMS};
use crate::Result;
use crate::backend::{
    Activate, AddNorm, AddRows, Attention, CopyBlocks, DeltaNet, Embed, Fusions, GateColumns, GateHeads, GateRows,
    GatedActivation, GatherRows, HeadProducts, JoinRows, LevelRows, Linear, Mamba, Mamba2, MambaConvolution,
    MixExperts, NormExperts, NormGatedLinear, NormInPlace, NormLinear, NormRows, Ops, RopeAndStore, RopeAndStoreLatent,
    RopeAngles, RopeAttention, STREAMS, ScaleRows, ShortConvolution, Sparsify, Streams,
};

#[deny(clippy::missing_trait_methods)]
impl Ops<GpuBackend> for GpuStep<'_> {
    fn num_tokens(&self) -> usize {
        self.tokens
    }

    fn num_logits(&self) -> usize {
        self.logits
    }

    /// A step takes milliseconds, and queued work cannot be recalled.
    fn check_interrupt(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&mut self, args: Embed<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        rows::embed(self, args)
    }

    fn add_rows(&mut self, args: AddRows<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        rows::add_rows(self, args)
    }

    fn norm_in_place(&mut self, args: NormInPlace<'_, GpuBackend>) -> Result<()> {
        self.compute.norm_in_place(args)
    }

    fn norm_rows(&mut self, args: NormRows<'_, GpuBackend>) -> Result<()> {
        self.compute.norm_rows(args)
    }

    fn add_norm(&mut self, args: AddNorm<'_, GpuBackend>) -> Result<()> {
        self.compute.add_norm(args)
    }

    fn linear(&mut self, args: Linear<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        self.compute.linear(args, None, Format::F32)
    }

    fn gated_activation(&mut self, args: GatedActivation<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let format = self.compute.activation_format(self.compute.common(), args.rows);
        self.compute.gated_activation(args, format)
    }

    fn activation(&mut self, args: Activate<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        rows::activation(self, args)
    }

    fn gate_columns(&mut self, args: GateColumns<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        rows::gate_columns(self, args)
    }

    fn scale_rows(&mut self, args: ScaleRows<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        rows::scale_rows(self, args)
    }

    fn gate_rows(&mut self, args: GateRows<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        rows::gate_rows(self, args)
    }

    fn gate_heads(&mut self, args: GateHeads<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        rows::gate_heads(self, args)
    }

    fn experts(&mut self, args: MixExperts<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let slot_mapping = self.inputs.padded_slots(self.captured)?;
        self.compute.experts(args, slot_mapping)
    }

    fn rope_angles(&mut self, args: RopeAngles<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        attention::rope_angles(self, args)
    }

    fn rope_and_store_kv(&mut self, args: RopeAndStore<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        attention::rope_and_store_kv(self, args)
    }

    fn head_products(&mut self, args: HeadProducts<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        latent::head_products(self, args)
    }

    fn rope_and_store_latent(&mut self, args: RopeAndStoreLatent<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        latent::rope_and_store_latent(self, args)
    }

    fn attention(&mut self, args: Attention<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        attention::attention(self, args)
    }

    fn delta_net(&mut self, args: DeltaNet<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::delta_net(self, args)
    }

    fn mamba2(&mut self, args: Mamba2<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::mamba2(self, args)
    }

    fn mamba_convolution(&mut self, args: MambaConvolution<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::mamba_convolution(self, args)
    }

    fn mamba(&mut self, args: Mamba<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::mamba(self, args)
    }

    fn short_convolution(&mut self, args: ShortConvolution<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::short_convolution(self, args)
    }

    fn join_rows(&mut self, args: JoinRows<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        states::join_rows(self, args)
    }

    fn sparsify(&mut self, args: Sparsify<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        streams::sparsify(self, args)
    }

    fn level_rows(&mut self, args: LevelRows<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        streams::level_rows(self, args)
    }

    fn predict_streams(&mut self, args: Streams<'_, GpuBackend>) -> Result<()> {
        args.validate(STREAMS)?;
        streams::change(self, PREDICT_STREAMS, STREAMS, args)
    }

    fn correct_streams(&mut self, args: Streams<'_, GpuBackend>) -> Result<()> {
        args.validate(1)?;
        streams::change(self, CORRECT_STREAMS, 1, args)
    }

    fn gather_rows(&mut self, args: GatherRows<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens, self.logits)?;
        rows::gather_rows(self, args)
    }

    fn copy_blocks(&mut self, args: CopyBlocks<'_, GpuBackend>) -> Result<()> {
        args.validate(&self.batch.block_copies)?;
        attention::copy_blocks(self, args)
    }
}

#[deny(clippy::missing_trait_methods)] // a fusion that falls back to its parts must say so here
impl Fusions<GpuBackend> for GpuStep<'_> {
    fn norm_linear(&mut self, args: NormLinear<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        self.compute.norm_linear(args, Format::F32)
    }

    fn norm_gated_linear(&mut self, args: NormGatedLinear<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        self.compute.norm_gated_linear(args)
    }

    fn norm_experts(&mut self, args: NormExperts<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let slot_mapping = self.inputs.padded_slots(self.captured)?;
        self.compute.norm_experts(args, slot_mapping)
    }

    fn rope_attention(&mut self, args: RopeAttention<'_, GpuBackend>) -> Result<()> {
        args.validate(self.tokens)?;
        attention::rope_attention(self, args)
    }
}
