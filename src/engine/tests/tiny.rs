//! A model of one layer, generated here. Its kernels take almost no time on a simulated device.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::gguf::Value;
use crate::gguf::writer::{Tensor, Writer};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};

pub(super) const VOCAB: u64 = 64;
/// The bytes of a block of 16 tokens, K and V in f16.
pub(super) const BLOCK_BYTES: u64 = 2 * 16 * HEAD_DIM * 2;

const HIDDEN: u64 = 64;
const HEAD_DIM: u64 = 32;

/// Returns a matrix of random weights, in blocks of 32 with one scale.
fn matrix(name: &str, rows: u64, cols: u64, scale: f32, random: &mut ChaCha8Rng) -> Tensor {
    let mut data = Vec::new();
    for _ in 0..rows * cols / 32 {
        data.extend(half::f16::from_f32(scale / 128.0).to_le_bytes());
        data.extend((0..32).map(|_| random.next_u64() as u8));
    }
    Tensor::new(name, &[cols, rows], GgmlType::Q8_0, &data)
}

/// Writes a file of a `llama` with two query heads and one head of K and V, without a tokenizer.
pub(super) fn model() -> TempFile {
    let mut random = ChaCha8Rng::seed_from_u64(17);
    let keys = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let mut writer = Writer::new().key("general.architecture", &Value::String("llama".into()));
    for (key, value) in keys {
        writer = writer.key(&format!("llama.{key}"), &Value::U32(value));
    }
    writer = writer.key("llama.attention.layer_norm_rms_epsilon", &Value::F32(1e-5));
    let shapes = [
        ("token_embd", VOCAB, HIDDEN, 1.0),
        ("output", VOCAB, HIDDEN, 1.0),
        ("blk.0.attn_q", 2 * HEAD_DIM, HIDDEN, 0.5),
        ("blk.0.attn_k", HEAD_DIM, HIDDEN, 0.5),
        ("blk.0.attn_v", HEAD_DIM, HIDDEN, 0.5),
        ("blk.0.attn_output", HIDDEN, 2 * HEAD_DIM, 0.5),
        ("blk.0.ffn_gate", 64, HIDDEN, 0.5),
        ("blk.0.ffn_up", 64, HIDDEN, 0.5),
        ("blk.0.ffn_down", HIDDEN, 64, 0.5),
    ];
    for (name, rows, cols, scale) in shapes {
        writer = writer.tensor(matrix(&format!("{name}.weight"), rows, cols, scale, &mut random));
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        writer = writer.tensor(Tensor::ones(&format!("{name}.weight"), HIDDEN));
    }
    testdata::temp_file("tiny.gguf", &writer.bytes())
}
