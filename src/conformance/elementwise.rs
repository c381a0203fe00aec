//! Norms, activations, logits, gather, embedding scale, angles.

use super::reference::{self, HostNorm};
use super::{Random, Tally, fill, matrix, rows_batch, two_buffers, vector, within};
use crate::Result;
use crate::backend::{
    Activate, Activation, AddNorm, AddRows, Backend, Cap, Embed, GateColumns, GateFunction, GateHeads, GateRows,
    GatedActivation, GatherRows, LinearPart, Loader, Norm, NormInPlace, NormKind, NormRows, Ops, RopeAngles, RopeKind,
    RopeSpec, ScaleRows, TableRow, Xielu,
};
use crate::batch::Batch;
use crate::quant::GgmlType;
use crate::tensor::TensorView;

/// `(rows, cols)`. Rows of 5001 and 12,301 are longer than a thread block holds at once.
const SHAPES: [(usize, usize); 11] =
    [(1, 1), (3, 1), (1, 3), (5, 17), (7, 63), (2, 127), (67, 80), (1, 576), (130, 1000), (2, 5001), (1, 12_301)];

/// All activations of a gate. `PLAIN` has those that work without one.
const ACTIVATIONS: [Activation; 6] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluErf,
    Activation::SquaredRelu,
    Activation::ClampedSwiglu,
    Activation::ClampedSilu { limit: 0.375 },
];
const PLAIN: [Activation; 7] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluErf,
    Activation::Relu,
    Activation::SquaredRelu,
    Activation::Xielu(Xielu { positive: 0.8, negative: 0.7, slope: 0.5, eps: -1e-6 }),
    Activation::Xielu(Xielu { positive: 0.3, negative: 1.2, slope: 0.1, eps: -0.1 }),
];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("norm, activation, logits, gather");
    for (seed, &(rows, cols)) in tally.part(&SHAPES) {
        tally.begin(&format!("norm, activation, logits and gather of {rows} rows of {cols}"))?;
        norms(loader(rows)?, rows, cols, seed as u64, tally)?;
        gated(loader(rows)?, rows, cols, seed as u64, tally)?;
        gate_columns(loader(rows)?, rows, cols, seed as u64, tally)?;
        plain(loader(rows)?, rows, cols, seed as u64, tally)?;
        capped_inputs(loader(rows)?, rows, cols, seed as u64, tally)?;
        gate_rows(loader(rows)?, rows, cols, seed as u64, tally)?;
        gate_heads(loader(rows)?, rows, cols, seed as u64, tally)?;
        gather(loader(rows)?, rows, cols, seed as u64, tally)?;
        add_rows(loader(rows)?, rows, cols, seed as u64, tally)?;
    }
    tally.begin("RoPE angles")?;
    angles(loader(8)?, tally)
}

/// Checks norms of both kinds, with and without a bias, inside a step and after it. Also checks norms that are added to
/// the contents of the output, with a factor on the sum.
fn norms<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let (values, w) = (random.values(rows * cols), random.values(cols));
    let bias = random.values(cols);
    let eps = 1e-5;
    let table = matrix(&mut loader, &values, cols)?;
    let (weight, bias_vector) = (vector(&mut loader, &w)?, vector(&mut loader, &bias)?);
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut input)?;
    let x: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();

    for (kind, with_bias, factor) in [
        (NormKind::Rms, false, None),
        (NormKind::Rms, true, Some(1.0)),
        (NormKind::Rms, false, Some(0.3f32)),
        (NormKind::Layer, false, Some(-0.5)),
        (NormKind::Layer, true, None),
        (NormKind::Weights, true, None),
        (NormKind::Weights, false, Some(1.0)),
    ] {
        fill(&mut backend, &table, rows, &mut out)?;
        let norm = Norm { kind, weight: &weight, bias: with_bias.then_some(&bias_vector), eps };
        within(&mut backend, rows, |step| match factor {
            None => step.norm_rows(NormRows { x: &input, norm, rows, out: &mut out }),
            Some(factor) => step.add_norm(AddNorm { x: &input, norm, rows, out: &mut out, factor }),
        })?;
        let mut expected = HostNorm { kind, weight: &w, bias: with_bias.then_some(&bias), eps }.of(&x);
        if let Some(factor) = factor {
            expected.iter_mut().zip(&x).for_each(|(sum, x)| *sum = f64::from(factor) * (*sum + x));
        }
        // An addition or subtraction may cancel almost all of a number, and the mean of a row has a rounding error.
        let absolute = match (kind, with_bias || factor.is_some()) {
            (NormKind::Rms | NormKind::Weights, false) => 1e-30,
            (NormKind::Rms | NormKind::Weights, true) => 1e-6,
            (NormKind::Layer, _) => 1e-5,
        };
        let what = format!("norm {kind:?}, bias {with_bias}, added {factor:?}, of {rows} rows of {cols}");
        let got = backend.to_host(&out, rows, cols)?.to_vec();
        tally.close(&what, &got, &expected, 1e-6, absolute);
        if factor.is_none() {
            let behind = backend.normed_rows(NormRows { x: &input, norm, rows, out: &mut out })?;
            tally.same(&format!("{what}, behind a step"), behind, &got);
            fill(&mut backend, &table, rows, &mut out)?;
            within(&mut backend, rows, |step| step.norm_in_place(NormInPlace { x: &mut out, norm, rows }))?;
            tally.same(&format!("{what}, in place"), backend.to_host(&out, rows, cols)?, &got);
        }
    }
    Ok(())
}

