//! Files whose MTP block proposes the model's tokens.

use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{Array, GgufFile, Value};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};

/// Matrices through which a layer adds to the residual.
const OUTPUTS: [&str; 5] = ["attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp"];

/// Returns the golden file `arch/<name>`, in which no layer adds anything. The next token then depends only on the
/// token before it. The MTP block passes on the embedding of its token, so it drafts the model's tokens. A file without
/// a block gets a copy of its last attention layer.
pub fn right_drafts(name: &str) -> TempFile {
    let file = testdata::file(&format!("arch/{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let arch = gguf.metadata().str("general.architecture").unwrap();
    let number = |key: &str| gguf.metadata().opt_u32(&format!("{arch}.{key}")).unwrap().unwrap_or(0);
    let num_layers = number("block_count") - number("nextn_predict_layers").min(1);
    let has_block = number("nextn_predict_layers") > 0;
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        if key.ends_with(".block_count") || key.ends_with(".nextn_predict_layers") {
            continue;
        }
        writer = match value {
            Value::Array(Array::Bool(flags)) if !has_block && key.starts_with(arch) => {
                writer.key(key, &Value::Array(Array::Bool([&flags[..], &[false]].concat())))
            }
            other => writer.key(key, other),
        };
    }
    writer = writer.key(&format!("{arch}.block_count"), &Value::U32(num_layers + 1));
    writer = writer.key(&format!("{arch}.nextn_predict_layers"), &Value::U32(1));
    let last = (0..num_layers).rev().find(|i| gguf.tensor(&format!("blk.{i}.attn_q.weight")).is_some()).unwrap();
    let block = |tensor: &str| format!("blk.{num_layers}.{tensor}");
    let mut hidden = 0;
    for info in gguf.tensors().iter().filter(|info| !info.name.contains(".nextn.")) {
        let view = gguf.view(info);
        let is_output = OUTPUTS.iter().any(|name| info.name.ends_with(&format!(".{name}.weight")));
        let data = if is_output { vec![0; view.data.len()] } else { view.data.to_vec() };
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, &data));
        if let Some(rest) = info.name.strip_prefix(&format!("blk.{last}.")).filter(|_| !has_block) {
            writer = writer.tensor(Tensor::new(&block(rest), &info.shape, view.ggml_type, &data));
        }
        if info.name == "output_norm.weight" {
            hidden = info.shape[0];
            let name = block("nextn.shared_head_norm.weight");
            writer = writer.tensor(Tensor::new(&name, &info.shape, view.ggml_type, view.data));
        }
    }
    let of_row = |row: u64| (0..2 * hidden).map(move |column| half::f16::from_f32(f32::from(u8::from(column == row))));
    let identity: Vec<u8> = (0..hidden).flat_map(of_row).flat_map(half::f16::to_le_bytes).collect();
    let projection = Tensor::new(&block("nextn.eh_proj.weight"), &[2 * hidden, hidden], GgmlType::F16, &identity);
    writer = writer.tensor(projection);
    for name in ["nextn.enorm.weight", "nextn.hnorm.weight"] {
        writer = writer.tensor(Tensor::ones(&block(name), hidden));
    }
    testdata::temp_file("right_guesses.gguf", &writer.bytes())
}
