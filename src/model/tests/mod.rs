//! Golden logits of the whole path (file, weights, kernels, cache), against transformers in float32; here on the CPU.

mod deep;
mod drafter;
mod encoders;
mod families;
mod fused;
mod golden;
mod gpu;
mod hidden;
mod instruction_sets;
mod keys;
mod launches;
mod layers;
mod library;
mod placement;
mod rows;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::backend::{Backend, LinearPart, Loader, MemoryLedger};
use crate::batch::{Batch, GroupTables, NO_STATE, StateWrite};
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::GgufFile;
use crate::quant::GgmlType;
use crate::selection::{Needs, SamplingRequest, Wanted};
use crate::tensor::TensorView;
use crate::testdata::{self, TempFile};
use crate::vision::Images;
use crate::{Decoder, DecoderLimits, ModelSpec, ModelTensors};
use crate::{Error, Result};

const BLOCK: usize = 16;
const MAX_TOKENS: usize = 64;
/// A sequence uses this many state slots in turn, so that a repeated step finds its initial state. `NUM_STATES` has
/// room for 16 sequences.
const STATES_IN_TURN: usize = 3;
const NUM_STATES: usize = 16 * STATES_IN_TURN;
/// The longest sequence of most tests, for models whose RoPE depends on it.
const MAX_MODEL_LEN: usize = 512;

struct Model<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
}

type CpuModel = Model<<CpuLoader as Loader>::Backend>;

fn load(name: &str) -> CpuModel {
    load_with_kv(name, KvCacheDtype::F16)
}

fn load_with_kv(name: &str, dtype: KvCacheDtype) -> CpuModel {
    load_on(CpuLoader::new(2, MAX_TOKENS).unwrap(), name, dtype)
}

fn load_on<L: Loader>(loader: L, name: &str, dtype: KvCacheDtype) -> Model<L::Backend> {
    try_load_on(loader, name, dtype).unwrap()
}

fn try_load_on<L: Loader>(loader: L, name: &str, dtype: KvCacheDtype) -> Result<Model<L::Backend>> {
    try_load_file(loader, &testdata::file(name), dtype)
}

fn try_load_file<L: Loader>(loader: L, file: &TempFile, dtype: KvCacheDtype) -> Result<Model<L::Backend>> {
    try_load_with(loader, file, dtype, Some(MAX_MODEL_LEN), |_| {})
}

/// `change` edits the spec that was read from the file's keys.
fn try_load_with<L: Loader>(
    loader: L,
    file: &TempFile,
    dtype: KvCacheDtype,
    max_model_len: Option<usize>,
    change: impl FnOnce(&mut ModelSpec),
) -> Result<Model<L::Backend>> {
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut spec = ModelSpec::from_gguf(&gguf, max_model_len).unwrap();
    change(&mut spec);
    load_spec(loader, &gguf, &spec, dtype)
}

fn load_spec<L: Loader>(
    loader: L,
    gguf: &GgufFile,
    spec: &ModelSpec,
    dtype: KvCacheDtype,
) -> Result<Model<L::Backend>> {
    load_tensors(loader, &ModelTensors::collect(gguf, spec).unwrap(), dtype)
}

fn load_tensors<L: Loader>(loader: L, tensors: &ModelTensors<'_>, dtype: KvCacheDtype) -> Result<Model<L::Backend>> {
    let limits = DecoderLimits { max_num_batched_tokens: MAX_TOKENS, max_logits_rows: MAX_TOKENS };
    load_within(loader, tensors, dtype, limits)
}

fn load_within<L: Loader>(
    mut loader: L,
    tensors: &ModelTensors<'_>,
    dtype: KvCacheDtype,
    limits: DecoderLimits,
) -> Result<Model<L::Backend>> {
    let spec = tensors.spec;
    let weights = tensors.upload(&mut loader, 1 << 40, &mut |_| Ok(()))?;
    let kv_layers = spec.kv_layers(&vec![544; spec.kv_groups.len()], BLOCK, dtype);
    let pools = (&kv_layers[..], &spec.state_layers(NUM_STATES)[..]);
    let mut decoder = Decoder::new(spec.clone(), weights, &mut loader, limits, pools, None)?;
    let mut backend = loader.finish()?;
    decoder.warm_up(&mut backend)?;
    Ok(Model { backend, decoder })
}