/// Returns the absolute error of an activation of numbers up to 20. SiLU is accurate for the smallest results too.
fn tolerance(activation: Activation) -> f64 {
    if activation == Activation::Silu { 1e-30 } else { 1e-6 }
}

fn gated<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let x: Vec<f32> = Random(seed).values(rows * 2 * cols).iter().map(|x| 20.0 * x).collect();
    let table = matrix(&mut loader, &x, 2 * cols)?;
    let mut input = loader.alloc_buffer(rows, 2 * cols)?;
    let mut out = loader.alloc_buffer(rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut input)?;
    for activation in ACTIVATIONS {
        let gate_up = &input;
        within(&mut backend, rows, |step| {
            step.gated_activation(GatedActivation { gate_up, activation, rows, cols, out: &mut out })
        })?;
        let of_row = |row: &[f32]| -> Vec<f64> {
            let (gate, up) = row.split_at(cols);
            let pairs = gate.iter().zip(up);
            pairs.map(|(&g, &u)| reference::gated(activation, f64::from(g), f64::from(u))).collect()
        };
        let expected: Vec<f64> = x.chunks(2 * cols).flat_map(of_row).collect();
        let what = format!("gated activation {activation:?} of {rows} rows of {cols}");
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 1e-6, tolerance(activation));
    }
    Ok(())
}

/// Checks a gate on any range of columns of wider rows.
fn gate_columns<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let (first, x_cols) = (seed as usize % 5, cols + 7);
    let gates: Vec<f32> = random.values(rows * cols).iter().map(|x| 20.0 * x).collect();
    let x = random.values(rows * x_cols);
    let (gate_table, table) = (matrix(&mut loader, &gates, cols)?, matrix(&mut loader, &x, x_cols)?);
    let [mut gate, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut input = loader.alloc_buffer(rows, x_cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &gate_table, rows, &mut gate)?;
    fill(&mut backend, &table, rows, &mut input)?;
    for activation in ACTIVATIONS {
        within(&mut backend, rows, |step| {
            let (gate, x) = (&gate, &input);
            step.gate_columns(GateColumns { gate, x, x_cols, first, activation, rows, cols, out: &mut out })
        })?;
        let of_row = |(gate, x): (&[f32], &[f32])| -> Vec<f64> {
            let pairs = gate.iter().zip(&x[first..]);
            pairs.map(|(&g, &u)| reference::gated(activation, f64::from(g), f64::from(u))).collect()
        };
        let expected: Vec<f64> = gates.chunks(cols).zip(x.chunks(x_cols)).flat_map(of_row).collect();
        let what = format!("gate {activation:?} on {cols} columns of {rows} rows");
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 1e-6, tolerance(activation));
    }
    Ok(())
}

