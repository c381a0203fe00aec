//! The tiers of the KV cache below the device: host memory, then files. The KV cache has their index
//! (`kv_cache::offload`); this has the bytes and moves them.
//!
//! - Copies from the device begin after outputs were delivered, so that on a GPU they run during a step.
//! - What a step is about to overwrite is copied right after the step was scheduled.
//! - Copies to the device run during the steps as well, a bounded number of bytes at a time (`loads`). No step waits
//!   for them: a request is scheduled once its contents have arrived.
//! - A content that leaves host memory goes to a file. A request whose prompt continues in files waits until these were
//!   read. What has been read already is copied to the device meanwhile.
//! - A closing engine writes everything to files, the device's contents last.

mod files;
mod folder;
mod loads;
mod namespace;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::executor::Executor;
use super::ids::{RequestId, request_of};
use super::stats::OffloadStats;
use crate::backend::{Content, Copied};
use crate::config::KvOffloadConfig;
use crate::kv_cache::{ContentKey, HashChain, KvCache, Move, Moves, OffloadConfig, Tokens};
use crate::scheduler::NewSequence;
use crate::{Error, Result};

pub(super) use files::FileEvent;
pub(super) use folder::prepare_folder;
pub(super) use namespace::namespace;
pub(super) use store::Store;

use files::{FileReport, Files, write_content};

/// The bytes of each pool that a synchronous device copies ahead after a step; at least one content is.
const AHEAD_BYTES: u64 = 16 << 20;

/// The bytes and the contents of each pool that a closing engine copies from the device at once.
const LAST_BYTES: u64 = 64 << 20;
const LAST_COPIES: u64 = 256;

/// A content that is read from a file; `None` if there is no intact file.
type ReadContent = (ContentKey, Option<Content>);

pub(super) struct Offload {
    kv_cache: Arc<RwLock<KvCache>>,
    /// The bytes of a content of each pool.
    content_bytes: Vec<u64>,
    /// The contents of each pool that an asynchronous device can copy at once.
    staged: Vec<usize>,
    memory: HashMap<ContentKey, Content>,
    /// Copies that are under way, by their numbers. Others belong to contents that were cleared.
    saving: HashMap<u64, ContentKey>,
    num_saves: u64,
    /// Contents of blocks that have a new owner, to copy to the host, and whether a block of a copy has one.
    to_save: Vec<Move>,
    overtakes: bool,
    /// Contents to copy to the device, in the order in which they were asked for.
    to_load: VecDeque<(Move, Content)>,
    /// Copies to the device that are under way, by their numbers.
    loading: HashMap<u64, ContentKey>,
    num_loads: u64,
    /// Contents whose memory the executor may use for others.
    unused: Vec<Content>,
    files: Option<Files>,
    disk_capacity: u64,
    /// Sequences whose contents are being read.
    waiting: HashMap<RequestId, Waiting>,
    /// Sequences whose contents are read once fewer bytes are being read, in the order of their arrival.
    queue: VecDeque<(NewSequence, HashChain)>,
    /// The bytes that are being read, and the most for several requests together.
    bytes_reading: u64,
    most_reading: u64,
}

/// A sequence whose contents are being read.
struct Waiting {
    sequence: NewSequence,
    chain: HashChain,
    /// The tokens that these contents add to its prefix.
    num_tokens: usize,
    /// True if all contents so far were found.
    is_whole: bool,
}

impl Offload {
    /// Starts the tiers and tells the KV cache. The thread of the files reports through `report`.
    ///
    /// # Errors
    /// `InvalidRequest` for an engine without prefix cache.
    pub(super) fn start(
        config: &KvOffloadConfig,
        mut store: Option<Store>,
        index: OffloadConfig,
        staged: Vec<usize>,
        kv_cache: &Arc<RwLock<KvCache>>,
        report: impl Fn(FileEvent) + Send + 'static,
    ) -> Result<Self> {
        let content_bytes = index.content_bytes.clone();
        kv_cache.write().enable_offload(index)?;
        if let Some(store) = &mut store {
            // Before the first request, so that it already finds them.
            kv_cache.write().note_files(&store.scan(), &[]);
        }
        Ok(Self {
            kv_cache: Arc::clone(kv_cache),
            content_bytes,
            staged,
            memory: HashMap::new(),
            saving: HashMap::new(),
            num_saves: 0,
            to_save: Vec::new(),
            overtakes: false,
            to_load: VecDeque::new(),
            loading: HashMap::new(),
            num_loads: 0,
            unused: Vec::new(),
            files: store.map(|store| Files::start(store, report)).transpose()?,
            disk_capacity: config.files.as_ref().map_or(0, |files| files.capacity),
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            bytes_reading: 0,
            most_reading: config.memory / 2,
        })
    }

