//! Contradictory arguments: every op refuses them before it computes anything.

mod latent;
mod streams;
pub(crate) mod written;

use super::{BufferOf, Random, Tally, bytes_of, kv_layer, matrix, rows_batch, stack, vector};
use crate::backend::{
    Activation, AddNorm, AddRows, Attention, Backend, Embed, ExpertSpec, ExpertTensors, Fusions, GateColumns,
    GateFunction, GateHeads, GateRows, GatedActivation, GatherRows, KvLayerSpec, Linear, Loader, MixExperts, Norm,
    NormExperts, NormGatedLinear, NormInPlace, NormKind, NormLinear, NormRows, Ops, QkNorms, QkvLayout, RopeAndStore,
    RopeAngles, RopeAttention, RopeKind, RopeSpec, Rotation, ScaleRows, Scoring, TableRow, Xielu,
};
use crate::batch::{Batch, GroupKind, GroupTables};
use crate::config::KvCacheDtype;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Tokens of a step: enough that no op's rows fit in a one-row buffer, whose size devices round up.
const TOKENS: usize = 66;
const COLS: usize = 256;
const LAYOUT: QkvLayout =
    QkvLayout { num_heads: 1, num_kv_heads: 1, head_dim: 128, value_dim: 128, gated: false, has_kv: true };
const SCORING: Scoring = Scoring::scaled(1.0);