/// Checks activations without a gate, and values that are scaled and capped.
fn plain<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let x: Vec<f32> = Random(seed).values(rows * cols).iter().map(|x| 20.0 * x).collect();
    let table = matrix(&mut loader, &x, cols)?;
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut input)?;
    for activation in PLAIN {
        within(&mut backend, rows, |step| {
            step.activation(Activate { x: &input, activation, rows, cols, out: &mut out })
        })?;
        let expected: Vec<f64> = x.iter().map(|&x| reference::plain(activation, f64::from(x))).collect();
        let what = format!("activation {activation:?} of {rows} rows of {cols}");
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 1e-6, tolerance(activation));
    }
    for (scale, cap, columns) in [
        (0.25f32, None, 0..cols),
        (1.5, Some(Cap::Soft(5.0)), 0..cols),
        (0.5, Some(Cap::Hard([-3.0, 2.5])), 0..cols),
        (1.0, Some(Cap::Hard([1.0, 3.0])), cols / 3..cols - cols / 4),
    ] {
        fill(&mut backend, &table, rows, &mut out)?;
        within(&mut backend, rows, |step| {
            step.scale_rows(ScaleRows { x: &mut out, rows, cols, columns: columns.clone(), scale, cap })
        })?;
        let capped = |x: f64| match cap {
            None => x,
            Some(Cap::Soft(cap)) => f64::from(cap) * (x / f64::from(cap)).tanh(),
            Some(Cap::Hard([least, most])) => x.clamp(f64::from(least), f64::from(most)),
        };
        let changed = |(at, &x): (usize, &f32)| match columns.contains(&(at % cols)) {
            true => capped(f64::from(x * scale)),
            false => f64::from(x),
        };
        let expected: Vec<f64> = x.iter().enumerate().map(changed).collect();
        let what = format!("{rows} rows of {cols} times {scale}, cap {cap:?}");
        let absolute = if matches!(cap, Some(Cap::Soft(_))) { 5e-6 } else { 0.0 };
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 1e-6, absolute);
    }
    Ok(())
}

/// Checks inputs of products that are capped in the format that a device keeps them in.
fn capped_inputs<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    // Half of the distance between two 16-bit floats.
    const ROUNDING: f64 = 1.0 / 2048.0;
    let x = Random(seed).values(rows * cols);
    let table = matrix(&mut loader, &x, cols)?;
    // Devices choose the format by the types of their matrices.
    let halves = vec![0; size_of::<u16>() * cols];
    let weight = TensorView { name: "halves", ggml_type: GgmlType::F16, rows: 1, cols, data: &halves, scales: &[] };
    loader.upload_matrix(&[LinearPart { weight, bias: None }], &mut |_| Ok(()))?;
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut input)?;
    let (activation, range, columns) = (Activation::Silu, [0.01f32, 0.3], cols / 4..cols - cols / 3);
    within(&mut backend, rows, |step| {
        step.activation(Activate { x: &input, activation, rows, cols, out: &mut out })?;
        let (columns, cap) = (columns.clone(), Some(Cap::Hard(range)));
        step.scale_rows(ScaleRows { x: &mut out, rows, cols, columns, scale: 1.0, cap })
    })?;
    let [least, most] = range.map(f64::from);
    let expected = x.iter().enumerate().map(|(at, &x)| {
        let value = reference::plain(activation, f64::from(x));
        if columns.contains(&(at % cols)) { value.clamp(least, most) } else { value }
    });
    let expected: Vec<f64> = expected.collect();
    let what = format!("{rows} rows of {cols} inputs within {range:?}");
    tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, ROUNDING, 1e-6);
    Ok(())
}

/// Checks rows times their gate, which is computed from other rows, with and without a norm.
fn gate_rows<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let (x, norm) = (random.values(rows * cols), random.values(cols));
    // Keeps the magnitude of a product independent of the number of columns.
    let weight: Vec<f32> = random.values(cols).iter().map(|x| 8.0 * x / (cols as f32).sqrt()).collect();
    let table = matrix(&mut loader, &x, cols)?;
    let (weight_vector, norm_vector) = (vector(&mut loader, &weight)?, vector(&mut loader, &norm)?);
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut input)?;
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let host = HostNorm { kind: NormKind::Rms, weight: &norm, bias: None, eps: 1e-5 };
    for (normed, norm) in [(host.of(&wide), Some(Norm::rms(&norm_vector, 1e-5))), (wide.clone(), None)] {
        fill(&mut backend, &table, rows, &mut out)?;
        within(&mut backend, rows, |step| {
            step.gate_rows(GateRows { x: &input, norm, weight: &weight_vector, rows, cols, out: &mut out })
        })?;
        let gates = normed.chunks(cols).map(|row| {
            let product: f64 = row.iter().zip(&weight).map(|(x, &w)| x * f64::from(w)).sum();
            1.0 / (1.0 + (-product).exp())
        });
        let rows_of_x = wide.chunks(cols).zip(gates);
        let expected: Vec<f64> = rows_of_x.flat_map(|(row, gate)| row.iter().map(move |x| x * gate)).collect();
        let what = format!("gate of {rows} rows of {cols}, with a norm: {}", norm.is_some());
        // The error of a product contains the roundings of all its numbers.
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 1e-5, 1e-30);
    }
    Ok(())
}

