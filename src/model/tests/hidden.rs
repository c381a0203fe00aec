//! Hidden states after the output norm, from which embeddings are computed.

use super::{CpuLoader, MAX_TOKENS, load_on, max_abs};
use crate::backend::Loader;
use crate::config::KvCacheDtype;
use crate::selection::Wanted;
use crate::testdata;

pub(super) fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    vector.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

/// Compares the last tokens' normalized hidden states with those of transformers. Covers whole prompts, and decode
/// steps beside a sequence that requests logits. Devices with graph capture run captured steps.
pub(super) fn check_hidden<L: Loader>(loader: L, bound: f32) {
    let name = "embedding/qwen3_embedding";
    let z = testdata::npz(name);
    let (tokens, vectors) = (z.i32("tokens"), z.f32("embeddings"));
    let tokens: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
    let mut model = load_on(loader, &format!("{name}.gguf"), KvCacheDtype::F16);
    for (ends, expected) in z.i32("offsets").windows(2).zip(vectors.chunks(z.shape("embeddings")[1])) {
        let prompt = &tokens[ends[0] as usize..ends[1] as usize];
        let close = |what: &str, got: &[f32]| {
            let error: Vec<f32> = unit(got).iter().zip(expected).map(|(got, expected)| got - expected).collect();
            assert!(max_abs(&error) < bound, "{what} of {} tokens: {:.2e}", prompt.len(), max_abs(&error));
        };
        let n = prompt.len();
        let hidden = model.rows(&[(prompt, 0)], |_| Wanted::Hidden).unwrap();
        close("a prompt", &hidden[n - 1]);
        // Other results of a step do not change them.
        let logits = model.rows(&[(prompt, 0)], |_| Wanted::Row).unwrap();
        let of_row = |row: usize| if row.is_multiple_of(2) { Wanted::Row } else { Wanted::Hidden };
        for (row, got) in model.rows(&[(prompt, 0)], of_row).unwrap().iter().enumerate() {
            assert!(*got == if row.is_multiple_of(2) { &logits[row] } else { &hidden[row] }[..], "row {row} of {n}");
        }
        model.rows(&[(&prompt[..1], 0), (prompt, 0)], |_| Wanted::Hidden).unwrap();
        let both = [(prompt, n - 1), (prompt, n - 1)];
        let alone = model.rows(&both, |_| Wanted::Row).unwrap();
        let beside = model.rows(&both, |row| [Wanted::Hidden, Wanted::Row][row]).unwrap();
        close("a decode step", &beside[0]);
        assert_eq!(beside[1], alone[1]);
        close("a decode step of nothing else", &model.rows(&both, |_| Wanted::Hidden).unwrap()[1]);
    }
}

#[test]
fn hidden_states_are_those_of_transformers() {
    check_hidden(CpuLoader::new(2, MAX_TOKENS).unwrap(), 1e-2);
}
