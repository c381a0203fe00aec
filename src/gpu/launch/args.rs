//! The kernels' arguments: `kernels/args.h`, field by field. A test compares sizes, offsets and numbers with those of
//! the C++ compiler.

mod codes;
mod numbers;

pub(crate) use codes::Format;
pub(crate) use codes::{ActivationCode, GateCode, GatingCode, NormCode};
pub(crate) use numbers::*;

use crate::{DevicePtr, KernelArgs};

/// Implements `KernelArgs` for types that a kernel takes as one number.
macro_rules! numbers {
    ($($ty:ty: $value:ident => $number:expr),* $(,)?) => {
        $(
            // SAFETY: a number, or a struct or enum with a number's layout.
            unsafe impl KernelArgs for $ty {
                fn store(&self, bytes: &mut [u8]) {
                    let $value = *self;
                    bytes[..size_of::<Self>()].copy_from_slice(&$number.to_ne_bytes());
                }
            }
        )*
    };
}

numbers! {
    u32: value => value,
    u64: value => value,
    f32: value => value,
    f64: value => value,
    DevicePtr: pointer => pointer.address(),
    Format: format => (format as u32),
    ActivationCode: activation => activation.number(),
    NormCode: kind => (kind as u32),
    GatingCode: gating => (gating as u32),
    GateCode: function => (function as u32),
}

