//! Kernels that a decode step launches, with the shapes of Llama 3 8B in Q4_K_M and the tables of AMD's GPUs.

use std::fs::OpenOptions;

use super::gpu::Opened;
use super::{MAX_TOKENS, Model, load_within};
use crate::backend::Backend;
use crate::config::KvCacheDtype;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, Value};
use crate::gpu::GpuBackend;
use crate::gpu::testing::devices::{self, Call, Faults};
use crate::quant::GgmlType;
use crate::selection::Needs;
use crate::testdata::{self, TempFile};
use crate::vision::Images;
use crate::{DecoderLimits, ModelSpec, ModelTensors};

const HIDDEN: u64 = 4096;
const FFN: u64 = 14_336;
/// The vocabulary is small, because logits are one product for any number of them.
const VOCAB: u64 = 1024;
const LAYERS: u64 = 32;

/// Writes a model of this many layers. All weights are zeros, and take no room on disk.
fn model(layers: u32) -> TempFile {
    let keys = [
        ("block_count", layers),
        ("context_length", 512),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", FFN as u32),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
    ];
    let mut writer = Writer::new().key("general.architecture", &Value::String("llama".into()));
    for (key, value) in keys {
        writer = writer.key(&format!("llama.{key}"), &Value::U32(value));
    }
    writer = writer.key("llama.attention.layer_norm_rms_epsilon", &Value::F32(1e-5));
    let matrices = [
        ("attn_q", HIDDEN, HIDDEN, GgmlType::Q4_K),
        ("attn_k", HIDDEN / 4, HIDDEN, GgmlType::Q4_K),
        ("attn_v", HIDDEN / 4, HIDDEN, GgmlType::Q6_K),
        ("attn_output", HIDDEN, HIDDEN, GgmlType::Q4_K),
        ("ffn_gate", FFN, HIDDEN, GgmlType::Q4_K),
        ("ffn_up", FFN, HIDDEN, GgmlType::Q4_K),
        ("ffn_down", HIDDEN, FFN, GgmlType::Q6_K),
        ("attn_norm", 1, HIDDEN, GgmlType::F32),
        ("ffn_norm", 1, HIDDEN, GgmlType::F32),
    ];
    let of_layers = (0..layers).flat_map(|layer| {
        matrices.map(|(name, rows, cols, ty)| (format!("blk.{layer}.{name}.weight"), rows, cols, ty))
    });
    let others =
        [("token_embd", VOCAB, GgmlType::Q4_K), ("output", VOCAB, GgmlType::Q6_K), ("output_norm", 1, GgmlType::F32)]
            .map(|(name, rows, ty)| (format!("{name}.weight"), rows, HIDDEN, ty));
    let mut end = 0;
    for (name, rows, cols, ty) in of_layers.chain(others) {
        let shape = if rows == 1 { vec![cols] } else { vec![cols, rows] };
        writer = writer.tensor(Tensor { offset: Some(end), ..Tensor::new(&name, &shape, ty, &[]) });
        end += rows * ty.row_bytes(cols as usize).unwrap() as u64;
        end = end.next_multiple_of(32);
    }
    let header = writer.bytes();
    let file = testdata::temp_file("zeros.gguf", &header);
    let data = (header.len() as u64).next_multiple_of(32);
    OpenOptions::new().write(true).open(&file.0).unwrap().set_len(data + end).unwrap();
    file
}

fn load(device: &Opened, layers: u32) -> Model<GpuBackend> {
    let file = model(layers);
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let limits = DecoderLimits { max_num_batched_tokens: MAX_TOKENS, max_logits_rows: MAX_TOKENS };
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    load_within(devices::loader(device, MAX_TOKENS), &tensors, KvCacheDtype::F16, limits).unwrap()
}

/// Returns the kernels of a step of this many sequences.
fn launches(model: &mut Model<GpuBackend>, faults: &Faults, rows: usize) -> u64 {
    let batch = model.batch(&vec![(&[1, 2, 3][..], 2); rows]);
    let before = faults.calls(Call::Launch);
    let needs = Needs { logits: true, hidden: false };
    model.decoder.launch(&mut model.backend, &batch, &Images::new(), needs).unwrap();
    faults.calls(Call::Launch) - before
}

const ROWS: [usize; 5] = [1, 2, 8, 16, 64];

/// Returns the kernels of steps of `ROWS` sequences of a model with `LAYERS` layers. They are computed from models of
/// one and two layers, since all layers launch the same.
fn kernels(arch: &str, integrated: bool, multiprocessors: u32) -> Option<[u64; ROWS.len()]> {
    let (device, options, faults) = devices::open_planned(arch, integrated, multiprocessors)?;
    let device = (device, options);
    let [one, two] = [1, 2].map(|layers| {
        let mut model = load(&device, layers);
        let counts = ROWS.map(|rows| launches(&mut model, &faults, rows));
        let described = model.backend.describe();
        let said = format!("kernels of a decode step: {} for 1 sequence, {} for 8", counts[0], counts[2]);
        assert!(described.contains(&said), "{described}");
        counts
    });
    Some(std::array::from_fn(|i| one[i] + (LAYERS - 1) * (two[i] - one[i])))
}

/// A GPU: its architecture, whether it is part of a processor, its multiprocessors, and the kernels of steps of `ROWS`.
pub(super) type Card = (&'static str, bool, u32, [u64; ROWS.len()]);

/// RX 7900 XTX, MI300X and Strix Halo.
const CARDS: [Card; 3] = [
    ("gfx1100", false, 48, [166, 232, 232, 232, 264]),
    ("gfx942", false, 304, [166, 232, 232, 232, 264]),
    ("gfx1151", true, 20, [166, 232, 232, 232, 232]),
];
/// RX 6900 XT, RX 9070 XT, a die of an MI250, and MI355X.
pub(super) const MORE_CARDS: [Card; 4] = [
    ("gfx1030", false, 40, [166, 232, 232, 232, 232]),
    ("gfx1201", false, 32, [166, 232, 232, 232, 264]),
    ("gfx90a", false, 104, [166, 232, 232, 232, 264]),
    ("gfx950", false, 256, [166, 232, 232, 232, 264]),
];

pub(super) fn check_launches(cards: &[Card]) {
    for &(arch, integrated, multiprocessors, expected) in cards {
        let Some(counts) = kernels(arch, integrated, multiprocessors) else { return };
        assert_eq!(counts, expected, "{arch}");
    }
}

/// A new number here is a change of a step's launches: keep it only if it is wanted.
#[test]
fn kernels_of_a_step_are_counted() {
    check_launches(&CARDS);
}
