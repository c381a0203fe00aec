//! How one request is sampled and when it ends; names and defaults as in vLLM.

/// What a delivery of a streaming request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputKind {
    /// All tokens and text so far.
    #[default]
    Cumulative,
    /// Only what is new since the last delivery.
    Delta,
    /// One delivery, at the end.
    FinalOnly,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    pub n: usize,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    /// 0 = all tokens.
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
    /// Number of top log-probabilities per generated token (the chosen token's is always among them).
    pub logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    pub skip_special_tokens: bool,
    pub include_stop_str_in_output: bool,
    pub output_kind: OutputKind,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
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
        }
    }
}
