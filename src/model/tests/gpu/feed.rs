//! Steps that begin with tokens that the device picked, and that are launched before the host knows these tokens.

use super::Opened;
use crate::Error;
use crate::batch::{Batch, ChosenToken};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::gpu::GpuBackend;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::selection::{Needs, SamplingRequest, Selected, Wanted};
use crate::tests::{MAX_TOKENS, Model, load_on};
use crate::vision::Images;

const LOGITS: Needs = Needs { logits: true, hidden: false };
/// Steps after the prompts.
const STEPS: usize = 5;

fn load((device, options): &Opened, graphs: bool, name: &str) -> Model<GpuBackend> {
    let device = (device.clone(), GpuOptions { graphs: Some(graphs), ..options.clone() });
    load_on(devices::loader(&device, MAX_TOKENS), name, KvCacheDtype::F16)
}

fn launch(model: &mut Model<GpuBackend>, batch: &Batch) {
    model.decoder.launch(&mut model.backend, batch, &Images::new(), LOGITS).unwrap();
}

/// Requests the most likely token of each row.
fn select(model: &mut Model<GpuBackend>, rows: usize) {
    let sampling_requests: Vec<SamplingRequest<'_>> = vec![Wanted::Argmax.into(); rows];
    model.decoder.select(&mut model.backend, 0..rows, &sampling_requests).unwrap();
}

fn collect(model: &mut Model<GpuBackend>, rows: usize) -> Vec<u32> {
    let selection = model.decoder.collect(&mut model.backend).unwrap();
    let token = |row| match selection.row(row) {
        Selected::Argmax { token, .. } => token,
        other => panic!("{other:?}"),
    };
    (0..rows).map(token).collect()
}

/// Returns the prompts of `count` sequences, of different lengths.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    (0..count as u32).map(|seq| (0..1 + seq % 4).map(|i| 5 + 7 * seq + 3 * i).collect()).collect()
}

/// Returns a step of the prompts, with the rows of their last tokens.
fn prompt_step(model: &Model<GpuBackend>, prompts: &[Vec<u32>]) -> Batch {
    let seqs: Vec<(&[u32], usize)> = prompts.iter().map(|prompt| (&prompt[..], 0)).collect();
    let mut batch = model.batch(&seqs);
    batch.logits_indices = batch.cu_seqlens_q[1..].iter().map(|end| end - 1).collect();
    batch
}

/// Returns a step of the last token of each sequence.
fn decode_step(model: &Model<GpuBackend>, seqs: &[Vec<u32>]) -> Batch {
    model.batch(&seqs.iter().map(|seq| (&seq[..], seq.len() - 1)).collect::<Vec<_>>())
}

/// Returns the tokens of each step. Each step is launched when the tokens of the step before are known.
fn one_by_one(model: &mut Model<GpuBackend>, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut seqs = prompts.to_vec();
    let mut batch = prompt_step(model, prompts);
    (0..=STEPS)
        .map(|_| {
            launch(model, &batch);
            select(model, seqs.len());
            let tokens = collect(model, seqs.len());
            seqs.iter_mut().zip(&tokens).for_each(|(seq, token)| seq.push(*token));
            batch = decode_step(model, &seqs);
            tokens
        })
        .collect()
}