impl<B: Backend> Model<B> {
    /// Returns the logits of `tokens[start..]` of a sequence.
    fn logits(&mut self, tokens: &[u32], start: usize) -> Vec<f32> {
        self.step(&[(tokens, start)]).unwrap()
    }

    /// Returns the logits of a sequence of any length, in steps of `MAX_TOKENS`.
    fn logits_in_steps(&mut self, tokens: &[u32]) -> Vec<f32> {
        let starts = (0..tokens.len()).step_by(MAX_TOKENS);
        starts.flat_map(|start| self.logits(&tokens[..tokens.len().min(start + MAX_TOKENS)], start)).collect()
    }

    /// Returns the logits of the new tokens of several sequences. The blocks of a sequence are never contiguous, and
    /// differ between KV groups.
    fn step(&mut self, seqs: &[(&[u32], usize)]) -> Result<Vec<f32>> {
        Ok(self.rows(seqs, |_| Wanted::Row)?.concat())
    }

    /// Returns the logits or the hidden state of each new token of several sequences.
    fn rows(&mut self, seqs: &[(&[u32], usize)], wanted: impl Fn(usize) -> Wanted) -> Result<Vec<Vec<f32>>> {
        let batch = self.batch(seqs);
        self.rows_of(&batch, wanted)
    }

    /// Returns the requested result of each row that a step names.
    fn rows_of(&mut self, batch: &Batch, wanted: impl Fn(usize) -> Wanted) -> Result<Vec<Vec<f32>>> {
        let n = batch.logits_indices.len();
        let wants = |hidden| (0..n).any(|row| (wanted(row) == Wanted::Hidden) == hidden);
        let needs = Needs { logits: wants(false), hidden: wants(true) };
        self.decoder.launch(&mut self.backend, batch, &Images::new(), needs)?;
        let (mut all, most) = (Vec::new(), self.decoder.rows_at_once());
        for start in (0..n.max(1)).step_by(most) {
            let piece = start..n.min(start + most);
            let sampling_requests: Vec<SamplingRequest<'_>> = piece.clone().map(|row| wanted(row).into()).collect();
            self.decoder.select(&mut self.backend, piece.clone(), &sampling_requests)?;
            let mut rows = self.decoder.collect(&mut self.backend)?;
            for row in piece {
                let is_hidden = wanted(row) == Wanted::Hidden;
                let values = if is_hidden { rows.hidden(row - start)? } else { rows.whole_row(row - start)? };
                all.push(values.to_vec());
            }
        }
        Ok(all)
    }

    /// Returns a step of the new tokens of several sequences, with a row for each token.
    fn batch(&self, seqs: &[(&[u32], usize)]) -> Batch {
        self.batch_of(&(0..).zip(seqs).map(|(seq, &(tokens, start))| (seq, tokens, start)).collect::<Vec<_>>())
    }

    /// Returns such a step of numbered sequences. The number determines a sequence's blocks.
    fn batch_of(&self, seqs: &[(usize, &[u32], usize)]) -> Batch {
        let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
        let empty = GroupTables { cu_blocks: vec![0], ..GroupTables::default() };
        batch.groups = vec![empty; self.decoder.spec().kv_groups.len()];
        let has_states = self.decoder.spec().state_bytes() > 0;
        batch.states.cu_writes.extend(has_states.then_some(0));
        for &(seq, tokens, start) in seqs {
            batch.token_ids.extend(&tokens[start..]);
            batch.positions.extend(start as u32..tokens.len() as u32);
            batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
            batch.context_lens.push(tokens.len() as u32);
            if has_states {
                let slot = |len: usize| (STATES_IN_TURN * seq + len % STATES_IN_TURN) as u32;
                batch.states.reads.push(if start == 0 { NO_STATE } else { slot(start) });
                let num_tokens = (tokens.len() - start) as u32;
                batch.states.writes.push(StateWrite { num_tokens, slot: slot(tokens.len()) });
                batch.states.cu_writes.push(batch.states.writes.len() as u32);
            }
            for (i, group) in batch.groups.iter_mut().enumerate() {
                let block = |index: usize| (16 * index + 3 * seq + i) as u32;
                let slot = |position: usize| block(position / BLOCK) * BLOCK as u32 + (position % BLOCK) as u32;
                group.slot_mapping.extend((start..tokens.len()).map(slot));
                group.block_tables.extend((0..tokens.len().div_ceil(BLOCK)).map(block));
                group.cu_blocks.push(group.block_tables.len() as u32);
            }
        }
        batch.logits_indices = (0..batch.token_ids.len() as u32).collect();
        batch
    }
}

