//! Loads a model: from engine arguments to tensors on a device. What fits is decided here, before anything is served.

use std::sync::Arc;

use super::executor::Executor;
use super::kv_pool::PoolWish;
use super::progress::LoadProgress;
use super::runner::Runner;
use super::sampling_defaults::sampling_defaults;
use crate::backend::{self, Backend, Loader, OpenDevice, StepLimits, UseLoader, resolve_threads};
use crate::config::{ComputeDtype, EngineArgs, EngineConfig, SpeculativeMethod, defaults};
use crate::gguf::{GgufFile, Metadata};
use crate::model::{Decoder, DecoderLimits, ModelSpec, ModelTensors};
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// All that the engine is started with.
pub struct LoadedModel {
    pub executor: Box<dyn Executor>,
    pub config: EngineConfig,
    /// `None` when the file has none: only token ids can be served.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub chat_template: Option<Arc<ChatTemplate>>,
}

/// Opens, checks and loads the model.
///
/// # Errors
/// The errors of the file (`ModelFile`, `FileNotFound`), of the arguments (`InvalidRequest`), of the device, and
/// `OutOfMemory` naming the setting that helps. `Interrupted` when `progress` returned `false`.
pub(super) fn load_model(args: &EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<LoadedModel> {
    load_on(args, || backend::open(args), progress)
}

/// Loads onto the device that `open` gives, which is opened only once the file is known to be loadable.
pub(super) fn load_on(
    args: &EngineArgs,
    open: impl FnOnce() -> Result<OpenDevice>,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<LoadedModel> {
    let gguf = GgufFile::open(&args.model)?;
    let speculative = args.speculative_config.as_ref();
    let spec = match speculative.map(|config| config.method) {
        Some(SpeculativeMethod::Mtp) => ModelSpec::with_drafter(&gguf, args.max_model_len)?,
        Some(SpeculativeMethod::Ngram | SpeculativeMethod::DraftModel) | None => {
            ModelSpec::from_gguf(&gguf, args.max_model_len)?
        }
    };
    let draft = speculative.and_then(|config| config.model.as_deref()).map(GgufFile::open).transpose()?;
    let spec = match &draft {
        Some(draft) => spec.with_draft_model(&gguf, draft, args.max_model_len)?,
        None => spec,
    };
    let mut tensors = ModelTensors::collect(&gguf, &spec)?;
    let mut file_bytes = gguf.tensor_bytes();
    if let Some(draft) = &draft {
        tensors = tensors.with_draft_model(draft)?;
        file_bytes += draft.tensor_bytes();
    }
    let tokenizer = load_tokenizer(gguf.metadata())?.map(Arc::new);
    let chat_template = ChatTemplate::from_metadata(gguf.metadata())?.map(Arc::new);
    if let Some(Err(error)) = chat_template.as_ref().map(|template| template.check()) {
        tracing::warn!("{error} (all but chat works without it)");
    }
    let device = open()?;
    let max_num_seqs = resolve_seqs(args, device.default_seqs());
    let limits = resolve_limits(args, &spec, max_num_seqs, device.default_batched_tokens());
    let model = Model { args, max_num_seqs, tensors, gguf: &gguf, spec: &spec, file_bytes };
    let longest = args.max_model_len.unwrap_or(usize::MAX).min(spec.context_length);
    let step = StepLimits {
        tokens: limits.max_num_batched_tokens,
        seqs: max_num_seqs,
        logits_rows: limits.max_logits_rows,
        groups: spec.kv_groups.len(),
        table_blocks: longest.div_ceil(args.block_size),
        state_writes: state_writes(args, &spec, max_num_seqs, limits),
    };
    let load = Load { model: &model, limits, default_pool: |bytes| device.default_kv_cache_bytes(bytes), progress };
    let (executor, config) = device.load(args, step, load)?;
    Ok(LoadedModel { executor, config, tokenizer, chat_template })
}

/// A model's file as it was read, and the arguments that it is loaded with.
struct Model<'a> {
    args: &'a EngineArgs,
    max_num_seqs: usize,
    gguf: &'a GgufFile,
    spec: &'a ModelSpec,
    tensors: ModelTensors<'a>,
    /// Bytes of all tensors, the draft model's among them.
    file_bytes: u64,
}

type Loaded = (Box<dyn Executor>, EngineConfig);

/// Weights, KV pool, activations.
struct Load<'a, D> {
    model: &'a Model<'a>,
    limits: DecoderLimits,
    /// Bytes of the pool, of those available, when the user names none.
    default_pool: D,
    progress: &'a mut dyn FnMut(LoadProgress) -> bool,
}

impl<D: Fn(u64) -> u64> UseLoader for Load<'_, D> {
    type Output = Loaded;

    fn with<L: Loader>(self, loader: L) -> Result<Loaded> {
        let Self { model, limits, default_pool, progress } = self;
        load_onto(loader, model, limits, default_pool, progress)
    }
}

