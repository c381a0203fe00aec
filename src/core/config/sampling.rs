//! Settings of how a request is sampled and when it ends. Names and defaults are vLLM's, except for `max_tokens` (16
//! there).

use super::names::{by_name, listed, within};
use super::structured::StructuredOutputs;
use crate::{Error, Result};

/// The most log-probabilities per position, as in vLLM.
pub const MAX_LOGPROBS: usize = 20;
/// Maximum number of stop strings of a request, and maximum bytes of each.
const MAX_STOP_STRINGS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;
/// The most stop tokens, and the most biases, of one request.
pub const MAX_TOKEN_LIST: usize = 4096;

/// The contents of a streaming request's deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputKind {
    /// All tokens and text so far.
    #[default]
    Cumulative,
    /// Only what is new since the last delivery.
    Delta,
    /// Everything in one delivery, at the end.
    FinalOnly,
}

impl OutputKind {
    const ALL: [Self; 3] = [Self::Cumulative, Self::Delta, Self::FinalOnly];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cumulative => "cumulative",
            Self::Delta => "delta",
            Self::FinalOnly => "final_only",
        }
    }

    /// # Errors
    /// `InvalidRequest` naming the argument `what`, for an unknown kind.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &Self::ALL, Self::name)
    }

    /// Lists all names for an error.
    pub fn names() -> String {
        listed(&Self::ALL, Self::name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    pub n: usize,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    /// The number of most likely tokens to keep; 0 keeps all.
    pub top_k: usize,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub seed: Option<u64>,
    /// The number of top log-probabilities per generated token. The sampled token's own is always included.
    pub logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    pub skip_special_tokens: bool,
    pub include_stop_str_in_output: bool,
    pub output_kind: OutputKind,
    /// The structured output that the text must match, if any. It was checked when it was created.
    pub structured_outputs: Option<StructuredOutputs>,
    /// The token that ends the reasoning at the beginning of the text.
    pub thinking_end_token_id: Option<u32>,
    /// The number of reasoning tokens after which that token is forced.
    pub thinking_token_budget: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl SamplingParams {
    pub const DEFAULT: Self = Self {
        n: 1,
        max_tokens: 256,
        min_tokens: 0,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
        stop: Vec::new(),
        stop_token_ids: Vec::new(),
        ignore_eos: false,
        seed: None,
        logprobs: None,
        prompt_logprobs: None,
        skip_special_tokens: true,
        include_stop_str_in_output: false,
        output_kind: OutputKind::Cumulative,
        structured_outputs: None,
        thinking_end_token_id: None,
        thinking_token_budget: None,
    };

    /// The names of the fields, as users write them. Python's syntax requires them to be repeated elsewhere; a test
    /// compares those places with this list.
    pub const FIELDS: [&str; 23] = [
        "n",
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "seed",
        "logprobs",
        "prompt_logprobs",
        "skip_special_tokens",
        "include_stop_str_in_output",
        "output_kind",
        "structured_outputs",
        "thinking_end_token_id",
        "thinking_token_budget",
    ];

    /// Checks everything that does not depend on the model.
    ///
    /// # Errors
    /// `InvalidRequest` naming the first setting out of range.
    pub fn validate(&self) -> Result<()> {
        within("n", self.n, 1, 1 << 16)?;
        within("max_tokens", self.max_tokens, 1, usize::MAX)?;
        within("min_tokens", self.min_tokens, 0, self.max_tokens)?;
        check("temperature", self.temperature, "a number that is at least 0", |x| x >= 0.0)?;
        check("top_p", self.top_p, "more than 0 and at most 1", |x| x > 0.0 && x <= 1.0)?;
        check("min_p", self.min_p, "0 to 1", |x| (0.0..=1.0).contains(&x))?;
        check("repetition_penalty", self.repetition_penalty, "more than 0 and at most 2", |x| x > 0.0 && x <= 2.0)?;
        check("presence_penalty", self.presence_penalty, "-2 to 2", |x| (-2.0..=2.0).contains(&x))?;
        check("frequency_penalty", self.frequency_penalty, "-2 to 2", |x| (-2.0..=2.0).contains(&x))?;
        within("number of logit_bias entries", self.logit_bias.len(), 0, MAX_TOKEN_LIST)?;
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, "-100 to 100", |x| (-100.0..=100.0).contains(&x))?;
        }
        within("number of stop strings", self.stop.len(), 0, MAX_STOP_STRINGS)?;
        for stop in &self.stop {
            if stop.is_empty() {
                return Err(Error::invalid("stop", "an empty text", "text of at least one byte"));
            }
            within("bytes of a stop string", stop.len(), 1, MAX_STOP_BYTES)?;
        }
        within("number of stop_token_ids", self.stop_token_ids.len(), 0, MAX_TOKEN_LIST)?;
        within("logprobs", self.logprobs.unwrap_or(0), 0, MAX_LOGPROBS)?;
        within("prompt_logprobs", self.prompt_logprobs.unwrap_or(0), 0, MAX_LOGPROBS)?;
        if self.thinking_end_token_id.is_some() != self.thinking_token_budget.is_some() {
            let got = "one of thinking_end_token_id and thinking_token_budget";
            return Err(Error::invalid("thinking_token_budget", got, "both or none"));
        }
        Ok(())
    }
}

/// Settings that a model's authors recommend; `None` if they recommend nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingDefaults {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<usize>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

/// Rejects a value outside its range. NaN and the infinities are outside every range.
fn check(what: &'static str, got: f32, expected: &str, holds: impl Fn(f32) -> bool) -> Result<()> {
    if got.is_finite() && holds(got) { Ok(()) } else { Err(Error::invalid(what, got, expected)) }
}