/// Checks that a load allocates exactly its budget, beside a margin of 256 MiB. `look` gets the allocated amounts while
/// the model exists.
fn check_budget<L: Loader>(loader: L, name: &str, available: u64, look: impl FnOnce(MemoryLedger)) {
    let file = testdata::file(name);
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    check_budget_of(loader, &tensors, available, look);
}

fn check_budget_of<L: Loader>(
    mut loader: L,
    tensors: &ModelTensors<'_>,
    available: u64,
    look: impl FnOnce(MemoryLedger),
) {
    let spec = tensors.spec;
    let limits = DecoderLimits { max_num_batched_tokens: MAX_TOKENS, max_logits_rows: MAX_TOKENS };
    let room = loader.room_beside(tensors.uploads()).unwrap();
    let activations = Decoder::<L::Backend>::scratch_bytes::<L>(spec, limits).unwrap();
    let weights = tensors.upload(&mut loader, 0, &mut |_| Ok(())).unwrap();
    let kv_layers = spec.kv_layers(&vec![4; spec.kv_groups.len()], BLOCK, KvCacheDtype::F16);
    let pools = (&kv_layers[..], &spec.state_layers(3)[..]);
    let decoder = Decoder::new(spec.clone(), weights, &mut loader, limits, pools, None).unwrap();
    let backend = loader.finish().unwrap();
    let ledger = backend.memory();
    assert_eq!(available - (256 << 20) - room + activations, ledger.weights + ledger.scratch, "{}", spec.architecture);
    look(ledger);
    drop(decoder);
}

/// A root folder in which the system reports this amount of available memory.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, kilobytes: u64) -> Self {
        let root = std::env::temp_dir().join(format!("rocmforge-machine-{}-{name}", std::process::id()));
        std::fs::create_dir_all(root.join("proc")).unwrap();
        std::fs::write(root.join("proc/meminfo"), format!("MemAvailable: {kilobytes} kB\n")).unwrap();
        Self(root)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A20: the budget of a load is the sum of its allocations.
#[test]
fn the_budget_is_what_is_taken() {
    let machine = Machine::new("budget", 1 << 20);
    let of_experts = [
        "arch/qwen35moe.gguf",
        "arch/qwen3moe.gguf",
        "arch/minimax_m2.gguf",
        "arch/gpt_oss.gguf",
        "arch/gemma4_moe.gguf",
        "arch/lfm2moe.gguf",
    ];
    let others = [
        "arch/qwen2.gguf",
        "arch/qwen3.gguf",
        "arch/gemma3n.gguf",
        "arch/gemma4_e.gguf",
        "arch/deepseek2.gguf",
        "quant_models/Q4_K_M.gguf",
    ];
    let encoders = ["embedding/bert.gguf", "embedding/modern_bert.gguf"];
    for name in others.into_iter().chain(of_experts).chain(encoders) {
        let loader = CpuLoader::new(1, MAX_TOKENS).unwrap().with_system_root(&machine.0);
        check_budget(loader, name, 1 << 30, |_| {});
    }
}

/// A20: weights that do not fit are refused before any is read, with an error that names the shortage. Weights that fit
/// to the last kilobyte are accepted.
#[test]
fn weights_that_do_not_fit_are_refused() {
    let file = testdata::file("quant_models/Q4_0.gguf");
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    let weights = load("quant_models/Q4_0.gguf").backend.memory().weights;
    let room = |kilobytes: u64| {
        let machine = Machine::new("refused", kilobytes);
        CpuLoader::new(1, MAX_TOKENS).unwrap().with_system_root(&machine.0).room_beside(tensors.uploads())
    };
    let least = (256 << 10) + weights.div_ceil(1024);
    room(least).unwrap();
    let Err(Error::OutOfMemory { requested, available, advice, .. }) = room(least - 1) else { panic!("not refused") };
    assert_eq!((requested, available), (weights, (least - 1 - (256 << 10)) * 1024));
    assert!(advice.contains("smaller model"), "{advice}");
}

