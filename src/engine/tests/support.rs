use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::fake::{Fake, Rule, Script, hashed};
use crate::batch::GroupKind;
use crate::config::{
    EngineConfig, GroupConfig, KvCacheDtype, Pooling, SamplingDefaults, SamplingParams, SpeculativeMethod, StateConfig,
};
use crate::gguf::{Array, Metadata, Value};
use crate::output::SharedSink;
use crate::pixels::Picture;
use crate::sampler::{Sampler, SequenceSampler};
use crate::tokenizer::Tokenizer;
use crate::{
    AcceptedRequest, ChannelSink, Engine, FinishReason, LoadedModel, NewRequest, Prompt, SequenceOutput, StopReason,
    TokenLogprobs,
};
use crate::{Error, Result};

pub(super) const VOCAB: usize = 64;

/// No test waits for time to pass; this limit only turns a hang into a failure.
pub(super) const HANG: Duration = Duration::from_secs(120);

pub(super) fn config() -> EngineConfig {
    EngineConfig {
        num_threads: 1,
        context_length: 64,
        max_model_len: 64,
        max_num_seqs: 8,
        max_num_batched_tokens: 24,
        max_drafts: 10,
        block_size: 4,
        kv_groups: blocks(64),
        states: None,
        kv_cache_dtype: KvCacheDtype::F16,
        enable_prefix_caching: true,
        kv_offload: None,
        max_queue_size: 64,
        max_num_partial_prefills: 4,
        max_long_partial_prefills: 1,
        long_prefill_token_threshold: 8,
        speculative_config: None,
        retention: Duration::from_secs(300),
        seed: Some(5),
        embedding_size: 4,
        pooling: Pooling::Last,
        sampling_defaults: SamplingDefaults::default(),
    }
}

/// Returns state slots for at least `seqs` sequences, and for snapshots.
pub(super) fn slots(seqs: usize, slots_per_seq: usize, snapshots: usize) -> Option<StateConfig> {
    Some(StateConfig { num_slots: seqs * slots_per_seq + snapshots, slots_per_seq, snapshot_interval: 8 })
}

/// Returns one full-attention group with `num_blocks` blocks.
pub(super) fn blocks(num_blocks: usize) -> Vec<GroupConfig> {
    vec![GroupConfig { kind: GroupKind::Full, num_blocks }]
}

pub(super) struct Rig {
    pub engine: Engine,
    pub script: Arc<Script>,
    pub rule: Rule,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(config(), hashed(VOCAB), None)
    }

    pub(super) fn with(config: EngineConfig, rule: Rule, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let script = Arc::new(Script::default());
        let rows_at_once = (config.max_num_seqs + config.max_drafts).min(config.max_num_batched_tokens);
        script.has_states.store(config.states.is_some(), Ordering::SeqCst);
        script.rows_at_once.store(rows_at_once as u64, Ordering::SeqCst);
        let vocab_size = rule(&[0]).len();
        let method = config.speculative_config.as_ref().map(|config| config.method);
        let draft_lags = method == Some(SpeculativeMethod::DraftModel);
        let fake = Fake::new(Arc::clone(&script), Arc::clone(&rule), vocab_size, config.block_size, draft_lags);
        let engine = Engine::start(LoadedModel { tokenizer, ..LoadedModel::new(Box::new(fake), config) }).unwrap();
        Self { engine, script, rule }
    }

    pub(super) fn submit(&self, prompt: &[u32], params: SamplingParams) -> Client {
        submit(&self.engine, request(prompt, params)).unwrap()
    }

    pub(super) fn run(&self, prompt: &[u32], params: SamplingParams) -> Finished {
        self.submit(prompt, params).wait()
    }
}

/// A request without a sink; `submit` gives it one.
pub(super) struct Draft {
    pub name: Option<String>,
    pub prompt: Prompt,
    pub images: Vec<Arc<Picture>>,
    pub params: SamplingParams,
    pub priority: i32,
    pub timeout: Option<Duration>,
    pub cache_salt: Option<String>,
    pub client: Option<String>,
}

