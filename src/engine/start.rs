//! Starts an engine: its parts and its threads.

use std::sync::Arc;

use crossbeam_channel::{bounded, unbounded};
use parking_lot::{Mutex, RwLock};

use super::core::Core;
use super::core::thread;
use super::delivery;
use super::handle::validate::scheduler_config;
use super::handle::{Engine, Inner};
use super::images::{self, LoadedImages, Pending};
use super::load::{LoadedModel, load_model};
use super::offload::{Offload, Store};
use super::output::records::Records;
use super::progress::LoadProgress;
use super::shared::watch::Watch;
use super::shared::{Command, Shared};
use super::threads::spawn::spawn;
use crate::config::EngineArgs;
use crate::grammar::Grammars;
use crate::kv_cache::{KvCache, KvCacheConfig, OffloadConfig};
use crate::scheduler::{BesideDecodes, Scheduler, SchedulerConfig};
use crate::{Error, Result};

/// The part of host memory that copies from a device may have under way besides, as a divisor.
const STAGED_SHARE: u64 = 4;

/// The part of the slots of states that are copied to host memory before they are evicted, as a divisor.
const SNAPSHOT_SHARE: usize = 4;

impl Engine {
    /// Opens, checks and loads a model and starts the engine thread. `progress` may return `false` to stop (Ctrl-C).
    ///
    /// # Errors
    /// `InvalidRequest` for an argument out of range, and any error of the file, the device or memory.
    pub fn load(args: EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<Self> {
        let args = args.with_env()?;
        args.validate()?;
        let model = load_model(&args, progress)?;
        Self::start(model)
    }

    /// Starts an engine. The KV groups of the configuration must be those of the executor's model. Without a tokenizer,
    /// prompts are token ids, outputs have no text, and the model's own end tokens do not end a sequence.
    ///
    /// # Errors
    /// `InvalidRequest` for settings that contradict each other; `Internal` if the system cannot start a thread.
    pub fn start(model: LoadedModel) -> Result<Self> {
        let LoadedModel { mut executor, config, tokenizer, chat_template, images } = model;
        let (mut hash_key, mut drawn_seed) = ([0u8; 32], [0u8; 8]);
        getrandom::fill(&mut hash_key).and_then(|()| getrandom::fill(&mut drawn_seed)).map_err(no_randomness)?;
        let files = config.kv_offload.as_ref().and_then(|offload| offload.files.as_ref());
        let store = files.map(|files| Store::open(&files.folder, files.namespace, files.capacity)).transpose()?;
        if let Some(store) = &store {
            // Files can be found again only if all engines hash alike.
            hash_key = store.hash_key();
        }
        let seed = config.seed.unwrap_or_else(|| u64::from_le_bytes(drawn_seed));
        let kv_cache = KvCache::new(KvCacheConfig {
            block_size: config.block_size,
            groups: config.kv_groups.clone(),
            states: config.states,
            enable_prefix_caching: config.enable_prefix_caching,
            hash_key,
        })?;
        let kv_cache = Arc::new(RwLock::new(kv_cache));
        let limits = scheduler_config(&config, executor.as_ref());
        let largest_image = images.as_ref().map_or(0, |images| images.reader.most_uncut_tokens());
        let limits = with_room_for(largest_image, limits);
        let scheduler = Scheduler::new(limits.clone(), Arc::clone(&kv_cache))?;
        let (commands, command_queue) = unbounded();
        let (outbox, outputs) = delivery::mailbox();
        let records = Records::new(config.retention);
        let watch = Watch::new(executor.interrupt());
        let shared = Arc::new(Shared::new(kv_cache, commands, records, limits, watch));
        let (images, encoder) = images.map(|LoadedImages { reader, encoder }| (reader, encoder)).unzip();
        *shared.memory.write() = executor.memory() + encoder.as_ref().map_or_else(Default::default, |e| e.memory());
        shared.memory.write().kv_offload = config.kv_offload.as_ref().map_or(0, |offload| offload.memory);
        let mut description = executor.describe();
        if let Some(images) = &images {
            description = format!("{description}\n{}", images.describe());
        }
        let vocab_size = executor.vocab_size();
        let (alive, ended) = bounded(0);
        let mut threads = Vec::new();
        let jobs = encoder.map(|encoder| -> Result<_> {
            let ((jobs, job_queue), for_images, lives) = (unbounded(), Arc::clone(&shared), alive.clone());
            threads.push(spawn("rocmforge-images", move || {
                let is_active = |request| for_images.is_active(request);
                // A closed engine needs no rows.
                images::run(encoder, &job_queue, is_active, |encoded| drop(for_images.send(Command::Encoded(encoded))));
                drop(lives);
            })?);
            Ok(jobs)
        });
        let pending = Pending::new(jobs.transpose()?);
        let offload = config.kv_offload.as_ref().map(|offload| {
            let content_bytes = executor.content_bytes();
            // The blocks that a step evicts, and as many that are copied ahead.
            let of_steps = 2 * config.max_num_batched_tokens.div_ceil(config.block_size);
            let most_bytes = offload.memory / STAGED_SHARE / content_bytes.len().max(1) as u64;
            let staged =
                |bytes: &u64| usize::try_from(most_bytes / bytes.max(&1)).map_or(of_steps, |n| n.min(of_steps));
            let staged: Vec<usize> = content_bytes.iter().map(|bytes| staged(bytes).max(2)).collect();
            executor.prepare_copies(&staged)?;
            // The blocks of two steps, or of the prompt of a new sequence, and a few snapshots.
            let num_blocks = 2 * (config.max_num_batched_tokens / config.block_size + config.max_num_seqs);
            let num_blocks = num_blocks.max(config.max_model_len / config.block_size);
            let num_slots = config.states.map(|states| (states.num_slots / SNAPSHOT_SHARE).max(1));
            let num_ahead = config.kv_groups.iter().map(|_| num_blocks).chain(num_slots).collect();
            let index = OffloadConfig { memory: offload.memory, content_bytes, num_ahead };
            let for_files = Arc::clone(&shared);
            // A closed engine needs no reports.
            let report = move |event| drop(for_files.send(Command::Files(event)));
            Offload::start(offload, store, index, staged, &shared.kv_cache, report)
        });
        let (for_core, settings) = (Arc::clone(&shared), config.clone());
        let core = Core::new(for_core, settings, executor, scheduler, tokenizer.clone(), pending, outbox);
        let mut core = core.with_offload(offload.transpose()?);
        core.flush();
        let for_outputs = Arc::clone(&shared);
        let output_lives = alive.clone();
        let output_thread = spawn("rocmforge-output", move || {
            delivery::run(&outputs, &for_outputs);
            drop(output_lives);
        })?;
        // If this thread does not start, `core` is dropped with it, which ends the output thread.
        let engine_thread = spawn("rocmforge-engine", move || {
            thread::run(core, &command_queue);
            drop(alive);
        })?;
        // Joined in this order, since the other threads end after the engine thread.
        threads.insert(0, engine_thread);
        threads.push(output_thread);
        let inner = Inner {
            shared,
            config,
            seed,
            vocab_size,
            grammars: tokenizer.clone().map(|tokenizer| Grammars::new(tokenizer, vocab_size)),
            tokenizer,
            chat_template,
            images,
            description,
            own_threads: threads.iter().map(|thread| thread.thread().id()).collect(),
            threads: Mutex::new(threads),
            ended,
            owner: std::process::id(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Returns limits under which an image that may not be cut never waits for newcomers alone, or for decodes of others.
pub(super) fn with_room_for(largest_image: usize, limits: SchedulerConfig) -> SchedulerConfig {
    let max_prefill_beside_newcomers = limits.max_prefill_beside_newcomers.max(largest_image);
    let beside_decodes = limits
        .beside_decodes
        .map(|beside| BesideDecodes { min_prefill: beside.min_prefill.max(largest_image), ..beside });
    SchedulerConfig { max_prefill_beside_newcomers, beside_decodes, ..limits }
}

fn no_randomness(error: getrandom::Error) -> Error {
    Error::internal(format!("the system provides no random numbers: {error}"))
}