/// Progress is reported every few megabytes and sums up to the file's bytes. An error of the callback ends the load at
/// once.
fn check_progress<L: Loader>(mut loader: L) {
    let (rows, cols) = (4096, 4096);
    let data = vec![0u8; rows * cols * 2];
    let weight = TensorView { name: "big", ggml_type: GgmlType::F16, rows, cols, data: &data, scales: &[] };
    let mut reports = Vec::new();
    let part = [LinearPart { weight, bias: None }];
    let mut progress = |bytes| {
        reports.push(bytes);
        Ok(())
    };
    loader.upload_matrix(&part, &mut progress).unwrap();
    assert_eq!(reports.iter().sum::<u64>(), data.len() as u64);
    let mut left = 1;
    let stopped = loader.upload_matrix(&part, &mut |bytes| {
        assert!(bytes <= 64 << 20);
        left -= 1;
        if left == 0 { Err(Error::Interrupted) } else { Ok(()) }
    });
    assert!(matches!(stopped, Err(Error::Interrupted)) && left == 0);
    assert!(reports.iter().all(|&bytes| bytes <= 64 << 20));
}

#[test]
fn progress_comes_within_a_tensor() {
    check_progress(CpuLoader::new(2, 1).unwrap());
    let mut reports = 0;
    let data = vec![0u8; 32 << 20];
    let weight = TensorView { name: "big", ggml_type: GgmlType::F16, rows: 4096, cols: 4096, data: &data, scales: &[] };
    let mut loader = CpuLoader::new(2, 1).unwrap();
    let mut progress = |bytes| {
        reports += 1;
        assert!(bytes <= 5 << 20, "{bytes} bytes without a word");
        Ok(())
    };
    loader.upload_matrix(&[LinearPart { weight, bias: None }], &mut progress).unwrap();
    assert!(reports >= 7);
}

fn tokens(z: &testdata::Npz) -> Vec<u32> {
    z.i32("tokens").into_iter().map(|t| t as u32).collect()
}

fn max_abs(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, v| m.max(v.abs()))
}

/// Returns the greatest and the mean distance.
fn distance(got: &[f32], expected: &[f32]) -> (f32, f32) {
    assert_eq!(got.len(), expected.len());
    let errors: Vec<f32> = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).collect();
    (max_abs(&errors), errors.iter().sum::<f32>() / errors.len() as f32)
}

/// Returns the golden file with float matrices. gpt-oss's experts are MXFP4, whose products take 8-bit activations.
fn float_file(name: &str) -> TempFile {
    let file = testdata::file(&format!("arch/{name}.gguf"));
    if name == "gpt_oss" { layers::in_float(&file, |name| name.ends_with("exps.weight")) } else { file }
}

/// MXFP4 experts with 8-bit activations are as far from the exact result as llama.cpp (max 2.07, mean 0.103), because
/// routers sometimes select another expert.
#[test]
fn golden_logits_of_mxfp4_experts() {
    let z = testdata::npz("arch/gpt_oss");
    let (max, mean) = distance(&load("arch/gpt_oss.gguf").logits(&tokens(&z), 0), &z.f32("logits"));
    assert!(max < 2.2 && mean < 0.11, "max {max}, mean {mean}");
}

/// A model with long and short RoPE factors uses the long ones if longer sequences are served.
#[test]
fn golden_logits_of_a_long_context() {
    let z = testdata::npz("arch/phi4mini");
    let tokens: Vec<u32> = z.i32("tokens_long").into_iter().map(|token| token as u32).collect();
    let expected = z.f32("logits_long_last8");
    let file = testdata::file("arch/phi4mini.gguf");
    let loader = CpuLoader::new(2, MAX_TOKENS).unwrap();
    let mut model = try_load_with(loader, &file, KvCacheDtype::F32, Some(MAX_MODEL_LEN + 1), |_| {}).unwrap();
    let got = model.logits_in_steps(&tokens);
    let relative = distance(&got[got.len() - expected.len()..], &expected).0 / max_abs(&expected);
    assert!(relative < 1e-3, "{relative:.2e} of the largest logit");
}

