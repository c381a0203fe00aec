//! Settings of speculative decoding: draft tokens are proposed, and one step verifies several of them.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::names::{by_name, listed, within};
use crate::{Error, Result};

/// The most draft tokens of one sequence in one step, since a step has no more rows of logits for them.
const MAX_TOKENS: usize = 64;
/// Maximum tokens that an n-gram lookup compares.
const MAX_LOOKUP: usize = 64;
/// The fields, each with its name in the settings and in errors.
const METHOD: [&str; 2] = ["method", "speculative_config.method"];
const MODEL: [&str; 2] = ["model", "speculative_config.model"];
const NUM_TOKENS: [&str; 2] = ["num_speculative_tokens", "speculative_config.num_speculative_tokens"];
const LOOKUP_MAX: [&str; 2] = ["prompt_lookup_max", "speculative_config.prompt_lookup_max"];
const LOOKUP_MIN: [&str; 2] = ["prompt_lookup_min", "speculative_config.prompt_lookup_min"];

/// The source of draft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeculativeMethod {
    /// N-gram lookup: tokens that followed an earlier occurrence of the last tokens in the text.
    Ngram,
    /// A block of the model's file that was trained to propose draft tokens (multi-token prediction).
    Mtp,
    /// A small model with the same vocabulary, in a file of its own.
    DraftModel,
}

impl SpeculativeMethod {
    const ALL: [Self; 3] = [Self::Ngram, Self::Mtp, Self::DraftModel];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ngram => "ngram",
            Self::Mtp => "mtp",
            Self::DraftModel => "draft_model",
        }
    }

    /// Returns the default for the most draft tokens of a sequence in a step. Draft tokens of a block or a model have
    /// to be computed, and each is right less often than the one before.
    fn default_tokens(self) -> usize {
        match self {
            Self::Ngram => 8,
            Self::Mtp => 3,
            Self::DraftModel => 4,
        }
    }
}

/// The method and extent of speculative decoding; names as in vLLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeculativeConfig {
    pub method: SpeculativeMethod,
    /// The draft model's file, only for `DraftModel`.
    pub model: Option<PathBuf>,
    /// The most draft tokens of one sequence in one step. The actual number depends on their gain and cost.
    pub num_speculative_tokens: usize,
    /// The largest number of last tokens to match, only for `Ngram`.
    pub prompt_lookup_max: usize,
    /// The smallest number of last tokens to match, only for `Ngram`.
    pub prompt_lookup_min: usize,
}

impl Default for SpeculativeConfig {
    fn default() -> Self {
        let method = SpeculativeMethod::Ngram;
        let num_speculative_tokens = method.default_tokens();
        Self { method, model: None, num_speculative_tokens, prompt_lookup_max: 8, prompt_lookup_min: 3 }
    }
}