    pub(super) fn num_waiting(&self) -> usize {
        self.waiting.len() + self.queue.len()
    }

    /// Returns the requests whose contents are being read, or will be.
    pub(super) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.keys().copied().chain(self.queue.iter().map(|(sequence, _)| request_of(sequence.id).0))
    }

    /// Drops the sequence of a request that has ended.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.waiting.remove(&request);
        self.queue.retain(|(sequence, _)| request_of(sequence.id).0 != request);
    }

    /// Begins to move what the step that was scheduled last is about to overwrite, and what waiting sequences need.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn move_contents(&mut self, executor: &mut dyn Executor) -> Result<()> {
        self.take_moves()?;
        self.begin_moves(executor)
    }

    /// Takes what the KV cache wants to have moved. Until the saves are begun, no load may be.
    fn take_moves(&mut self) -> Result<()> {
        let Moves { saves, loads, overtakes } = self.kv_cache.write().take_moves();
        // Their contents are taken now, because others may push them out of host memory.
        let load = |load: Move| {
            let content = self.memory.get(&load.key).cloned();
            content.map(|content| (load, content)).ok_or_else(|| Error::internal("a hit without its content"))
        };
        let loads = loads.into_iter().map(load).collect::<Result<Vec<_>>>()?;
        self.to_load.extend(loads);
        self.to_save.extend(saves);
        self.overtakes |= overtakes;
        Ok(())
    }

    fn begin_moves(&mut self, executor: &mut dyn Executor) -> Result<()> {
        // Copies that have ended make room for those that begin.
        self.end_saves(false, executor)?;
        let saves = std::mem::take(&mut self.to_save);
        let is_ordered = std::mem::take(&mut self.overtakes) || !saves.is_empty();
        self.begin_saves(saves, executor)?;
        if is_ordered {
            executor.order_copies()?;
        }
        self.end_saves(false, executor)?;
        self.begin_loads(executor)
    }

    /// Copies contents that are evicted soon. Takes those whose copies have ended.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn save_ahead(&mut self, executor: &mut dyn Executor) -> Result<()> {
        self.end_saves(false, executor)?;
        let under_way = self.num_under_way();
        let most = |(pool, bytes): (usize, &u64)| match executor.is_asynchronous() {
            // The rest is for what the next step evicts.
            true => (self.staged[pool] / 2).saturating_sub(under_way[pool]),
            false => usize::try_from(AHEAD_BYTES / bytes.max(&1)).unwrap_or(usize::MAX).max(1),
        };
        let most: Vec<usize> = self.content_bytes.iter().enumerate().map(most).collect();
        let saves = self.kv_cache.write().saves_ahead(&most, false);
        self.begin_saves(saves, executor)?;
        // Copies of a synchronous device have ended already.
        if executor.is_asynchronous() { Ok(()) } else { self.end_saves(false, executor) }
    }

    /// Returns the number of contents of each pool that are being copied.
    fn num_under_way(&self) -> Vec<usize> {
        let mut numbers = vec![0; self.content_bytes.len()];
        self.saving.values().for_each(|key| numbers[key.pool] += 1);
        numbers
    }

    /// Begins copies to the host. Those for which there is no room are given up: the first ones of each pool, since the
    /// end of a prefix is evicted before its beginning.
    fn begin_saves(&mut self, saves: Vec<Move>, executor: &mut dyn Executor) -> Result<()> {
        let mut num_late = self.num_under_way();
        saves.iter().for_each(|save| num_late[save.key.pool] += 1);
        num_late.iter_mut().zip(&self.staged).for_each(|(late, staged)| *late = late.saturating_sub(*staged));
        for Move { key, block } in saves {
            if executor.is_asynchronous() && self.bytes_of(&key) > 0 && num_late[key.pool] > 0 {
                num_late[key.pool] -= 1;
                self.kv_cache.write().give_up_save(&key);
                continue;
            }
            let number = self.num_saves;
            self.num_saves += 1;
            if self.bytes_of(&key) == 0 {
                let gone = self.kv_cache.write().end_save(key);
                self.hold(key, Content::default(), gone);
            } else if executor.save(number, key.pool, block)? {
                self.saving.insert(number, key);
            } else {
                self.kv_cache.write().give_up_save(&key);
            }
        }
        Ok(())
    }

    /// Takes contents whose copies have ended; with `wait`, all that are under way.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn end_saves(&mut self, wait: bool, executor: &mut dyn Executor) -> Result<()> {
        // Copies of contents that were cleared are taken as well, since they occupy the executor.
        while let Some((number, content)) = executor.saved(wait)? {
            let Some(key) = self.saving.remove(&number) else { continue };
            match content {
                Some(content) => {
                    let gone = self.kv_cache.write().end_save(key);
                    self.hold(key, content.into(), gone);
                }
                None => self.kv_cache.write().give_up_save(&key),
            }
        }
        self.unused.drain(..).try_for_each(|content| executor.recycle(content))
    }

    /// Has the contents read that a sequence can continue from. Returns the sequence if there are none.
    pub(super) fn fetch(&mut self, sequence: NewSequence) -> Option<NewSequence> {
        // A sequence that needs all logits computes everything.
        if self.files.is_none() || sequence.all_logits {
            return Some(sequence);
        }
        let kv = self.kv_cache.read();
        let mut chain = kv.new_chain(sequence.cache_salt.as_deref(), sequence.extras.clone());
        kv.extend_chain(&mut chain, &Tokens::new(Arc::clone(&sequence.prompt)));
        drop(kv);
        self.fetch_chain(sequence, chain)
    }

    /// Does the same for a sequence with its chain.
    fn fetch_chain(&mut self, sequence: NewSequence, chain: HashChain) -> Option<NewSequence> {
        let Some(files) = &self.files else { return Some(sequence) };
        let (missing, num_tokens) = self.kv_cache.write().missing_files(&chain, sequence.prompt.len());
        if missing.is_empty() {
            return Some(sequence);
        }
        let contents: Vec<_> = missing.iter().map(|key| (*key, self.bytes_of(key))).collect();
        let bytes: u64 = contents.iter().map(|(_, bytes)| bytes).sum();
        // Contents that were read need memory of their own until the engine takes them.
        let is_much = self.bytes_reading > 0 && self.bytes_reading + bytes > self.most_reading;
        if is_much || !self.queue.is_empty() {
            self.queue.push_back((sequence, chain));
            return None;
        }
        let (request, _) = request_of(sequence.id);
        files.read(request, contents);
        self.bytes_reading += bytes;
        self.waiting.insert(request, Waiting { sequence, chain, num_tokens, is_whole: true });
        None
    }

    /// Takes a report about files. Returns the sequences that need not wait any more.
    pub(super) fn take_event(&mut self, event: FileEvent) -> Vec<NewSequence> {
        // It does not count if everything was cleared meanwhile.
        let is_current = self.files.as_ref().is_some_and(|files| files.is_current(&event));
        let (request, contents, is_last) = match event.report {
            FileReport::Changed { present, gone } => {
                if is_current {
                    self.kv_cache.write().note_files(&present, &gone);
                }
                return Vec::new();
            }
            FileReport::Read { request, contents, is_last } => (request, contents, is_last),
        };
        self.bytes_reading -= contents.iter().map(|(key, _)| self.bytes_of(key)).sum::<u64>();
        let (mut is_whole, mut arrived) = (is_current, Vec::new());
        for (key, content) in contents.into_iter().filter(|_| is_current) {
            let Some(content) = content else {
                self.kv_cache.write().note_unreadable(&key);
                is_whole = false;
                continue;
            };
            if !self.memory.contains_key(&key) {
                let gone = self.kv_cache.write().keep_in_memory(key);
                self.hold(key, content, gone);
            }
            arrived.push(key);
        }
        // The request may have ended meanwhile.
        if let Some(waiting) = self.waiting.get_mut(&request) {
            waiting.is_whole &= is_whole;
            let tokens = Tokens::new(Arc::clone(&waiting.sequence.prompt));
            self.kv_cache.write().load_early(&arrived, &waiting.chain, &tokens);
            if let Err(error) = self.take_moves() {
                tracing::error!("KV contents that were read are not loaded: {error}");
            }
        }
        if !is_last {
            return Vec::new();
        }
        let mut ready = Vec::new();
        if let Some(Waiting { sequence, num_tokens, is_whole, .. }) = self.waiting.remove(&request) {
            ready.push(sequence);
            if is_whole {
                self.kv_cache.write().count_disk_hit(num_tokens);
            }
        }
        for (sequence, chain) in std::mem::take(&mut self.queue) {
            ready.extend(self.fetch_chain(sequence, chain));
        }
        ready
    }

    /// Forgets all contents, after the KV cache did.
    pub(super) fn clear(&mut self) {
        self.memory.clear();
        self.saving.clear();
        self.to_save.clear();
        if let Some(files) = &mut self.files {
            files.clear();
        }
    }

    /// Writes everything to files. The engine computes nothing more. `report` takes the number of files written so far.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn write_all(&mut self, executor: &mut dyn Executor, report: &dyn Fn(u64)) -> Result<()> {
        let ended = self.finish_loads(executor).and_then(|()| self.end_saves(true, executor));
        let Some((mut store, counters)) = self.files.take().and_then(|files| files.finish(report)) else {
            return ended;
        };
        let mut write = |key: ContentKey, content: &[u8]| {
            write_content(&mut store, &counters, key, content);
            report(counters.written.load(Ordering::Relaxed));
            store.is_paused()
        };
        for key in self.kv_cache.read().memory_contents() {
            if let Some(content) = self.memory.remove(&key).filter(|content| !content.is_empty()) {
                write(key, &content);
            }
        }
        // Host memory needs no device, so it was written in any case.
        ended?;
        let most = |bytes: &u64| (LAST_BYTES / bytes.max(&1)).clamp(1, LAST_COPIES) as usize;
        let most: Vec<usize> = self.content_bytes.iter().map(most).collect();
        loop {
            let saves = self.kv_cache.write().saves_ahead(&most, true);
            if saves.is_empty() {
                return Ok(());
            }
            // Copies of contents that were cleared may still arrive, so no number is used twice.
            let numbered = (self.num_saves..).zip(&saves);
            self.num_saves += saves.len() as u64;
            let keys: HashMap<u64, ContentKey> = numbered.clone().map(|(number, save)| (number, save.key)).collect();
            let mut is_paused = false;
            let mut take = |(number, content): Copied| {
                if let (Some(key), Some(content)) = (keys.get(&number), content) {
                    is_paused |= write(*key, &content);
                }
            };
            for (number, Move { key, block }) in numbered.filter(|(_, save)| self.bytes_of(&save.key) > 0) {
                while !executor.save(number, key.pool, *block)? {
                    if let Some(copied) = executor.saved(true)? {
                        take(copied);
                    }
                }
            }
            while let Some(copied) = executor.saved(true)? {
                take(copied);
            }
            // A full disk takes no more.
            if is_paused {
                return Ok(());
            }
        }
    }

    fn bytes_of(&self, key: &ContentKey) -> u64 {
        self.content_bytes.get(key.pool).copied().unwrap_or(0)
    }

    /// Holds a content of host memory, in place of those that are `gone`, which go to files. Holds nothing if it is
    /// gone itself.
    fn hold(&mut self, key: ContentKey, content: Content, gone: Vec<ContentKey>) {
        if gone.contains(&key) {
            return;
        }
        self.memory.insert(key, content);
        for key in gone {
            let content = self.memory.remove(&key).filter(|content| !content.is_empty());
            let unwritten = match &self.files {
                Some(files) => content.and_then(|content| files.write(key, content)),
                None => content,
            };
            self.unused.extend(unwritten);
        }
    }

    pub(super) fn stats(&self) -> OffloadStats {
        let (index, disk_capacity) = (self.kv_cache.read().offload_stats(), self.disk_capacity);
        let mut stats = OffloadStats { index, disk_capacity, ..Default::default() };
        if let Some(files) = &self.files {
            let counters = files.counters();
            stats.disk_bytes = counters.bytes.load(Ordering::Relaxed);
            stats.disk_written = counters.written.load(Ordering::Relaxed);
            stats.disk_read = counters.read.load(Ordering::Relaxed);
            stats.disk_dropped = counters.dropped.load(Ordering::Relaxed);
            stats.disk_unreadable = counters.unreadable.load(Ordering::Relaxed);
        }
        stats
    }

    /// # Errors
    /// `Internal` if the bytes are not those of the index, or if something is kept of an engine that `is_idle`.
    pub(super) fn check(&self, is_idle: bool) -> Result<()> {
        let index = self.kv_cache.read().memory_contents();
        let is_held =
            |key: &ContentKey| self.memory.get(key).is_some_and(|content| content.len() as u64 == self.bytes_of(key));
        if index.len() != self.memory.len() || !index.iter().all(is_held) {
            let (held, indexed) = (self.memory.len(), index.len());
            return Err(Error::internal(format!("host memory holds {held} contents, {indexed} are in its index")));
        }
        if is_idle && self.num_waiting() > 0 {
            return Err(Error::internal("no request is left, but one waits for KV files"));
        }
        Ok(())
    }
}