/// Judges the outcome of an op with contradictory arguments.
pub(super) fn judge(what: &str, outcome: Result<()>, arguments: &str, tally: &mut Tally<'_>) {
    let verdict = match outcome {
        Err(Error::Internal { .. }) => Ok(0.0),
        Err(error) => Err(format!("ends in another error: {error}")),
        Ok(()) => Err(format!("accepts {arguments}")),
    };
    tally.judge(what, 1, verdict);
}

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("arguments that are refused");
    latent::check(loader(TOKENS)?, tally)?;
    streams::check(loader(TOKENS)?, tally)?;
    tally.begin("arguments that contradict each other")?;
    let mut loader = loader(TOKENS)?;
    let mut random = Random(1);
    let square = matrix(&mut loader, &random.values(COLS * COLS), COLS)?;
    let halves = random.values(COLS / 2 * COLS);
    let gate_up = stack(&mut loader, &[&halves, &halves], COLS)?;
    let norms = [vector(&mut loader, &random.values(COLS))?, vector(&mut loader, &random.values(COLS / 2))?];
    let head_norm = vector(&mut loader, &random.values(LAYOUT.head_dim))?;
    let biases = vector(&mut loader, &random.values(LAYOUT.num_heads * 5))?;
    let wide = RopeSpec { kind: RopeKind::Neox, inv_freq: vec![1.0; LAYOUT.head_dim], magnitude: 1.0 };
    let whole = RopeSpec { inv_freq: vec![1.0; LAYOUT.head_dim / 2], ..wide.clone() };
    let (rope, wide_rope) = (loader.upload_rope(&whole)?, loader.upload_rope(&wide)?);
    let KvLayerSpec { num_kv_heads, head_dim, .. } = spec(LAYOUT);
    let mut kv = kv_layer(&mut loader, spec(LAYOUT))?;
    let mut other_kv = kv_layer(
        &mut loader,
        spec(QkvLayout { num_kv_heads, head_dim: head_dim / 2, value_dim: head_dim / 2, ..LAYOUT }),
    )?;
    let experts_spec = |used| ExpertSpec::plain(2, used, COLS, 16);
    let data = bytes_of(&random.values(2 * 16 * COLS));
    let view = |rows, cols| TensorView {
        name: "experts",
        ggml_type: GgmlType::F32,
        rows,
        cols,
        data: &data[..4 * rows * cols],
        scales: &[],
    };
    let (router, gate, down) = (view(2, COLS), view(2 * 16, COLS), view(2 * COLS, 16));
    let tensors = ExpertTensors {
        spec: experts_spec(1),
        router,
        gate: Some(gate),
        up: gate,
        down,
        fused: false,
        router_bias: None,
        choice_bias: None,
        output_scales: None,
        biases: None,
    };
    let experts = loader.upload_experts(&tensors, &mut |_| Ok(()))?;
    let mut work = loader.alloc_expert_work(&experts_spec(1), TOKENS)?;
    let mut small_work = loader.alloc_expert_work(&experts_spec(1), 1)?;
    let mut other_work = loader.alloc_expert_work(&experts_spec(2), TOKENS)?;
    let mut buffers = Vec::new();
    for rows in [TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, 1, 1] {
        buffers.push(loader.alloc_buffer(rows, if rows == 1 { 1 } else { 2 * COLS })?);
    }
    let Ok([x, angles, mut normed, mut products, mut out, mut small, small_angles]) =
        <[BufferOf<L>; 7]>::try_from(buffers)
    else {
        return Err(Error::internal("not the buffers that were made"));
    };
    let mut backend = loader.finish()?;
    let ids = (0..TOKENS as u32).map(|i| i % COLS as u32).collect::<Vec<_>>();
    let slots = GroupTables {
        slot_mapping: (0..TOKENS as u32).collect(),
        block_tables: (0..TOKENS.div_ceil(16) as u32).collect(),
        cu_blocks: vec![0, TOKENS.div_ceil(16) as u32],
    };
    let batch = Batch { logits_indices: (0..TOKENS as u32).collect(), groups: vec![slots], ..rows_batch(ids) };
    let rows = TOKENS;
    let (norm, short_norm) = (Norm::rms(&norms[0], 1e-5), Norm::rms(&norms[1], 1e-5));
    let layer_norm = Norm { kind: NormKind::Layer, ..norm };
    let activation = Activation::Silu;

    // Runs each op with valid arguments, then with one invalid argument at a time.
    macro_rules! refused {
        ($what:literal, $step:ident, $right:expr, $($wrong:expr),+ $(,)?) => {{
            backend.step(&batch, &mut |$step: &mut <L::Backend as Backend>::Step<'_>| $right)?;
            $(
                let outcome = backend.step(&batch, &mut |$step: &mut <L::Backend as Backend>::Step<'_>| $wrong);
                judge($what, outcome, stringify!($wrong), tally);
            )+
        }};
    }
    let table = &square;
    refused!(
        "embed",
        step,
        step.embed(Embed { table, scale: 1.0, out: &mut out }),
        step.embed(Embed { table, scale: 1.0, out: &mut small }),
    );
    refused!(
        "norm",
        step,
        step.norm_rows(NormRows { x: &x, norm, rows, out: &mut out }),
        step.norm_rows(NormRows { x: &small, norm, rows, out: &mut out }),
        step.norm_rows(NormRows { x: &x, norm, rows, out: &mut small }),
        step.norm_rows(NormRows { x: &x, norm, rows: usize::MAX, out: &mut out }),
    );
    let (cols, row) = (COLS, TableRow::First);
    refused!(
        "add_rows",
        step,
        step.add_rows(AddRows { table: &norms[0], cols, row, out: &mut out }),
        step.add_rows(AddRows { table: &norms[0], cols, row, out: &mut small }),
        step.add_rows(AddRows { table: &norms[1], cols, row, out: &mut out }),
        step.add_rows(AddRows { table: &norms[0], cols: COLS - 1, row, out: &mut out }),
        step.add_rows(AddRows { table: &norms[0], cols, row: TableRow::OfPosition, out: &mut out }),
        step.add_rows(AddRows { table: &norms[0], cols, row: TableRow::SecondBehind(0), out: &mut out }),
    );
    refused!(
        "norm_in_place",
        step,
        step.norm_in_place(NormInPlace { x: &mut out, norm, rows }),
        step.norm_in_place(NormInPlace { x: &mut small, norm, rows }),
    );
    let factor = 0.5;
    refused!(
        "add_norm",
        step,
        step.add_norm(AddNorm { x: &x, norm, rows, out: &mut out, factor }),
        step.add_norm(AddNorm { x: &small, norm, rows, out: &mut out, factor }),
        step.add_norm(AddNorm { x: &x, norm, rows, out: &mut small, factor }),
    );
    let (x_cols, cols) = (2 * COLS, COLS);
    refused!(
        "scale_rows",
        step,
        step.scale_rows(ScaleRows { x: &mut out, rows, cols, columns: 0..cols, scale: 0.5, cap: None }),
        step.scale_rows(ScaleRows { x: &mut small, rows, cols, columns: 0..cols, scale: 0.5, cap: None }),
        step.scale_rows(ScaleRows { x: &mut out, rows, cols, columns: 1..cols + 1, scale: 0.5, cap: None }),
    );
    refused!(
        "gate_columns",
        step,
        step.gate_columns(GateColumns { gate: &x, x: &x, x_cols, first: COLS, activation, rows, cols, out: &mut out }),
        step.gate_columns(GateColumns {
            gate: &x,
            x: &x,
            x_cols,
            first: COLS + 1,
            activation,
            rows,
            cols,
            out: &mut out
        }),
        step.gate_columns(GateColumns {
            gate: &x,
            x: &x,
            x_cols,
            first: usize::MAX,
            activation,
            rows,
            cols,
            out: &mut out
        }),
        step.gate_columns(GateColumns { gate: &small, x: &x, x_cols, first: 0, activation, rows, cols, out: &mut out }),
        step.gate_columns(GateColumns { gate: &x, x: &small, x_cols, first: 0, activation, rows, cols, out: &mut out }),
        step.gate_columns(GateColumns { gate: &x, x: &x, x_cols, first: 0, activation, rows, cols, out: &mut small }),
    );
    refused!(
        "linear",
        step,
        step.linear(Linear { x: &x, matrix: &square, rows, out: &mut out, add: true }),
        step.linear(Linear { x: &small, matrix: &square, rows, out: &mut out, add: false }),
        step.linear(Linear { x: &x, matrix: &square, rows, out: &mut small, add: true }),
    );
    refused!(
        "gated_activation",
        step,
        step.gated_activation(GatedActivation { gate_up: &x, activation, rows, cols: COLS / 2, out: &mut out }),
        step.gated_activation(GatedActivation {
            gate_up: &x,
            activation: Activation::Xielu(Xielu { positive: 1.0, negative: 1.0, slope: 1.0, eps: 0.0 }),
            rows,
            cols: COLS / 2,
            out: &mut out
        }),
        step.gated_activation(GatedActivation { gate_up: &small, activation, rows, cols: COLS / 2, out: &mut out }),
        step.gated_activation(GatedActivation { gate_up: &x, activation, rows, cols: COLS / 2, out: &mut small }),
    );
    let routed = None;
    refused!(
        "experts",
        step,
        step.experts(MixExperts { x: &x, routed, experts: &experts, rows, work: &mut work, out: &mut out, add: true }),
        step.experts(MixExperts {
            x: &small,
            routed,
            experts: &experts,
            rows,
            work: &mut work,
            out: &mut out,
            add: true
        }),
        step.experts(MixExperts {
            x: &x,
            routed,
            experts: &experts,
            rows,
            work: &mut small_work,
            out: &mut out,
            add: true
        }),
        step.experts(MixExperts {
            x: &x,
            routed,
            experts: &experts,
            rows,
            work: &mut other_work,
            out: &mut out,
            add: true
        }),
        step.experts(MixExperts {
            x: &x,
            routed,
            experts: &experts,
            rows,
            work: &mut work,
            out: &mut small,
            add: false
        }),
    );
    let routed = Some(&small);
    refused!(
        "experts with rows of the router",
        step,
        step.experts(MixExperts {
            x: &x,
            routed: Some(&x),
            experts: &experts,
            rows,
            work: &mut work,
            out: &mut out,
            add: true
        }),
        step.experts(MixExperts { x: &x, routed, experts: &experts, rows, work: &mut work, out: &mut out, add: true }),
    );
    refused!(
        "rope_angles",
        step,
        step.rope_angles(RopeAngles { rope: &wide_rope, out: &mut out }),
        step.rope_angles(RopeAngles { rope: &wide_rope, out: &mut small }),
    );
    let plain = Rotation { norms: None, rope: &rope, angles: &angles, temperature: None };
    let uneven = QkvLayout { num_heads: 3, num_kv_heads: 2, ..LAYOUT };
    let long_values = QkvLayout { value_dim: LAYOUT.head_dim + 8, ..LAYOUT };
    let odd_values = QkvLayout { value_dim: LAYOUT.head_dim - 4, ..LAYOUT };
    let too_wide = Rotation { rope: &wide_rope, ..plain };
    let no_angles = Rotation { angles: &small_angles, ..plain };
    let misfits = Rotation {
        norms: Some(QkNorms { q: &head_norm, k: Some(&norms[0]), v: false, eps: 1e-5, after_rope: false }),
        ..plain
    };
    let of_heads = QkNorms { q: &head_norm, k: Some(&head_norm), v: false, eps: 1e-5, after_rope: false };
    let no_k = Rotation { norms: Some(QkNorms { k: None, ..of_heads }), ..plain };
    let queries = QkvLayout { has_kv: false, ..LAYOUT };
    let with_k = Rotation { norms: Some(of_heads), ..plain };
    let (layout, group, scoring) = (LAYOUT, 0, SCORING);
    refused!(
        "rope_and_store_kv",
        step,
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: plain, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut small, layout, rotation: plain, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout: uneven, rotation: plain, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: plain, group, kv: &mut other_kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: too_wide, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: no_angles, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: misfits, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: no_k, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout: queries, rotation: with_k, group, kv: &mut kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut out, layout, rotation: plain, group: 1, kv: &mut kv }),
    );
    let (flat, sloped) = (Scoring { alibi: Some(0.0), ..scoring }, Scoring { alibi: Some(8.0), ..scoring });
    macro_rules! valid {
        ($out:expr) => {
            Attention { qkv: &x, layout, scoring, sinks: None, biases: None, group, kv: &kv, out: $out }
        };
    }
    refused!(
        "attention",
        step,
        step.attention(valid!(&mut out)),
        step.attention(Attention { qkv: &small, ..valid!(&mut out) }),
        step.attention(Attention { layout: uneven, ..valid!(&mut out) }),
        step.attention(Attention { layout: long_values, ..valid!(&mut out) }),
        step.attention(Attention { layout: odd_values, ..valid!(&mut out) }),
        step.attention(Attention { scoring: flat, ..valid!(&mut out) }),
        step.attention(Attention { kv: &other_kv, ..valid!(&mut out) }),
        step.attention(valid!(&mut small)),
        step.attention(Attention { group: 1, ..valid!(&mut out) }),
        step.attention(Attention { biases: Some(&norms[0]), ..valid!(&mut out) }),
        step.attention(Attention { biases: Some(&biases), scoring: sloped, ..valid!(&mut out) }),
    );
    refused!(
        "gather_rows",
        step,
        step.gather_rows(GatherRows { x: &x, cols: COLS, out: &mut out }),
        step.gather_rows(GatherRows { x: &small, cols: COLS, out: &mut out }),
        step.gather_rows(GatherRows { x: &x, cols: COLS, out: &mut small }),
    );
    let (cols, weight) = (COLS, &norms[0]);
    refused!(
        "gate_rows",
        step,
        step.gate_rows(GateRows { x: &x, norm: Some(norm), weight, rows, cols, out: &mut out }),
        step.gate_rows(GateRows { x: &small, norm: Some(norm), weight, rows, cols, out: &mut out }),
        step.gate_rows(GateRows { x: &x, norm: Some(short_norm), weight, rows, cols, out: &mut out }),
        step.gate_rows(GateRows { x: &x, norm: Some(layer_norm), weight, rows, cols, out: &mut out }),
        step.gate_rows(GateRows { x: &x, norm: None, weight, rows, cols, out: &mut small }),
    );
    let (function, heads, cols) = (GateFunction::Sigmoid, 2, COLS / 2);
    refused!(
        "gate_heads",
        step,
        step.gate_heads(GateHeads { gate: &x, function, rows, heads, cols, out: &mut out }),
        step.gate_heads(GateHeads { gate: &small, function, rows, heads: COLS, cols: 1, out: &mut out }),
        step.gate_heads(GateHeads { gate: &x, function, rows, heads, cols, out: &mut small }),
        step.gate_heads(GateHeads { gate: &x, function, rows, heads, cols: usize::MAX, out: &mut out }),
    );
    let matrix = &square;
    refused!(
        "norm_linear",
        step,
        step.norm_linear(NormLinear { x: &x, norm: Some(norm), matrix, rows, normed: &mut normed, out: &mut out }),
        step.norm_linear(NormLinear {
            x: &x,
            norm: Some(short_norm),
            matrix,
            rows,
            normed: &mut normed,
            out: &mut out
        }),
        step.norm_linear(NormLinear { x: &x, norm: Some(norm), matrix, rows, normed: &mut small, out: &mut out }),
        step.norm_linear(NormLinear { x: &x, norm: Some(norm), matrix, rows, normed: &mut normed, out: &mut small }),
    );
    let gate_up = &gate_up;
    refused!(
        "norm_gated_linear",
        step,
        step.norm_gated_linear(NormGatedLinear {
            x: &x,
            norm: Some(norm),
            gate_up,
            activation,
            rows,
            normed: &mut normed,
            products: &mut products,
            out: &mut out
        }),
        step.norm_gated_linear(NormGatedLinear {
            x: &small,
            norm: Some(norm),
            gate_up,
            activation,
            rows,
            normed: &mut normed,
            products: &mut products,
            out: &mut out
        }),
        step.norm_gated_linear(NormGatedLinear {
            x: &x,
            norm: Some(short_norm),
            gate_up,
            activation,
            rows,
            normed: &mut normed,
            products: &mut products,
            out: &mut small
        }),
    );
    refused!(
        "norm_experts",
        step,
        step.norm_experts(NormExperts {
            norm,
            experts: &experts,
            rows,
            normed: &mut normed,
            work: &mut work,
            residual: &mut out
        }),
        step.norm_experts(NormExperts {
            norm: short_norm,
            experts: &experts,
            rows,
            normed: &mut normed,
            work: &mut work,
            residual: &mut out
        }),
        step.norm_experts(NormExperts {
            norm,
            experts: &experts,
            rows,
            normed: &mut small,
            work: &mut work,
            residual: &mut out
        }),
    );
    refused!(
        "rope_attention",
        step,
        step.rope_attention(RopeAttention {
            qkv: &mut out,
            layout,
            rotation: plain,
            scoring,
            sinks: None,
            biases: None,
            group,
            kv: &mut kv,
            out: &mut products
        }),
        step.rope_attention(RopeAttention {
            qkv: &mut out,
            layout,
            rotation: plain,
            scoring,
            sinks: None,
            biases: None,
            group,
            kv: &mut kv,
            out: &mut small
        }),
        step.rope_attention(RopeAttention {
            qkv: &mut out,
            layout,
            rotation: plain,
            scoring,
            sinks: None,
            biases: None,
            group,
            kv: &mut other_kv,
            out: &mut products
        }),
    );
    Ok(())
}

/// Returns a layer of full attention with room for the step.
fn spec(layout: QkvLayout) -> KvLayerSpec {
    let QkvLayout { num_kv_heads, head_dim, .. } = layout;
    let (kind, num_blocks, dtype) = (GroupKind::Full, TOKENS.div_ceil(16), KvCacheDtype::F16);
    KvLayerSpec { kind, skips_first: false, num_blocks, block_size: 16, num_kv_heads, head_dim, latent: None, dtype }
}