/// Quantized weights with 8-bit activations: no worse than llama.cpp's distance from the exact result (max 0.42, mean
/// 0.06 over these files).
#[test]
fn golden_logits_of_the_quantisations() {
    for name in ["Q4_0", "Q3_K_M", "Q4_K_M", "Q6_K", "IQ4_XS"] {
        let z = testdata::npz(&format!("quant_models/{name}"));
        let expected = z.f32("logits_float");
        let got = load(&format!("quant_models/{name}.gguf")).logits(&tokens(&z), 0);
        let (max, mean) = distance(&got, &expected);
        println!("{name}: max {max:.3}, mean {mean:.3}");
        assert!(max < 0.42 && mean < 0.06, "{name}: max {max}, mean {mean}");
    }
}

/// M4: the prompt at once, in uneven chunks, and token by token give bitwise equal logits.
#[test]
fn chunked_prefill_and_decode_equal_prefill_bitwise() {
    let quantised = ["quant_models/Q4_K_M", "quant_models/Q4_0"].map(str::to_owned);
    for name in testdata::architectures().into_iter().map(|name| format!("arch/{name}")).chain(quantised) {
        let tokens = tokens(&testdata::npz(&name));
        let mut model = load(&format!("{name}.gguf"));
        let whole = model.logits(&tokens, 0);
        let vocab = whole.len() / tokens.len();
        for cuts in [vec![1, 17, 18, 31, 48], (1..=48).collect()] {
            let mut start = 0;
            for end in cuts {
                let part = model.logits(&tokens[..end], start);
                assert!(part == whole[start * vocab..end * vocab], "{name}: tokens {start}..{end} differ");
                start = end;
            }
        }
    }
}

/// A10: a step that is interrupted at any moment reports it. Repeated into the same slots, it gives the bits of an
/// uninterrupted step. All other slots are unchanged.
#[test]
fn an_interrupted_step_is_computed_again_exactly() {
    for name in ["arch/deepseek2", "arch/qwen3", "arch/qwen35", "arch/qwen3moe", "quant_models/Q4_0"] {
        let tokens = tokens(&testdata::npz(name));
        let mut model = load(&format!("{name}.gguf"));
        let expected = model.logits(&tokens, 0);
        let vocab = expected.len() / tokens.len();
        let interrupt = model.backend.interrupt().unwrap().clone();
        let mut interrupted = 0;
        for micros in (0..40).map(|i| 25 * i) {
            let mut model = load(&format!("{name}.gguf"));
            let interrupt_of_model = model.backend.interrupt().unwrap().clone();
            assert!(model.logits(&tokens[..20], 0) == expected[..20 * vocab]);
            interrupt_of_model.stop_at(Instant::now() + Duration::from_micros(micros));
            match model.step(&[(&tokens, 20), (&tokens[..9], 0)]) {
                Err(Error::Interrupted) => interrupted += 1,
                Err(error) => panic!("{error}"),
                Ok(got) => assert!(got[..expected.len() - 20 * vocab] == expected[20 * vocab..]),
            }
            interrupt_of_model.clear();
            assert!(model.logits(&tokens, 20) == expected[20 * vocab..], "{name}: after {micros} us");
        }
        assert!(interrupted > 0 && !interrupt.is_due(), "{name}: the first one has no time at all");
    }
}

/// Linear and YaRN context scaling, compared with llama.cpp on the same float32 weights. Without the scaling, logits
/// are off by more than 5.
#[test]
fn golden_logits_of_rope_scalings() {
    for name in ["linear", "yarn"] {
        let z = testdata::npz(&format!("rope_scaling/{name}"));
        let expected = z.f32("logits");
        let mut model = load(&format!("rope_scaling/{name}.gguf"));
        let tokens = tokens(&z);
        let (error, _) = distance(&model.logits_in_steps(&tokens), &expected);
        println!("{name}: max error {error:.2e}");
        assert!(error / max_abs(&expected) < 1e-3, "{name}: {error}");
    }
}