pub(super) fn request(prompt: &[u32], params: SamplingParams) -> Draft {
    Draft {
        name: None,
        prompt: Prompt::TokenIds(prompt.to_vec()),
        images: Vec::new(),
        params,
        priority: 0,
        timeout: None,
        cache_salt: None,
        client: None,
    }
}

impl Draft {
    pub(super) fn with_sink(self, sink: SharedSink) -> NewRequest {
        let Self { name, prompt, images, params, priority, timeout, cache_salt, client } = self;
        NewRequest { name, prompt, images, params: params.into(), priority, timeout, cache_salt, client, sink }
    }
}

pub(super) fn submit(engine: &Engine, draft: Draft) -> Result<Client> {
    let (sink, outputs) = ChannelSink::new();
    let n = draft.params.n;
    let accepted = engine.add_request(draft.with_sink(sink), |_| {})?;
    Ok(Client { accepted, outputs, n })
}

/// The waiting side of a request.
pub(super) struct Client {
    pub accepted: AcceptedRequest,
    pub outputs: Receiver<Vec<SequenceOutput>>,
    n: usize,
}

/// All results of one sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    pub reason: Option<FinishReason>,
    pub stop: Option<StopReason>,
    pub error: Option<Error>,
    pub last: Option<SequenceOutput>,
}

/// All results of one request, by sequence.
pub(super) type Finished = BTreeMap<usize, Ended>;

impl Client {
    /// Waits for the last output of every sequence. Nothing may follow a sequence's last output.
    pub(super) fn wait(self) -> Finished {
        let mut all = Finished::new();
        while all.len() < self.n || all.values().any(|one| one.reason.is_none()) {
            for output in self.outputs.recv_timeout(HANG).expect("no last output") {
                assert_eq!(output.request, self.accepted.id);
                let one = all.entry(output.index).or_default();
                assert!(one.reason.is_none(), "output after the last one");
                one.tokens.extend(&output.token_ids);
                one.text.push_str(&output.text);
                one.logprobs.extend(output.logprobs.clone());
                one.prompt_logprobs = one.prompt_logprobs.take().or(output.prompt_logprobs.clone());
                one.reason = output.finish_reason;
                one.stop = output.stop_reason.clone();
                one.error = output.error.clone();
                one.last = Some(output);
            }
        }
        assert_eq!(all.len(), self.n);
        all
    }

    /// Waits for the next tokens of sequence 0.
    pub(super) fn next_tokens(&self) -> Vec<u32> {
        self.outputs.recv_timeout(HANG).expect("no output").into_iter().flat_map(|output| output.token_ids).collect()
    }
}

/// Waits for the logits of every position of a prompt.
pub(super) fn prompt_logits(engine: &Engine, token_ids: Vec<u32>) -> Result<Vec<f32>> {
    engine.start_prompt_logits(token_ids)?.answer().recv().unwrap()
}

/// Asserts that nothing of any request is left: no sequence, no owned block or slot, and no more device memory than at
/// the start.
pub(super) fn assert_nothing_left(engine: &Engine) {
    assert_nothing_left_of(engine, 7);
}

/// Asserts that texts of four prompts, up to `length` tokens with their prompt, are the same from two engines. One has
/// room for all. The other must preempt, runs twice and finds prompts in its cache. Each engine comes with the number
/// of blocks that it should have. Returns the prompts.
pub(super) fn assert_recomputed_exactly(
    engines: [(&Engine, usize); 2],
    block_bytes: u64,
    length: usize,
) -> Vec<Vec<u32>> {
    for (engine, blocks) in engines {
        assert_eq!(engine.stats().kv_cache.blocks_total, blocks);
        assert_eq!(engine.memory().kv_cache, blocks as u64 * block_bytes);
    }
    let [(alone, _), (small, _)] = engines;
    let prompt = |seq: u32| (0..40).map(|i| 7 + i * i % 31).chain((0..seq + 1).map(|i| 90 + i * seq)).collect();
    let prompts: Vec<Vec<u32>> = (0..4).map(prompt).collect();
    let params = |seq: usize| SamplingParams { ignore_eos: true, ..greedy(length - prompts[seq].len()) };
    let expected: Vec<Vec<u32>> = (0..4)
        .map(|seq| submit(alone, request(&prompts[seq], params(seq))).unwrap().wait()[&0].tokens.clone())
        .collect();
    for _ in 0..2 {
        let clients: Vec<Client> =
            (0..4).map(|seq| submit(small, request(&prompts[seq], params(seq))).unwrap()).collect();
        for (client, expected) in clients.into_iter().zip(&expected) {
            let done = client.wait();
            assert_eq!((done[&0].reason, &done[&0].tokens), (Some(FinishReason::Length), expected));
        }
    }
    let stats = small.stats();
    assert!(stats.num_preemptions > 0 && stats.kv_cache.prefix_cache_hits > 0, "{stats:?}");
    prompts
}