impl SpeculativeConfig {
    /// Reads named settings from a JSON object; others get their defaults. If only one limit of the lookup is given,
    /// the other is adjusted to agree with it.
    ///
    /// # Errors
    /// `InvalidRequest` naming `what` for text that is not such an object, an unknown name, or an invalid value.
    pub fn from_json(what: &'static str, text: &str) -> Result<Self> {
        let names = [METHOD, MODEL, NUM_TOKENS, LOOKUP_MAX, LOOKUP_MIN].map(|[name, _]| name);
        let expected = || format!("a JSON object with some of {}", names.join(", "));
        let fields: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| Error::invalid(what, format!("{text} ({error})"), expected()))?;
        if let Some(name) = fields.keys().find(|name| !names.contains(&name.as_str())) {
            return Err(Error::invalid(what, name, expected()));
        }
        let count = |[name, what]: [&'static str; 2]| {
            let read = |value: &Value| {
                let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
                number.ok_or_else(|| Error::invalid(what, value, "an integer that is not negative"))
            };
            fields.get(name).map(read).transpose()
        };
        let default = Self::default();
        let model = match fields.get(MODEL[0]) {
            None | Some(Value::Null) => None,
            Some(Value::String(path)) => Some(PathBuf::from(path)),
            Some(other) => return Err(Error::invalid(MODEL[1], other, "the path of the draft model's file")),
        };
        let method = match fields.get(METHOD[0]) {
            None if model.is_some() => SpeculativeMethod::DraftModel,
            None => default.method,
            Some(Value::String(name)) => by_name(METHOD[1], name, &SpeculativeMethod::ALL, SpeculativeMethod::name)?,
            Some(other) => {
                return Err(Error::invalid(METHOD[1], other, listed(&SpeculativeMethod::ALL, SpeculativeMethod::name)));
            }
        };
        let lookup = [LOOKUP_MAX, LOOKUP_MIN].into_iter().find(|[name, _]| fields.contains_key(*name));
        if let Some([name, what]) = lookup.filter(|_| method != SpeculativeMethod::Ngram) {
            let expected = format!("nothing, since the method '{}' does not use n-gram lookup", method.name());
            return Err(Error::invalid(what, fields.get(name).unwrap_or(&Value::Null), expected));
        }
        let (longest, shortest) = (count(LOOKUP_MAX)?, count(LOOKUP_MIN)?);
        let prompt_lookup_max = longest.unwrap_or(default.prompt_lookup_max.max(shortest.unwrap_or(0)));
        let config = Self {
            method,
            model,
            num_speculative_tokens: count(NUM_TOKENS)?.unwrap_or(method.default_tokens()),
            prompt_lookup_max,
            prompt_lookup_min: shortest.unwrap_or(default.prompt_lookup_min.min(prompt_lookup_max)),
        };
        config.validate()?;
        Ok(config)
    }

    /// # Errors
    /// `InvalidRequest` naming the first number out of range, or a draft model that is missing or unused.
    pub fn validate(&self) -> Result<()> {
        let path = self.model.as_deref().map(Path::display);
        match (self.method, path) {
            (SpeculativeMethod::DraftModel, None) => {
                let expected = "the path of the draft model's file, which the method 'draft_model' needs";
                return Err(Error::invalid(MODEL[1], "nothing", expected));
            }
            (method, Some(path)) if method != SpeculativeMethod::DraftModel => {
                let expected = format!("nothing, since the method '{}' has no model of its own", method.name());
                return Err(Error::invalid(MODEL[1], path, expected));
            }
            _ => {}
        }
        within(NUM_TOKENS[1], self.num_speculative_tokens, 1, MAX_TOKENS)?;
        within(LOOKUP_MAX[1], self.prompt_lookup_max, 1, MAX_LOOKUP)?;
        within(LOOKUP_MIN[1], self.prompt_lookup_min, 1, self.prompt_lookup_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SpeculativeConfig> {
        SpeculativeConfig::from_json("speculative_config", text)
    }

    #[test]
    fn fields_by_name_and_the_rest_by_default() {
        let default = SpeculativeConfig::default();
        default.validate().unwrap();
        assert_eq!(read("{}").unwrap(), default);
        let all = r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}"#;
        let expected = SpeculativeConfig {
            num_speculative_tokens: 5,
            prompt_lookup_max: 4,
            prompt_lookup_min: 2,
            ..default.clone()
        };
        assert_eq!(read(all).unwrap(), expected);
        let mtp = SpeculativeConfig { method: SpeculativeMethod::Mtp, num_speculative_tokens: 3, ..default.clone() };
        assert_eq!(read(r#"{"method": "mtp"}"#).unwrap(), mtp);
        let draft = SpeculativeConfig {
            method: SpeculativeMethod::DraftModel,
            model: Some("small.gguf".into()),
            num_speculative_tokens: 4,
            ..default
        };
        // A model without a method is a draft model.
        assert_eq!(read(r#"{"method": "draft_model", "model": "small.gguf"}"#).unwrap(), draft);
        assert_eq!(read(r#"{"model": "small.gguf"}"#).unwrap(), draft);
        let two = SpeculativeConfig { num_speculative_tokens: 2, ..mtp };
        assert_eq!(read(r#"{"method": "mtp", "num_speculative_tokens": 2}"#).unwrap(), two);
        // If only one limit is given, the other moves if they would contradict each other.
        for (text, longest, shortest) in [
            (r#"{"prompt_lookup_max": 2}"#, 2, 2),
            (r#"{"prompt_lookup_min": 12}"#, 12, 12),
            (r#"{"prompt_lookup_min": 1}"#, 8, 1),
        ] {
            let config = read(text).unwrap();
            assert_eq!((config.prompt_lookup_max, config.prompt_lookup_min), (longest, shortest), "{text}");
        }
    }

    /// S22: every invalid value is an error that names its field.
    #[test]
    fn bad_fields_are_named() {
        for (text, named) in [
            ("", "speculative_config: got"),
            ("[]", "speculative_config: got []"),
            (
                r#"{"name": "x"}"#,
                "speculative_config: got name, expected a JSON object with some of method, model, num_",
            ),
            (
                r#"{"method": "eagle"}"#,
                "speculative_config.method: got eagle, expected 'ngram', 'mtp' or 'draft_model'",
            ),
            (r#"{"method": 1}"#, "speculative_config.method: got 1, expected 'ngram', 'mtp' or 'draft_model'"),
            (r#"{"model": 1}"#, "speculative_config.model: got 1, expected the path of the draft model's file"),
            (r#"{"method": "draft_model"}"#, "speculative_config.model: got nothing, expected the path of the draft"),
            (
                r#"{"method": "ngram", "model": "x"}"#,
                "speculative_config.model: got x, expected nothing, since the method 'ngram' has no model of its own",
            ),
            (
                r#"{"method": "mtp", "model": "x"}"#,
                "speculative_config.model: got x, expected nothing, since the method",
            ),
            (
                r#"{"model": "x", "prompt_lookup_max": 2}"#,
                "speculative_config.prompt_lookup_max: got 2, expected nothing, since the method 'draft_model' does",
            ),
            (
                r#"{"method": "mtp", "prompt_lookup_min": 2}"#,
                "speculative_config.prompt_lookup_min: got 2, expected nothing, since the method 'mtp' does not use n-gram",
            ),
            (r#"{"num_speculative_tokens": 0}"#, "speculative_config.num_speculative_tokens: got 0, expected 1 to 64"),
            (r#"{"num_speculative_tokens": 65}"#, "speculative_config.num_speculative_tokens: got 65"),
            (r#"{"num_speculative_tokens": -1}"#, "speculative_config.num_speculative_tokens: got -1, expected an int"),
            (r#"{"num_speculative_tokens": 1.5}"#, "speculative_config.num_speculative_tokens: got 1.5"),
            (r#"{"num_speculative_tokens": "8"}"#, "speculative_config.num_speculative_tokens: got \"8\""),
            (r#"{"prompt_lookup_max": 0}"#, "speculative_config.prompt_lookup_max: got 0, expected 1 to 64"),
            (r#"{"prompt_lookup_max": 1000}"#, "speculative_config.prompt_lookup_max: got 1000"),
            (r#"{"prompt_lookup_min": 0}"#, "speculative_config.prompt_lookup_min: got 0, expected 1 to 8"),
            (r#"{"prompt_lookup_max": 2, "prompt_lookup_min": 3}"#, "speculative_config.prompt_lookup_min: got 3"),
        ] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, Error::InvalidRequest { .. }) && error.to_string().contains(named), "{error}");
        }
    }
}