/// Declares the structs, and for the test their names, their sizes and the offset of each field.
macro_rules! kernel_args {
    ($($name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {
        $(
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub $field: $ty,)*
            }
            // SAFETY: repr(C), plain numbers, as in `args.h`.
            unsafe impl KernelArgs for $name {
                fn store(&self, bytes: &mut [u8]) {
                    $(self.$field.store(&mut bytes[std::mem::offset_of!(Self, $field)..]);)*
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

kernel_args! {
    CopyStepArgs { from: DevicePtr, out: DevicePtr, chosen: DevicePtr, least: u32, token_ids: u32 }
    LinkStepsArgs { step: DevicePtr, before: DevicePtr, out: DevicePtr }
    RepackArgs { raw: DevicePtr, out: DevicePtr, out_rows: u32, cols: u32, scale: f32 }
    EmbedArgs { table: DevicePtr, token_ids: DevicePtr, out: DevicePtr, rows: u32, cols: u32, scale: f32 }
    AddRowsArgs {
        table: DevicePtr, positions: DevicePtr, token_ids: DevicePtr, out: DevicePtr, cols: u32, separator: u32,
    }
    DequantizeArgs { weights: DevicePtr, out: DevicePtr, num_tiles: u32, cols: u32 }
    CachedExperts { slots: DevicePtr, tiles: DevicePtr, tiles_up: DevicePtr, slot_bytes: u64, alone: u32 }
    GemvArgs {
        weights: DevicePtr,
        weights_up: DevicePtr,
        x: DevicePtr,
        norm: DevicePtr,
        bias: DevicePtr,
        bias_up: DevicePtr,
        out: DevicePtr,
        experts: DevicePtr,
        expert_bytes: u64,
        out_rows: u32,
        cols: u32,
        rows: u32,
        x_stride: u32,
        out_stride: u32,
        flags: u32,
        activation: ActivationCode,
        grid_x: u32,
        eps: f32,
        share: u32,
        cached: CachedExperts,
    }
    GemvPairArgs { first: GemvArgs, second: GemvArgs }
    MatmulArgs {
        weights: DevicePtr,
        x: DevicePtr,
        bias: DevicePtr,
        out: DevicePtr,
        partial: DevicePtr,
        counters: DevicePtr,
        out_rows: u32,
        cols: u32,
        rows: u32,
        out_stride: u32,
        splits: u32,
        flags: u32,
    }
    MatmulGatedArgs {
        product: MatmulArgs,
        weights_up: DevicePtr, bias_up: DevicePtr, activation: ActivationCode, format_out: Format,
    }
    MatmulPairArgs { first: MatmulArgs, second: MatmulArgs }
    MatmulExpertsArgs { product: MatmulArgs, experts: DevicePtr, expert_bytes: u64, cached: CachedExperts }
    MatmulGatedExpertsArgs {
        gate: MatmulExpertsArgs,
        weights_up: DevicePtr, bias_up: DevicePtr, activation: ActivationCode, format_out: Format,
    }
    MatmulF32Args {
        weights: DevicePtr,
        x: DevicePtr,
        bias: DevicePtr,
        out: DevicePtr,
        out_rows: u32,
        cols: u32,
        rows: u32,
        x_stride: u32,
        out_stride: u32,
        flags: u32,
    }
    NormRowsArgs {
        x: DevicePtr,
        norm: DevicePtr,
        bias: DevicePtr,
        out: DevicePtr,
        rows: u32,
        cols: u32,
        x_stride: u32,
        out_stride: u32,
        format_in: Format,
        format_out: Format,
        kind: NormCode,
        flags: u32,
        eps: f32,
        factor: f32,
        num_parts: u32,
        parts: DevicePtr,
        scales: DevicePtr,
    }
    GatedArgs {
        gate_up: DevicePtr,
        out: DevicePtr,
        scales: DevicePtr,
        rows: u32,
        cols: u32,
        format_in: Format,
        format_out: Format,
        activation: ActivationCode,
    }
    ActivationArgs {
        x: DevicePtr, out: DevicePtr, cols: u32, format_out: Format, activation: ActivationCode,
        positive: f32, negative: f32, slope: f32, eps: f32,
    }
    GateColumnsArgs {
        gate: DevicePtr,
        x: DevicePtr,
        out: DevicePtr,
        cols: u32,
        x_stride: u32,
        format_out: Format,
        activation: ActivationCode,
    }
    ScaleRowsArgs {
        x: DevicePtr,
        cols: u32,
        first: u32,
        end: u32,
        format: Format,
        scale: f32,
        softcap: f32,
        least: f32,
        most: f32,
    }
    GateRowsArgs {
        x: DevicePtr,
        norm: DevicePtr,
        weight: DevicePtr,
        out: DevicePtr,
        hidden: u32,
        cols: u32,
        format_in: Format,
        format_out: Format,
        eps: f32,
    }
    GateHeadsArgs {
        gate: DevicePtr, out: DevicePtr, heads: u32, head_cols: u32, function: GateCode, format: Format,
    }
    SparsifyArgs { x: DevicePtr, cols: u32, deviations: f32 }
    LevelRowsArgs { x: DevicePtr, like: DevicePtr, out: DevicePtr, cols: u32, least: f32 }
    StreamsArgs {
        routed: DevicePtr,
        weight: DevicePtr,
        active: DevicePtr,
        predicted: DevicePtr,
        first: DevicePtr,
        second: DevicePtr,
        third: DevicePtr,
        cols: u32,
        scale: f32,
    }
    GatherArgs { x: DevicePtr, indices: DevicePtr, out: DevicePtr, rows: u32, cols: u32, format_in: Format }
    ChooseExpertsArgs {
        logits: DevicePtr,
        bias: DevicePtr,
        factors: DevicePtr,
        experts: DevicePtr,
        weights: DevicePtr,
        rows: u32,
        num: u32,
        used: u32,
        gating: GatingCode,
        groups: u32,
        used_groups: u32,
        normalize: u32,
        scale: f32,
        uses: DevicePtr,
        hits: DevicePtr,
        slots: DevicePtr,
        slot_mapping: DevicePtr,
    }
    PlaceExpertsArgs {
        experts: DevicePtr,
        places: DevicePtr,
        rows: DevicePtr,
        run_experts: DevicePtr,
        pairs: u32,
        used: u32,
        runs: u32,
        run: u32,
    }
    GatherPairsArgs { x: DevicePtr, rows: DevicePtr, out: DevicePtr, cols: u32, format_out: Format }
    AddExpertsArgs {
        experts: DevicePtr,
        slots: DevicePtr,
        values: DevicePtr,
        weights: DevicePtr,
        places: DevicePtr,
        out: DevicePtr,
        cols: u32,
        used: u32,
        add: u32,
    }
    SendExpertsArgs {
        x: DevicePtr,
        experts: DevicePtr,
        weights: DevicePtr,
        slots: DevicePtr,
        call: DevicePtr,
        x_out: DevicePtr,
        experts_out: DevicePtr,
        weights_out: DevicePtr,
        cols: u32,
        used: u32,
        rows: u32,
        layer: u32,
        turn: u32,
    }
    UnpackArgs {
        tiles: DevicePtr,
        places: DevicePtr,
        out: DevicePtr,
        rows: u32,
        blocks: u32,
        block_bytes: u32,
        tile_bytes: u32,
        codes_bytes: u32,
        side_bytes: u32,
        span_blocks: u32,
    }
    CopyBlocksArgs { k_cache: DevicePtr, v_cache: DevicePtr, pairs: DevicePtr, num_pairs: u32, block_bytes: u32 }
    RopeAnglesArgs {
        positions: DevicePtr,
        inv_freq: DevicePtr,
        out: DevicePtr,
        rows: u32,
        num_pairs: u32,
        magnitude: f32,
    }
    RotationArgs {
        slot_mapping: DevicePtr,
        q_norm: DevicePtr,
        k_norm: DevicePtr,
        angles: DevicePtr,
        positions: DevicePtr,
        num_pairs: u32,
        flags: u32,
        eps: f32,
        temperature: f32,
        temperature_context: u32,
        temperature_offset: u32,
    }
    RopeStoreArgs {
        rotation: RotationArgs,
        qkv: DevicePtr,
        k_cache: DevicePtr,
        v_cache: DevicePtr,
        rows: u32,
        num_heads: u32,
        num_kv_heads: u32,
        row_cols: u32,
        head_dim: u32,
        value_dim: u32,
        block_size: u32,
    }
    AttentionArgs {
        rotation: RotationArgs,
        qkv: DevicePtr,
        gate: DevicePtr,
        k_cache: DevicePtr,
        v_cache: DevicePtr,
        out: DevicePtr,
        partial: DevicePtr,
        counters: DevicePtr,
        items: DevicePtr,
        q_start: DevicePtr,
        context_lens: DevicePtr,
        block_start: DevicePtr,
        block_tables: DevicePtr,
        sinks: DevicePtr,
        biases: DevicePtr,
        num_heads: u32, num_kv_heads: u32, row_cols: u32, head_dim: u32,
        value_dim: u32,
        block_size: u32,
        splits: u32, split_tokens: u32, num_items: u32,
        window: u32,
        ahead: u32,
        format_out: Format,
        scale: f32,
        softcap: f32,
        bias_reach: u32,
        alibi: f32,
        alibi_heads: u32,
    }
    HeadProductsArgs {
        weights: DevicePtr,
        x: DevicePtr,
        out: DevicePtr,
        rows: u32,
        heads: u32,
        out_cols: u32,
        cols: u32,
        x_head: u32,
        out_head: u32,
        format_out: Format,
    }
    LatentStoreArgs {
        q: DevicePtr,
        queries: DevicePtr,
        latent: DevicePtr,
        norm: DevicePtr,
        angles: DevicePtr,
        slot_mapping: DevicePtr,
        positions: DevicePtr,
        cache: DevicePtr,
        num_heads: u32,
        plain_dim: u32,
        rope_dim: u32,
        rank: u32,
        flags: u32,
        eps: f32,
        temperature: f32,
        temperature_context: u32,
        temperature_offset: u32,
    }
    StatesArgs {
        windows: DevicePtr,
        matrices: DevicePtr,
        sequences: DevicePtr,
        starts: DevicePtr,
        reads: DevicePtr,
        write_starts: DevicePtr,
        writes: DevicePtr,
    }
    DeltaNetArgs {
        states: StatesArgs,
        x: DevicePtr,
        convolved: DevicePtr,
        pairs: DevicePtr,
        out: DevicePtr,
        taps: DevicePtr,
        decay: DevicePtr,
        decay_bias: DevicePtr,
        norm: DevicePtr,
        key_heads: u32,
        value_heads: u32,
        key_size: u32,
        value_size: u32,
        num_taps: u32,
        is_tiled: u32,
        gate_run: u32,
        rows: u32,
        chunked_from: u32,
        format_out: Format,
        eps: f32,
    }
    Mamba2Args {
        states: StatesArgs,
        x: DevicePtr, convolved: DevicePtr, pairs: DevicePtr, out: DevicePtr,
        taps: DevicePtr, taps_bias: DevicePtr, decay: DevicePtr, step_bias: DevicePtr, skip: DevicePtr, norm: DevicePtr,
        heads: u32, head_size: u32, groups: u32, state_size: u32, num_taps: u32,
        rows: u32, chunked_from: u32, format_out: Format, eps: f32,
    }
    MambaArgs {
        states: StatesArgs,
        x: DevicePtr, convolved: DevicePtr, time_steps: DevicePtr, b: DevicePtr, c: DevicePtr, out: DevicePtr,
        taps: DevicePtr, taps_bias: DevicePtr, decay: DevicePtr, skip: DevicePtr,
        channels: u32, state_size: u32, num_taps: u32, format_out: Format,
    }
    ShortConvolutionArgs {
        states: StatesArgs,
        x: DevicePtr, out: DevicePtr, taps: DevicePtr,
        channels: u32, num_taps: u32, format_out: Format,
    }
    JoinRowsArgs { states: StatesArgs, left: DevicePtr, right: DevicePtr, out: DevicePtr, cols: u32, format_out: Format }
    AlteredRow { row: u32, first: u32, count: u32, repetition: f32, frequency: f32, presence: f32 }
    AlteredToken { id: u32, bias: f32, seen: u32 }
    AlterLogitsArgs { logits: DevicePtr, rows: DevicePtr, tokens: DevicePtr, cols: u32 }
    MaskArgs { places: DevicePtr, words: DevicePtr }
    ArgmaxArgs {
        logits: DevicePtr, tokens: DevicePtr, values: DevicePtr, partial: DevicePtr, counters: DevicePtr,
        masks: MaskArgs, rows: u32, cols: u32, share: u32,
    }
    TopKArgs {
        logits: DevicePtr, ids: DevicePtr, values: DevicePtr, log_sums: DevicePtr,
        masks: MaskArgs, rows: u32, cols: u32, k: u32,
    }
    DrawRow { top_p: f64, uniform: f64, per_logit: f32, min_p: f32, top_k: u32, row: u32 }
    DrawArgs { logits: DevicePtr, rows: DevicePtr, found: DevicePtr, masks: MaskArgs, cols: u32 }
    RankRow { row: u32, token_at: u32, first: u32, count: u32 }
    RankArgs {
        logits: DevicePtr, rows: DevicePtr, tokens: DevicePtr, altered: DevicePtr, found: DevicePtr, cols: u32,
    }
    ProbeArgs { data: DevicePtr, out: DevicePtr, pieces: u64, blocks: u32 }
}
