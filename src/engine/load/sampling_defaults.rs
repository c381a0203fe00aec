//! The sampling settings that a model's authors recommend: keys `general.sampling.*`, which llama.cpp's converter
//! writes.

use crate::config::SamplingDefaults;
use crate::gguf::{Metadata, Value};

const PREFIX: &str = "general.sampling.";

/// Returns the settings that the file recommends. An unusable value is skipped with a warning, since the user did not
/// ask for it.
pub fn sampling_defaults(metadata: &Metadata) -> SamplingDefaults {
    let file = Recommended { metadata };
    // A penalty that looks back over no tokens penalizes nothing.
    let penalised = file.integer("penalty_last_n") != Some(0);
    for sampler_that_we_lack in ["xtc_probability", "mirostat"] {
        file.number(sampler_that_we_lack, |value| value == 0.0, "0, since this sampler is not supported");
    }
    SamplingDefaults {
        // A value of 0 or less makes llama.cpp take the most likely token.
        temperature: file.number("temp", f32::is_finite, "a finite number").map(|value| value.max(0.0)),
        top_p: file.number("top_p", |value| value > 0.0 && value <= 1.0, "more than 0 and at most 1"),
        // A value of 0 or less makes llama.cpp keep all tokens.
        top_k: file.integer("top_k").map(|value| usize::try_from(value).unwrap_or(0)),
        min_p: file.number("min_p", |value| (0.0..=1.0).contains(&value), "0 to 1"),
        repetition_penalty: file
            .number("penalty_repeat", |value| value > 0.0 && value <= 2.0, "more than 0 and at most 2")
            .filter(|_| penalised),
    }
}

struct Recommended<'a> {
    metadata: &'a Metadata,
}

impl Recommended<'_> {
    fn number(&self, name: &str, fits: impl Fn(f32) -> bool, expected: &str) -> Option<f32> {
        let number = |value: &Value| match value {
            Value::F32(value) => Some(*value),
            Value::F64(value) => Some(*value as f32),
            _ => value.as_integer().map(|value| value as f32),
        };
        self.value(name, expected, |value| number(value).filter(|&value| fits(value)))
    }

    fn integer(&self, name: &str) -> Option<i128> {
        self.value(name, "an integer", |value| value.as_integer())
    }

    fn value<T>(&self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let key = format!("{PREFIX}{name}");
        let value = self.metadata.get(&key)?;
        let usable = read(value);
        if usable.is_none() {
            let file = self.metadata.path().display();
            tracing::warn!("{file}: {key} holds {value}, expected {expected}; this recommendation is ignored");
        }
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn defaults(entries: &[(&str, Value)]) -> SamplingDefaults {
        let entries = entries.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.clone())).collect();
        sampling_defaults(&Metadata::new(Path::new("m.gguf"), entries).unwrap())
    }

    #[test]
    fn a_file_that_says_nothing_recommends_nothing() {
        assert_eq!(defaults(&[]), SamplingDefaults::default());
    }

    #[test]
    fn values_are_read_as_llamacpp_means_them() {
        let all = defaults(&[
            ("temp", Value::F32(0.6)),
            ("top_p", Value::F32(0.95)),
            ("top_k", Value::I32(20)),
            ("min_p", Value::F64(0.0)),
            ("penalty_repeat", Value::F32(1.05)),
            ("penalty_last_n", Value::I32(64)),
            ("mirostat", Value::I32(0)),
        ]);
        let expected = SamplingDefaults {
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
        };
        assert_eq!(all, expected);
        let switched_off = defaults(&[
            ("temp", Value::F32(-1.0)),
            ("top_k", Value::I32(-1)),
            ("penalty_repeat", Value::F32(1.3)),
            ("penalty_last_n", Value::I32(0)),
        ]);
        let expected = SamplingDefaults { temperature: Some(0.0), top_k: Some(0), ..SamplingDefaults::default() };
        assert_eq!(switched_off, expected);
    }

    #[test]
    fn what_cannot_be_used_is_left_out() {
        let odd = defaults(&[
            ("temp", Value::F32(f32::NAN)),
            ("top_p", Value::F32(1.5)),
            ("top_k", Value::String("many".into())),
            ("min_p", Value::F32(-0.1)),
            ("penalty_repeat", Value::F32(9.0)),
        ]);
        assert_eq!(odd, SamplingDefaults::default());
    }
}
