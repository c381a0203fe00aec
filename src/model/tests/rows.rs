//! Steps of more tokens than there are rows of logits. Prompts request the logits of their last tokens, of none, or of
//! all, which then come in pieces.

use super::gpu::{Opened, bound_of, check_each_on};
use super::{CpuLoader, MAX_MODEL_LEN, MAX_TOKENS, Model, distance, load_on, load_within, max_abs, tokens};
use crate::backend::{Backend, Loader, StepLimits};
use crate::config::KvCacheDtype;
use crate::gguf::GgufFile;
use crate::gpu::GpuLoader;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::selection::{Needs, Wanted};
use crate::testdata;
use crate::vision::Images;
use crate::{DecoderLimits, ModelSpec, ModelTensors};

/// Two golden prompts of 48 tokens each.
const TOKENS: usize = 96;
/// Rows of logits of a step. The kernels' tiles have up to 64.
const ROWS: usize = 20;

/// Returns a model for steps of these sizes, with the MTP block if its file has one.
fn load<L: Loader>(loader: L, name: &str, dtype: KvCacheDtype) -> Model<L::Backend> {
    let file = testdata::file(&format!("arch/{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = match name.ends_with("_mtp") {
        true => ModelSpec::with_drafter(&gguf, Some(MAX_MODEL_LEN)),
        false => ModelSpec::from_gguf(&gguf, Some(MAX_MODEL_LEN)),
    };
    let spec = spec.unwrap();
    let limits = DecoderLimits { max_num_batched_tokens: TOKENS, max_logits_rows: ROWS };
    load_within(loader, &ModelTensors::collect(&gguf, &spec).unwrap(), dtype, limits).unwrap()
}

/// Compares rows with those of one prompt, for each way of requesting them. `close` gets the rows from a position of
/// the prompt on.
fn check<B: Backend>(model: &mut Model<B>, tokens: &[u32], close: impl Fn(&str, usize, &[f32])) {
    let both = [(tokens, 0), (tokens, 0)];
    let (len, last) = (tokens.len(), tokens.len() - 1);
    let mut ends = model.batch(&both);
    ends.logits_indices = vec![last as u32, (len + last) as u32];
    for row in model.rows_of(&ends, |_| Wanted::Row).unwrap() {
        close("the end of a prompt", last, &row);
    }

    let all = model.step(&both).unwrap();
    all.chunks(all.len() / 2).for_each(|rows| close("all rows in pieces", 0, rows));

    let first = 40;
    let mut without = model.batch(&[(&tokens[..first], 0), (&tokens[..first], 0)]);
    without.logits_indices.clear();
    model.decoder.launch(&mut model.backend, &without, &Images::new(), Needs { logits: true, hidden: false }).unwrap();
    model.decoder.select(&mut model.backend, 0..0, &[]).unwrap();
    model.decoder.collect(&mut model.backend).unwrap();
    let rest = model.step(&[(tokens, first), (tokens, first)]).unwrap();
    rest.chunks(rest.len() / 2).for_each(|rows| close("behind a step without rows", first, rows));
}

/// F2, F4: rows and hidden states are bitwise equal, computed within the step or after it.
#[test]
fn rows_in_pieces_are_exact() {
    for name in testdata::architectures() {
        let tokens = tokens(&testdata::npz(&format!("arch/{name}")));
        let mut plain =
            load_on(CpuLoader::new(2, MAX_TOKENS).unwrap(), &format!("arch/{name}.gguf"), KvCacheDtype::F16);
        let expected = plain.logits(&tokens, 0);
        let vocab = expected.len() / tokens.len();
        let mut model = load(CpuLoader::new(2, TOKENS).unwrap(), &name, KvCacheDtype::F16);
        check(&mut model, &tokens, |what, first, rows| {
            assert!(rows == &expected[first * vocab..][..rows.len()], "{name}: {what}");
        });
        let hidden = plain.rows(&[(&tokens, 0)], |_| Wanted::Hidden).unwrap();
        let of_row = |row: usize| if row.is_multiple_of(3) { Wanted::Row } else { Wanted::Hidden };
        for (row, got) in model.rows(&[(&tokens, 0)], of_row).unwrap().iter().enumerate() {
            let expected = if row.is_multiple_of(3) { &expected[row * vocab..][..vocab] } else { &hidden[row][..] };
            assert!(got == expected, "{name}: row {row} of mixed ones");
        }
    }
}

fn check_on((device, options): &Opened, name: &str) {
    let z = testdata::npz(&format!("arch/{name}"));
    let (tokens, expected) = (tokens(&z), z.f32("logits"));
    let vocab = expected.len() / tokens.len();
    let (dtype, bound) = bound_of(name, max_abs(&expected));
    let limits =
        StepLimits { tokens: TOKENS, seqs: 2, logits_rows: ROWS, groups: 2, table_blocks: 64, state_writes: 8 };
    let mut model = load(GpuLoader::new(device.clone(), options, limits).unwrap(), name, dtype);
    check(&mut model, &tokens, |what, first, rows| {
        let (error, _) = distance(rows, &expected[first * vocab..][..rows.len()]);
        assert!(error < bound, "{name}: {what}: {error:.2e}, of {:.1}", max_abs(&expected));
    });
}

/// One family of each kind of layer, and those whose last layers run on few rows or read rows without a norm.
const FAMILIES: [&str; 14] = [
    "deepseek2",
    "falcon_h1",
    "gemma2",
    "gemma3n",
    "gemma4_e",
    "gemma4_moe",
    "gpt_oss",
    "jamba",
    "lfm2",
    "nemotron_h_moe",
    "qwen3",
    "qwen35_mtp",
    "qwen3next",
    "starcoder2",
];

/// F2: buffers have room for all ops on the requested rows or on all rows of a step. `make test-kernels` checks every
/// family of models.
#[test]
fn every_row_finds_room_on_a_device() {
    check_families(devices::open(CPU_TARGETS[0]), &FAMILIES.map(str::to_owned));
}

#[test]
fn every_row_finds_room_on_this_machines_gpu() {
    check_families(devices::open_real(), &testdata::architectures());
}

pub(super) fn check_families(device: Option<Opened>, names: &[String]) {
    let Some(device) = device else { return };
    check_each_on(&device, names, check_on);
    assert_eq!(device.0.allocated_bytes(), 0);
}