fn load_onto<L: Loader>(
    mut loader: L,
    model: &Model<'_>,
    limits: DecoderLimits,
    default_pool: impl Fn(u64) -> u64,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Loaded> {
    let Model { args, max_num_seqs, gguf, spec, tensors, file_bytes } = model;
    loader.check_block_size(args.block_size)?;
    // A device that computes on its own is not called back.
    let can_stop = !L::Backend::ASYNCHRONOUS;
    let wish = PoolWish::new(args, spec, *max_num_seqs, limits.max_num_batched_tokens, can_stop)?;
    let scratch = Decoder::<L::Backend>::scratch_bytes::<L>(spec, limits)?;
    // A model that does not fit is refused before any of it is read: the system would rather kill a process than refuse
    // it memory.
    let room = room_for_pool(loader.room_beside(tensors.uploads())?, scratch)?;
    wish.check(room)?;
    let total = *file_bytes;
    // A tensor that serves twice is uploaded twice.
    let mut tell = |done: u64| match progress(LoadProgress { done: done.min(total), total }) {
        true => Ok(()),
        false => Err(Error::Interrupted),
    };
    let spare = wish.spare(room, args.gpu.compute_dtype == ComputeDtype::Fp8);
    let weights = tensors.upload(&mut loader, spare, &mut tell)?;
    let available = room_for_pool(loader.available_memory()?, scratch)?;
    let pool = wish.resolve(available, default_pool(available))?;
    let is_bidirectional = spec.is_bidirectional();
    let config = EngineConfig {
        num_threads: resolve_threads(args)?,
        context_length: spec.context_length,
        max_model_len: pool.max_model_len,
        max_num_seqs: *max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_prompt_logits: if is_bidirectional { limits.max_logits_rows } else { defaults::MAX_PROMPT_LOGITS },
        block_size: args.block_size,
        kv_groups: pool.groups,
        states: pool.states,
        kv_cache_dtype: args.kv_cache_dtype,
        enable_prefix_caching: args.enable_prefix_caching && !is_bidirectional,
        max_queue_size: args.max_queue_size,
        max_num_partial_prefills: args.max_num_partial_prefills,
        max_long_partial_prefills: args.max_long_partial_prefills,
        long_prefill_token_threshold: resolve_threshold(args, pool.max_model_len, limits.max_num_batched_tokens),
        speculative_config: args.speculative_config.clone(),
        retention: args.retention,
        seed: args.seed,
        embedding_size: spec.hidden_size,
        pooling: spec.pooling,
        sampling_defaults: sampling_defaults(gguf.metadata()),
    };
    let num_blocks: Vec<usize> = config.kv_groups.iter().map(|group| group.num_blocks).collect();
    let kv_layers = spec.kv_layers(&num_blocks, args.block_size, args.kv_cache_dtype);
    let state_layers = spec.state_layers(config.states.map_or(0, |states| states.num_slots));
    let (pools, rank_head) = ((&kv_layers[..], &state_layers[..]), tensors.rank_head()?);
    let mut decoder = Decoder::new((*spec).clone(), weights, &mut loader, limits, pools, rank_head)?;
    let mut backend = loader.finish()?;
    decoder.rehearse(&mut backend)?;
    Ok((Box::new(Runner::new(backend, decoder)), config))
}

/// `None` for a file that says it has no tokenizer (or says nothing of one).
pub(crate) fn load_tokenizer(metadata: &Metadata) -> Result<Option<Tokenizer>> {
    match metadata.opt_str("tokenizer.ggml.model")? {
        None | Some("none") => Ok(None),
        Some(_) => Tokenizer::from_metadata(metadata).map(Some),
    }
}

/// Each running sequence gets on in each step, so a step's tokens are a limit of their number, too.
fn resolve_seqs(args: &EngineArgs, default: usize) -> usize {
    args.max_num_seqs.unwrap_or(default.min(args.max_num_batched_tokens.unwrap_or(default)))
}

fn resolve_limits(args: &EngineArgs, spec: &ModelSpec, max_num_seqs: usize, default_tokens: usize) -> DecoderLimits {
    let default_tokens = default_tokens.max(max_num_seqs);
    if spec.is_bidirectional() {
        // A step has whole prompts, of each of whose tokens the hidden state is wanted.
        let longest = args.max_model_len.unwrap_or(spec.context_length.min(defaults::WHOLE_PROMPT_TOKENS));
        let tokens = args.max_num_batched_tokens.unwrap_or(default_tokens.max(longest));
        return DecoderLimits { max_num_batched_tokens: tokens, max_logits_rows: tokens };
    }
    let max_num_batched_tokens = args.max_num_batched_tokens.unwrap_or(default_tokens);
    let max_logits_rows = max_num_seqs.saturating_add(defaults::MAX_PROMPT_LOGITS).min(max_num_batched_tokens);
    DecoderLimits { max_num_batched_tokens, max_logits_rows }
}

/// States that a step may keep: of each sequence the last one and one at the end of its prompt, others at the ends of
/// blocks, and those before drafts.
fn state_writes(args: &EngineArgs, spec: &ModelSpec, max_num_seqs: usize, limits: DecoderLimits) -> usize {
    if spec.state_bytes() == 0 {
        return 0;
    }
    let at_ends = limits.max_num_batched_tokens / args.block_size.max(1);
    max_num_seqs.saturating_mul(2).saturating_add(at_ends + defaults::MAX_PROMPT_LOGITS)
}

/// Above how many tokens a prompt is long; by default one that takes more than a step always is.
fn resolve_threshold(args: &EngineArgs, max_model_len: usize, max_num_batched_tokens: usize) -> usize {
    let default = (max_model_len * defaults::LONG_PREFILL_PERCENT / 100).clamp(1, max_num_batched_tokens);
    args.long_prefill_token_threshold.unwrap_or(default)
}

/// Bytes of `room` that are left for the KV pool once activations have theirs.
fn room_for_pool(room: u64, activations: u64) -> Result<u64> {
    room.checked_sub(activations).ok_or_else(|| Error::OutOfMemory {
        what: "a step of max_num_batched_tokens tokens, beside the weights,".to_owned(),
        requested: activations,
        available: room,
        advice: "lower max_num_batched_tokens or max_num_seqs, or use a smaller model",
    })
}
