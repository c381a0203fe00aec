//! Loads a model: from engine arguments to tensors on a device. Decides what fits before anything is served.

mod kv_pool;
pub mod runner;
pub(crate) mod sampling_defaults;

use std::sync::Arc;

use super::executor::Executor;
use super::images::{ImageReader, LoadedImages};
use super::offload::{namespace, prepare_folder};
use super::progress::LoadProgress;
use crate::backend::{Backend, Loader, Reserve, StepLimits};
use crate::config::{
    ComputeDtype, EngineArgs, EngineConfig, GpuOptions, KvCacheDtype, KvFilesConfig, KvOffloadConfig,
    SpeculativeMethod, defaults,
};
use crate::devices::{self, OpenDevice, UseLoader, resolve_threads};
use crate::gguf::{GgufFile, Metadata};
use crate::model::vision::{self, Encoder, ImageEncoder, VisionTensors, find_projector, open_projector};
use crate::model::{Decoder, DecoderLimits, ModelSpec, ModelTensors};
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};
use kv_pool::PoolRequest;
use runner::Runner;
use sampling_defaults::sampling_defaults;

/// The value of `EngineArgs::mmproj` for no image encoder.
const NO_ENCODER: &str = "none";

/// Everything needed to start the engine.
pub struct LoadedModel {
    pub executor: Box<dyn Executor>,
    pub config: EngineConfig,
    /// `None` if the file has no tokenizer; then only token ids can be served.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// `None` if there is no image encoder.
    pub images: Option<LoadedImages>,
}

impl LoadedModel {
    /// Returns a model that serves token ids alone.
    pub fn new(executor: Box<dyn Executor>, config: EngineConfig) -> Self {
        Self { executor, config, tokenizer: None, chat_template: None, images: None }
    }
}

/// Opens, checks and loads the model.
///
/// # Errors
/// The errors of the file (`ModelFile`, `FileNotFound`), of the arguments (`InvalidRequest`) and of the device, and
/// `OutOfMemory` naming the setting that helps. `Interrupted` if `progress` returned `false`.
pub(super) fn load_model(args: &EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<LoadedModel> {
    load_on(args, || devices::open(args), progress)
}

/// Loads the model onto the device that `open` returns. The device is opened only if the file is known to be loadable.
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
    let encoder = match &tokenizer {
        Some(tokenizer) => find_encoder(args, &gguf, &spec, tokenizer)?,
        None => None,
    };
    let device = open()?;
    let files = args.kv_offload_dir.as_ref().map(|folder| -> Result<KvFilesConfig> {
        // Before the model is read for its hash.
        prepare_folder(folder)?;
        let files: Vec<&GgufFile> =
            std::iter::once(&gguf).chain(&draft).chain(encoder.iter().map(|(file, _)| file)).collect();
        let layout =
            format!("{} {:?} {:?} {spec:?}", device.layout(args)?, args.gpu.compute_dtype, args.gpu.batch_invariant);
        let namespace = namespace(args, folder, &files, &layout, resolve_threads(args)?, progress)?;
        let capacity = args.kv_offload_disk.unwrap_or(defaults::KV_OFFLOAD_DISK);
        Ok(KvFilesConfig { folder: folder.clone(), capacity, namespace })
    });
    let files = files.transpose()?;
    let kv_offload = args.offload_memory().map(|memory| KvOffloadConfig { memory, files });
    // First, so that the rest is planned with the memory that is left.
    let images = encoder.map(|(file, reader)| load_encoder(&device, args, &file, reader)).transpose()?;
    let max_num_seqs = resolve_seqs(args, device.default_seqs());
    let limits = resolve_limits(args, &spec, max_num_seqs, device.default_batched_tokens());
    let num_threads = device.num_threads(args)?;
    let model = Model { args, num_threads, max_num_seqs, tensors, gguf: &gguf, spec: &spec, file_bytes };
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
    let config = EngineConfig { kv_offload, ..config };
    Ok(LoadedModel { executor, config, tokenizer, chat_template, images })
}