/// Asserts the same as `assert_nothing_left`, for an executor that has made `allocations` on its device.
pub(super) fn assert_nothing_left_of(engine: &Engine, allocations: u64) {
    match engine.check_integrity() {
        Ok(()) | Err(Error::EngineDead { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let stats = engine.stats();
    assert_eq!((stats.num_waiting, stats.num_running), (0, 0), "{stats:?}");
    assert_eq!(stats.kv_cache.blocks_owned, 0, "{stats:?}");
    assert_eq!(stats.kv_cache.blocks_free + stats.kv_cache.blocks_cached, stats.kv_cache.blocks_total);
    assert_eq!(stats.kv_cache.state_slots_owned, 0, "{stats:?}");
    assert_eq!(stats.device_allocations, allocations);
    assert!(engine.block_map().iter().all(|block| block.owners == 0));
}

pub(super) fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens, ..Default::default() }
}

/// Generates a request's tokens without an engine, with only the rule and the sampler, token by token.
pub(super) fn alone(rule: &Rule, prompt: &[u32], params: &SamplingParams, index: u32, seed: u64) -> Vec<u32> {
    let params = Arc::new(params.clone());
    let masked = params.stop_token_ids.clone().into();
    let mut sequence = SequenceSampler::new(Arc::clone(&params), seed, index, prompt, masked);
    let mut content = prompt.to_vec();
    for _ in 0..params.max_tokens.min(config().max_model_len - prompt.len()) {
        let row = rule(&content);
        let token = Sampler::new(row.len()).sample(&row, &sequence).unwrap();
        sequence.accept(token);
        content.push(token);
        if params.stop_token_ids.contains(&token) {
            break;
        }
    }
    content.split_off(prompt.len())
}

/// Returns a SentencePiece vocabulary: 0 unknown, 1 BOS, 2 EOS, 3 to 28 the letters, 29 a space, 30 to 285 all bytes,
/// then these words.
pub(super) fn tokenizer(words: &[&str]) -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![2u32, 3, 3];
    tokens.extend(('a'..='z').map(String::from));
    tokens.push("▁".into());
    types.resize(30, 1);
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(286, 6);
    tokens.extend(words.iter().map(|word| (*word).to_string()));
    types.resize(tokens.len(), 1);
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let entries = vec![
        (key("model"), Value::String("llama".into())),
        (key("tokens"), Value::Array(Array::String(tokens))),
        (key("token_type"), Value::Array(Array::U32(types))),
        (key("scores"), Value::Array(Array::F32(scores))),
        (key("unknown_token_id"), Value::U32(0)),
        (key("bos_token_id"), Value::U32(1)),
        (key("eos_token_id"), Value::U32(2)),
    ];
    Arc::new(Tokenizer::from_metadata(&Metadata::new(Path::new("test.gguf"), entries).unwrap()).unwrap())
}

pub(super) const EOS: u32 = 2;

/// Returns the id of a letter in `tokenizer`.
pub(super) fn letter(c: char) -> u32 {
    3 + (c as u32 - 'a' as u32)
}

pub(super) fn byte(b: u8) -> u32 {
    30 + u32::from(b)
}

pub(super) fn word(i: u32) -> u32 {
    286 + i
}
