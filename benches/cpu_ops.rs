//! The CPU's own ops: `cargo bench --bench cpu_ops`. Criterion's "elem/s" are floating-point operations per second for
//! prefill, its "B/s" bytes read for the rest.
#![allow(clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rocmforge::backend::{
    Attention, Backend, DeltaNet, DeltaNetShape, DeltaNetWeights, Embed, HeadOrder, KvLayerSpec, LinearPart, Loader,
    Norm, NormRows, Ops, QkvLayout, RopeAndStore, RopeKind, RopeSpec, Rotation, Scoring,
};
use rocmforge::batch::{Batch, GroupKind, GroupTables, StateTables, StateWrite};
use rocmforge::config::KvCacheDtype;
use rocmforge::cpu::pool::ThreadPool;
use rocmforge::cpu::{CpuLoader, CpuStep};
use rocmforge::quant::GgmlType;
use rocmforge::tensor::TensorView;

const THREADS: usize = 2;
const BLOCK_SIZE: usize = 16;
/// Head counts and sizes of SmolLM2-135M and of Llama-3-8B.
const LAYOUTS: [QkvLayout; 2] = [
    QkvLayout { num_heads: 9, num_kv_heads: 3, head_dim: 64, value_dim: 64, gated: false, has_kv: true },
    QkvLayout { num_heads: 32, num_kv_heads: 8, head_dim: 128, value_dim: 128, gated: false, has_kv: true },
];

const CACHES: [KvCacheDtype; 3] = [KvCacheDtype::F16, KvCacheDtype::Int8, KvCacheDtype::Int4];

/// `seqs` sequences of `context` tokens, of which the last `new` are in this step.
fn batch(seqs: usize, context: usize, new: usize) -> Batch {
    let blocks = context.div_ceil(BLOCK_SIZE);
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    let mut group = GroupTables { cu_blocks: vec![0], ..GroupTables::default() };
    for seq in 0..seqs {
        batch.positions.extend(context as u32 - new as u32..context as u32);
        batch.context_lens.push(context as u32);
        batch.cu_seqlens_q.push(batch.positions.len() as u32);
        group.block_tables.extend((seq * blocks) as u32..((seq + 1) * blocks) as u32);
        group.cu_blocks.push(group.block_tables.len() as u32);
        group.slot_mapping.extend((context - new..context).map(|i| (seq * blocks * BLOCK_SIZE + i) as u32));
    }
    batch.token_ids = (0..batch.positions.len() as u32).collect();
    batch.groups.push(group);
    batch
}

fn attention(c: &mut Criterion, name: &str, seqs: usize, context: usize, new: usize) {
    let mut group = c.benchmark_group(name);
    for (layout, dtype) in LAYOUTS.into_iter().flat_map(|layout| CACHES.map(|dtype| (layout, dtype))) {
        let rows = context.max(seqs * new);
        let values: Vec<u8> = (0..rows * layout.cols())
            .flat_map(|i| ((i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).to_le_bytes())
            .collect();
        let weight = TensorView {
            name: "rows",
            ggml_type: GgmlType::F32,
            rows,
            cols: layout.cols(),
            data: &values,
            scales: &[],
        };
        let mut loader = CpuLoader::new(THREADS, rows).unwrap();
        let table = loader.upload_matrix(&[LinearPart { weight, bias: None }], &mut |_| Ok(())).unwrap();
        let mut qkv = loader.alloc_buffer(rows, layout.cols()).unwrap();
        let mut out = loader.alloc_buffer(rows, layout.q_cols()).unwrap();
        let angles = loader.alloc_buffer(rows, 1).unwrap();
        let num_blocks = seqs * context.div_ceil(BLOCK_SIZE);
        let QkvLayout { num_kv_heads, head_dim, .. } = layout;
        let kind = GroupKind::Full;
        let spec = KvLayerSpec {
            kind,
            skips_first: false,
            num_blocks,
            block_size: BLOCK_SIZE,
            num_kv_heads,
            head_dim,
            latent: None,
            dtype,
        };
        let mut kv = loader.alloc_kv_layers(&[spec]).unwrap().remove(0);
        let rope = RopeSpec { kind: RopeKind::Neox, inv_freq: Vec::new(), magnitude: 1.0 };
        let rope = loader.upload_rope(&rope).unwrap();
        let mut backend = loader.finish().unwrap();
        let step = batch(seqs, context, new);
        let mut whole = batch(seqs, context, context);
        whole.token_ids = whole.positions.clone();
        // Sequences run one at a time, since the buffers hold one.
        for seq in 0..seqs {
            let tokens = whole.tokens_of(seq);
            let mut one = batch(1, context, context);
            one.groups[0].slot_mapping = whole.groups[0].slot_mapping[tokens].to_vec();
            let mut ops = |step: &mut CpuStep<'_>| {
                step.embed(Embed { table: &table, scale: 1.0, out: &mut qkv })?;
                let rotation = Rotation { norms: None, rope: &rope, angles: &angles, temperature: None };
                step.rope_and_store_kv(RopeAndStore { qkv: &mut qkv, layout, rotation, group: 0, kv: &mut kv })
            };
            backend.step(&one, &mut ops).unwrap();
        }
        let throughput = if new == context {
            Throughput::Elements((seqs * 4 * layout.q_cols() * context * (context + 1) / 2) as u64)
        } else {
            Throughput::Bytes(num_blocks as u64 * spec.block_bytes().unwrap())
        };
        group.throughput(throughput);
        let scoring = Scoring::scaled(0.125);
        let id = format!("{}x{}/{}/{}", layout.num_heads, layout.head_dim, layout.num_kv_heads, dtype.name());
        group.bench_function(BenchmarkId::from_parameter(id), |b| {
            let mut ops = |step: &mut CpuStep<'_>| {
                step.attention(Attention {
                    qkv: &qkv,
                    layout,
                    scoring,
                    sinks: None,
                    biases: None,
                    group: 0,
                    kv: &kv,
                    out: &mut out,
                })
            };
            b.iter(|| backend.step(&step, &mut ops).unwrap());
        });
    }
    group.finish();
}