/// Checks heads times a function of their gates.
fn gate_heads<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let heads = 1 + seed as usize % 6;
    let gates: Vec<f32> = random.values(rows * heads).iter().map(|x| 25.0 * x).collect();
    let x = random.values(rows * heads * cols);
    let (gate_table, table) = (matrix(&mut loader, &gates, heads)?, matrix(&mut loader, &x, heads * cols)?);
    let (mut gate, mut out) = (loader.alloc_buffer(rows, heads)?, loader.alloc_buffer(rows, heads * cols)?);
    let mut backend = loader.finish()?;
    fill(&mut backend, &gate_table, rows, &mut gate)?;
    for function in [GateFunction::Sigmoid, GateFunction::Softplus] {
        fill(&mut backend, &table, rows, &mut out)?;
        within(&mut backend, rows, |step| {
            step.gate_heads(GateHeads { gate: &gate, function, rows, heads, cols, out: &mut out })
        })?;
        let factor = |gate: f32| match function {
            GateFunction::Sigmoid => 1.0 / (1.0 + (-f64::from(gate)).exp()),
            GateFunction::Softplus => f64::from(gate).exp().ln_1p(),
        };
        let of_head =
            |(head, &gate): (&[f32], &f32)| -> Vec<f64> { head.iter().map(|&x| f64::from(x) * factor(gate)).collect() };
        let expected: Vec<f64> = x.chunks(cols).zip(&gates).flat_map(of_head).collect();
        let what = format!("{function:?} of gates of {heads} heads of {rows} rows of {cols}");
        tally.close(&what, backend.to_host(&out, rows, heads * cols)?, &expected, 1e-6, 1e-7);
    }
    Ok(())
}

fn gather<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let x = random.values(rows * cols);
    let indices: Vec<u32> = (0..rows).map(|_| (random.next() % rows as u64) as u32).collect();
    let batch = Batch { logits_indices: indices.clone(), ..rows_batch(indices.clone()) };
    let table = matrix(&mut loader, &x, cols)?;
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    let expected = |scale: f32| -> Vec<f32> {
        indices.iter().flat_map(|&i| x[i as usize * cols..][..cols].iter().map(move |x| x * scale)).collect()
    };

    fill(&mut backend, &table, rows, &mut input)?;
    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.gather_rows(GatherRows { x: &input, cols, out: &mut out })
    })?;
    tally.same(&format!("gather {rows} rows of {cols}"), backend.to_host(&out, rows, cols)?, &expected(1.0));

    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.embed(Embed { table: &table, scale: 3.5, out: &mut out })
    })?;
    tally.same(&format!("embed {rows} rows of {cols}"), backend.to_host(&out, rows, cols)?, &expected(3.5));
    let unknown = rows_batch(vec![rows as u32]);
    let embedded = backend.step(&unknown, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.embed(Embed { table: &table, scale: 1.0, out: &mut out })
    });
    let refused = embedded.is_err();
    tally.judge("an unknown token", 1, if refused { Ok(0.0) } else { Err("embedded as if it were known".to_owned()) });
    Ok(())
}

const SEPARATOR: u32 = 2;

/// Returns a batch of `rows` tokens in all, with sequences of 0 to 64. Some have no separator, others several.
fn pairs(rows: usize) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..rows_batch((0..rows as u32).collect()) };
    batch.context_lens.clear();
    for len in [1, 0, 3, 64, 2, 9].into_iter().cycle() {
        let start = batch.cu_seqlens_q[batch.num_seqs()] as usize;
        if start == rows {
            break;
        }
        let end = rows.min(start + len);
        batch.cu_seqlens_q.push(end as u32);
        batch.context_lens.push((end - start) as u32);
        for (position, row) in (start..end).enumerate() {
            batch.positions[row] = position as u32;
            batch.token_ids[row] = (row * row % 7) as u32;
        }
    }
    batch
}