/// Returns the tokens of each step. Each step is launched before the tokens of the step before are known.
fn ahead(model: &mut Model<GpuBackend>, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut seqs = prompts.to_vec();
    let batch = prompt_step(model, prompts);
    launch(model, &batch);
    select(model, seqs.len());
    // Every other step has the sequences in reverse order, so a token and its row have different indices.
    let order = |step: usize| -> Vec<usize> {
        let straight = 0..prompts.len();
        if step % 2 == 1 { straight.rev().collect() } else { straight.collect() }
    };
    let in_order = |step: usize, tokens: Vec<u32>| {
        let mut sorted: Vec<_> = order(step).into_iter().zip(tokens).collect();
        sorted.sort_unstable();
        sorted.into_iter().map(|(_, token)| token).collect::<Vec<u32>>()
    };
    let mut all = Vec::new();
    for step in 1..=STEPS {
        // Token 0 is a placeholder for an unknown token.
        seqs.iter_mut().for_each(|seq| seq.push(0));
        let (before, now) = (order(step - 1), order(step));
        let numbered: Vec<_> = now.iter().map(|&seq| (seq, &seqs[seq][..], seqs[seq].len() - 1)).collect();
        let mut batch = model.batch_of(&numbered);
        let row_of = |seq: &usize| before.iter().position(|other| other == seq).unwrap() as u32;
        batch.chosen = (0..).zip(now.iter().map(row_of)).map(|(index, row)| ChosenToken { index, row }).collect();
        launch(model, &batch);
        let tokens = in_order(step - 1, collect(model, seqs.len()));
        select(model, seqs.len());
        seqs.iter_mut().zip(&tokens).for_each(|(seq, token)| *seq.last_mut().unwrap() = *token);
        all.push(tokens);
    }
    let last = collect(model, seqs.len());
    all.push(in_order(STEPS, last));
    all
}

/// A dense model, a recurrent one, and one with experts.
pub(in crate::tests) const NAMES: [&str; 3] = ["quant_models/Q4_0.gguf", "arch/qwen35.gguf", "arch/qwen3moe.gguf"];

pub(in crate::tests) fn check_feed(device: Option<Opened>, names: &[&str], counts: &[usize]) {
    let Some(device) = device else { return };
    for name in names {
        for graphs in [true, false] {
            let mut model = load(&device, graphs, name);
            for &count in counts {
                let prompts = prompts(count);
                let expected = one_by_one(&mut model, &prompts);
                assert_eq!(ahead(&mut model, &prompts), expected, "{name}, {count} sequences, captured: {graphs}");
            }
            check_refusals(&mut model);
        }
    }
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// Rows that another step has overwritten are not read. Tokens that the device did not pick are not used.
fn check_refusals(model: &mut Model<GpuBackend>) {
    let seqs = vec![vec![3, 4], vec![5, 6]];
    let batch = decode_step(model, &seqs);
    let behind = |row| Batch { chosen: vec![ChosenToken { index: 0, row }], ..batch.clone() };
    launch(model, &batch);
    select(model, 2);
    let refused = model.decoder.launch(&mut model.backend, &behind(2), &Images::new(), LOGITS);
    assert!(matches!(refused, Err(Error::Internal { .. })), "{refused:?}");

    launch(model, &batch);
    select(model, 2);
    launch(model, &behind(1));
    let mut rows = model.decoder.collect(&mut model.backend).unwrap();
    assert!(matches!(rows.whole_row(0), Err(Error::Internal { .. })));
    drop(rows);

    launch(model, &batch);
    model.decoder.select(&mut model.backend, 0..2, &[Wanted::Row.into(), Wanted::Argmax.into()]).unwrap();
    let refused = model.decoder.launch(&mut model.backend, &behind(0), &Images::new(), LOGITS);
    assert!(matches!(refused, Err(Error::Internal { .. })), "{refused:?}");
    launch(model, &batch);
    select(model, 2);
    assert_eq!(collect(model, 2).len(), 2);
}

#[test]
fn steps_begin_with_tokens_that_the_device_chose() {
    check_feed(devices::open(CPU_TARGETS[0]), &NAMES, &[1, 5]);
}

/// In AMD machine code.
#[test]
fn steps_begin_with_tokens_that_amd_code_chose() {
    check_feed(devices::open("gfx1100"), &NAMES[..1], &[3]);
}

#[test]
fn steps_begin_with_tokens_that_this_machines_gpu_chose() {
    check_feed(devices::open_real(), &NAMES, &[1, 2, 5, 8]);
}