/// Opens the file of the image encoder that the arguments name, or the one beside the model.
fn find_encoder(
    args: &EngineArgs,
    gguf: &GgufFile,
    spec: &ModelSpec,
    tokenizer: &Tokenizer,
) -> Result<Option<(GgufFile, ImageReader)>> {
    let with_reader = |file: GgufFile, vision| {
        let reader = ImageReader::new(file.metadata().path().to_owned(), vision, tokenizer)?;
        Ok((file, reader))
    };
    match &args.mmproj {
        Some(path) if path.as_os_str() == NO_ENCODER => Ok(None),
        Some(path) => open_projector(path, gguf, spec).and_then(|(file, vision)| with_reader(file, vision)).map(Some),
        None => Ok(find_projector(gguf, spec, with_reader)),
    }
}

fn load_encoder(device: &OpenDevice, args: &EngineArgs, file: &GgufFile, reader: ImageReader) -> Result<LoadedImages> {
    let spec = reader.spec();
    // Its activations are too large for products of 8-bit floats.
    let gpu = GpuOptions { compute_dtype: ComputeDtype::Auto, ..args.gpu.clone() };
    let args = EngineArgs { gpu, ..args.clone() };
    let tensors = VisionTensors::collect(file, spec)?;
    let encoder = device.load(&args, vision::limits(spec), LoadEncoder { tensors: &tensors })?;
    Ok(LoadedImages { reader, encoder })
}

struct LoadEncoder<'a> {
    tensors: &'a VisionTensors<'a>,
}

impl UseLoader for LoadEncoder<'_> {
    type Output = Box<dyn ImageEncoder>;

    fn with<L: Loader>(self, loader: L) -> Result<Self::Output> {
        // Matrix units take f16.
        let dtype = if L::Backend::ASYNCHRONOUS { KvCacheDtype::F16 } else { KvCacheDtype::F32 };
        Ok(Box::new(Encoder::load(loader, self.tensors, dtype)?))
    }
}

/// A parsed model file and the arguments that it is loaded with.
struct Model<'a> {
    args: &'a EngineArgs,
    num_threads: usize,
    max_num_seqs: usize,
    gguf: &'a GgufFile,
    spec: &'a ModelSpec,
    tensors: ModelTensors<'a>,
    /// Bytes of all tensors, including those of a draft model.
    file_bytes: u64,
}

type Loaded = (Box<dyn Executor>, EngineConfig);

/// Loads weights, KV pool and activations onto a device.
struct Load<'a, D> {
    model: &'a Model<'a>,
    limits: DecoderLimits,
    /// Returns the bytes of the pool from the bytes available, if the user sets no size.
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
    let Model { args, num_threads, max_num_seqs, gguf, spec, tensors, file_bytes } = model;
    loader.check_block_size(args.block_size)?;
    // An asynchronous device is interrupted only in steps that nobody needs.
    let can_stop = !L::Backend::ASYNCHRONOUS;
    let request = PoolRequest::new(args, spec, *max_num_seqs, limits.max_num_batched_tokens, can_stop)?;
    let scratch = Decoder::<L::Backend>::scratch_bytes::<L>(spec, limits)?;
    let beside = request.reserve();
    let beside = Reserve { least: beside.least.saturating_add(scratch), wanted: beside.wanted.saturating_add(scratch) };
    loader.place(tensors.uploads(), tensors.roles(), beside)?;
    // Refuse a model that does not fit before reading it. The system would otherwise kill the process instead of
    // refusing memory.
    let room = room_for_pool(loader.room_beside(tensors.uploads())?, scratch)?;
    request.check(room)?;
    let total = *file_bytes;
    // A tensor that is used twice is uploaded twice.
    let mut tell = |done: u64| match progress(LoadProgress { done: done.min(total), total }) {
        true => Ok(()),
        false => Err(Error::Interrupted),
    };
    let spare = request.spare(room, args.gpu.compute_dtype == ComputeDtype::Fp8);
    let weights = tensors.upload(&mut loader, spare, &mut tell)?;
    let available = room_for_pool(loader.available_memory()?, scratch)?;
    let pool = request.resolve(available, default_pool(available))?;
    let is_bidirectional = spec.is_bidirectional();
    let config = EngineConfig {
        num_threads: *num_threads,
        context_length: spec.context_length,
        max_model_len: pool.max_model_len,
        max_num_seqs: *max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        max_drafts: defaults::MAX_DRAFTS,
        block_size: args.block_size,
        kv_groups: pool.groups,
        states: pool.states,
        kv_cache_dtype: args.kv_cache_dtype,
        enable_prefix_caching: args.enable_prefix_caching && !is_bidirectional,
        kv_offload: None,
        max_queue_size: args.max_queue_size,
        max_num_partial_prefills: args.max_num_partial_prefills,
        max_long_partial_prefills: args.max_long_partial_prefills,
        long_prefill_token_threshold: resolve_threshold(args, pool.max_model_len, limits.max_num_batched_tokens),
        speculative_config: args.speculative_config.clone(),
        retention: args.retention,
        seed: args.seed,
        embedding_size: spec.embedding_size(),
        pooling: spec.pooling,
        sampling_defaults: sampling_defaults(gguf.metadata()),
    };
    let num_blocks: Vec<usize> = config.kv_groups.iter().map(|group| group.num_blocks).collect();
    let kv_layers = spec.kv_layers(&num_blocks, args.block_size, args.kv_cache_dtype);
    let state_layers = spec.state_layers(config.states.map_or(0, |states| states.num_slots));
    let (pools, head) = ((&kv_layers[..], &state_layers[..]), tensors.head()?);
    let mut decoder = Decoder::new((*spec).clone(), weights, &mut loader, limits, pools, head)?;
    let mut backend = loader.finish()?;
    decoder.warm_up(&mut backend)?;
    Ok((Box::new(Runner::new(backend, decoder)), config))
}