/// Checks the addition of table rows: by the tokens' positions, by the texts of pairs, and the first row for all.
fn add_rows<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let first = 3;
    let (x, added) = (random.values(rows * cols), random.values((first + rows) * cols));
    let (table, added_rows) = (matrix(&mut loader, &x, cols)?, vector(&mut loader, &added)?);
    let mut out = loader.alloc_buffer(rows, cols)?;
    let mut backend = loader.finish()?;
    let at = |first: usize| -> Batch {
        let end = (first + rows) as u32;
        let positions = (first as u32..end).collect();
        Batch { positions, context_lens: vec![end], ..rows_batch((0..rows as u32).collect()) }
    };
    for (row, from) in [(TableRow::OfPosition, first * cols), (TableRow::First, 0)] {
        fill(&mut backend, &table, rows, &mut out)?;
        backend.step(&at(first), &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.add_rows(AddRows { table: &added_rows, cols, row, out: &mut out })
        })?;
        let step = if row == TableRow::OfPosition { cols } else { 0 };
        let sum = |i: usize, x: &f32| x + added[from + i / cols * step + i % cols];
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| sum(i, x)).collect();
        let what = format!("rows of a table, {row:?}, added to {rows} rows of {cols}");
        tally.same(&what, backend.to_host(&out, rows, cols)?, &expected);
    }
    let pairs = pairs(rows);
    fill(&mut backend, &table, rows, &mut out)?;
    let row = TableRow::SecondBehind(SEPARATOR);
    backend.step(&pairs, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.add_rows(AddRows { table: &added_rows, cols, row, out: &mut out })
    })?;
    let mut expected = x;
    for seq in 0..pairs.num_seqs() {
        let mut second = 0;
        for token in pairs.tokens_of(seq) {
            let added = &added[second * cols..][..cols];
            expected[token * cols..][..cols].iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
            second |= usize::from(pairs.token_ids[token] == SEPARATOR);
        }
    }
    let what = format!("rows of the texts of pairs, added to {rows} rows of {cols}");
    tally.same(&what, backend.to_host(&out, rows, cols)?, &expected);
    let midway = backend.step(&at(first), &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.add_rows(AddRows { table: &added_rows, cols, row, out: &mut out })
    });
    let verdict = if midway.is_err() { Ok(0.0) } else { Err("has texts whose beginning is not there".to_owned()) };
    tally.judge("a pair without its beginning", 1, verdict);
    let beyond = backend.step(&at(first + 1), &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.add_rows(AddRows { table: &added_rows, cols, row: TableRow::OfPosition, out: &mut out })
    });
    let verdict = if beyond.is_err() { Ok(0.0) } else { Err("has a row in a table without it".to_owned()) };
    tally.judge("a position beyond a table", 1, verdict);
    Ok(())
}

/// The angle is f32 (position times frequency, rounded); its cos and sin are right to the last place.
fn angles<L: Loader>(mut loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let positions = [0, 1, 2, 17, 4095, 131_071];
    let inv_freq: Vec<f32> = (0..5).map(|i| 10_000f32.powf(-(i as f32) / 5.0)).collect();
    let spec = RopeSpec { kind: RopeKind::Norm, inv_freq: inv_freq.clone(), magnitude: 1.25 };
    let rope = loader.upload_rope(&spec)?;
    let mut out = loader.alloc_buffer(positions.len(), 2 * inv_freq.len())?;
    let mut backend = loader.finish()?;
    let batch = Batch { positions: positions.to_vec(), context_lens: vec![131_072], ..rows_batch(vec![0; 6]) };
    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.rope_angles(RopeAngles { rope: &rope, out: &mut out })
    })?;
    let mut expected = Vec::new();
    for position in positions {
        let angles: Vec<f64> = inv_freq.iter().map(|f| f64::from(position as f32 * f)).collect();
        expected.extend(angles.iter().map(|a| a.cos() * 1.25));
        expected.extend(angles.iter().map(|a| a.sin() * 1.25));
    }
    let got = backend.to_host(&out, positions.len(), 2 * inv_freq.len())?;
    tally.close("angles", got, &expected, 2e-7, 1e-30);
    Ok(())
}