fn rms_norm(c: &mut Criterion) {
    let mut group = c.benchmark_group("rms_norm");
    for (rows, cols) in [(1, 576), (1, 4096), (512, 576), (512, 4096)] {
        let data = vec![0u8; 4 * cols];
        let mut loader = CpuLoader::new(THREADS, rows).unwrap();
        let view = TensorView { name: "weight", ggml_type: GgmlType::F32, rows: 1, cols, data: &data, scales: &[] };
        let weight = loader.upload_vector(view).unwrap();
        let x = loader.alloc_buffer(rows, cols).unwrap();
        let mut out = loader.alloc_buffer(rows, cols).unwrap();
        let mut backend = loader.finish().unwrap();
        let tokens = batch(1, rows, rows);
        group.throughput(Throughput::Bytes((rows * cols * 8) as u64));
        group.bench_function(format!("{rows}x{cols}"), |b| {
            let norm = Norm::rms(&weight, 1e-5);
            let mut ops = |step: &mut CpuStep<'_>| step.norm_rows(NormRows { x: &x, norm, rows, out: &mut out });
            b.iter(|| backend.step(&tokens, &mut ops).unwrap());
        });
    }
    group.finish();
}

/// A layer of Qwen 3.5 0.8B: a prompt of one sequence, and single tokens of one and of several.
fn delta_net(c: &mut Criterion) {
    let (heads, size) = (16, 128);
    let shape = DeltaNetShape {
        key_heads: heads,
        value_heads: heads,
        key_size: size,
        value_size: size,
        taps: 4,
        order: HeadOrder::Tiled,
        gate_run: heads,
    };
    let mut group = c.benchmark_group("delta net");
    for (seqs, new) in [(1, 512), (1, 1), (16, 1)] {
        let rows = seqs * new;
        let mut loader = CpuLoader::new(THREADS, rows).unwrap();
        let data = vec![0u8; 4 * shape.taps * shape.channels()];
        let mut vector = |len: usize| {
            let view = TensorView {
                name: "weight",
                ggml_type: GgmlType::F32,
                rows: 1,
                cols: len,
                data: &data[..4 * len],
                scales: &[],
            };
            loader.upload_vector(view).unwrap()
        };
        let (taps, norm) = (vector(shape.taps * shape.channels()), vector(size));
        let (decay, decay_bias) = (vector(heads), vector(heads));
        let x = loader.alloc_buffer(rows, shape.cols()).unwrap();
        let mut convolved = loader.alloc_buffer(rows, shape.channels()).unwrap();
        let mut out = loader.alloc_buffer(rows, shape.value_cols()).unwrap();
        let mut state = loader.alloc_state_layers(&[shape.state_layer(seqs)]).unwrap().remove(0);
        let mut backend = loader.finish().unwrap();
        let mut step = batch(seqs, new, new);
        step.states = StateTables {
            reads: (0..seqs as u32).collect(),
            writes: (0..seqs as u32).map(|slot| StateWrite { num_tokens: new as u32, slot }).collect(),
            cu_writes: (0..=seqs as u32).collect(),
        };
        group.throughput(match new {
            1 => Throughput::Bytes(2 * seqs as u64 * shape.state_layer(1).slot_bytes()),
            _ => Throughput::Elements((rows * 8 * heads * size * size) as u64),
        });
        group.bench_function(format!("{seqs}x{new}"), |b| {
            let weights = DeltaNetWeights { taps: &taps, decay: &decay, decay_bias: &decay_bias, norm: &norm };
            let mut ops = |step: &mut CpuStep<'_>| {
                let (state, convolved, out) = (&mut state, &mut convolved, &mut out);
                step.delta_net(DeltaNet { x: &x, shape, weights, eps: 1e-6, state, convolved, out })
            };
            b.iter(|| backend.step(&step, &mut ops).unwrap());
        });
    }
    group.finish();
}

/// Measures the hand-over of a job to the team: nothing is computed.
fn dispatch(c: &mut Criterion) {
    let pool = ThreadPool::new(THREADS).unwrap();
    c.bench_function("pool dispatch", |b| b.iter(|| pool.run(2 * THREADS, &|_| ())));
}

fn all(c: &mut Criterion) {
    dispatch(c);
    rms_norm(c);
    delta_net(c);
    attention(c, "attention prefill of 512", 1, 512, 512);
    attention(c, "attention decode at 4096", 1, 4096, 1);
    attention(c, "attention decode of 16 at 1024", 16, 1024, 1);
}

criterion_group!(benches, all);
criterion_main!(benches);