/// Returns `None` for a file without a tokenizer.
pub fn load_tokenizer(metadata: &Metadata) -> Result<Option<Tokenizer>> {
    match metadata.opt_str("tokenizer.ggml.model")? {
        None | Some("none") => Ok(None),
        Some(_) => Tokenizer::from_metadata(metadata).map(Some),
    }
}

/// Every running sequence advances in every step, so a step's token limit also bounds their number.
fn resolve_seqs(args: &EngineArgs, default: usize) -> usize {
    args.max_num_seqs.unwrap_or(default.min(args.max_num_batched_tokens.unwrap_or(default)))
}

fn resolve_limits(args: &EngineArgs, spec: &ModelSpec, max_num_seqs: usize, default_tokens: usize) -> DecoderLimits {
    let default_tokens = default_tokens.max(max_num_seqs);
    if spec.is_bidirectional() {
        // A step holds whole prompts and needs the hidden states of all their tokens.
        let longest = args.max_model_len.unwrap_or(spec.context_length.min(defaults::WHOLE_PROMPT_TOKENS));
        let tokens = args.max_num_batched_tokens.unwrap_or(default_tokens.max(longest));
        return DecoderLimits { max_num_batched_tokens: tokens, max_logits_rows: tokens };
    }
    let max_num_batched_tokens = args.max_num_batched_tokens.unwrap_or(default_tokens);
    let max_logits_rows = max_num_seqs.saturating_add(defaults::MAX_DRAFTS).min(max_num_batched_tokens);
    DecoderLimits { max_num_batched_tokens, max_logits_rows }
}

/// Returns the number of states that a step may save. Each sequence saves its last state and the one at its prompt's
/// end; others are saved at block ends and before drafts.
fn state_writes(args: &EngineArgs, spec: &ModelSpec, max_num_seqs: usize, limits: DecoderLimits) -> usize {
    if spec.state_bytes() == 0 {
        return 0;
    }
    let at_ends = limits.max_num_batched_tokens / args.block_size.max(1);
    max_num_seqs.saturating_mul(2).saturating_add(at_ends + defaults::MAX_DRAFTS)
}

/// Returns the length above which a prompt is long. By default a prompt that needs more than one step always is.
fn resolve_threshold(args: &EngineArgs, max_model_len: usize, max_num_batched_tokens: usize) -> usize {
    let default = (max_model_len * defaults::LONG_PREFILL_PERCENT / 100).clamp(1, max_num_batched_tokens);
    args.long_prefill_token_threshold.unwrap_or(default)
}

/// Returns the bytes of `room` that remain for the KV pool next to the activations.
fn room_for_pool(room: u64, activations: u64) -> Result<u64> {
    room.checked_sub(activations).ok_or_else(|| Error::OutOfMemory {
        what: "a step of max_num_batched_tokens tokens, next to the weights,".to_owned(),
        requested: activations,
        available: room,
        advice: "lower max_num_batched_tokens or max_num_seqs, or use a smaller model",
    })
}
