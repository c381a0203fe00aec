//! The tiers of the KV cache below the device: host memory, then files. The KV cache has their index
//! (`kv_cache::offload`); this has the bytes and moves them.
//!
//! - Copies from the device are begun after outputs were delivered, so that on a GPU they run beside a step.
//! - What a step is about to overwrite or to read is moved right after the step was scheduled.
//! - A content that leaves host memory goes to a file. A request whose prompt continues in files waits until these were
//!   read, and is then scheduled.
//! - A closing engine writes everything to files, the device's contents last.

mod files;
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
use crate::backend::Copied;
use crate::config::KvOffloadConfig;
use crate::kv_cache::{ContentKey, HashChain, KvCache, Move, Moves, OffloadConfig, Tokens};
use crate::scheduler::NewSequence;
use crate::{Error, Result};

pub(super) use files::FileEvent;
pub(super) use namespace::namespace;
pub(super) use store::Store;

use files::{FileReport, Files, write_content};

/// The bytes of each pool that a synchronous device copies ahead after a step; at least one content is.
const AHEAD_BYTES: u64 = 16 << 20;

/// Contents that a closing engine copies from the device at once.
const LAST_COPIES: usize = 32;

/// The bytes of a content.
type Content = Arc<Vec<u8>>;

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
    files: Option<Files>,
    disk_capacity: u64,
    /// Sequences whose contents are being read, each with the tokens that these contents add to its prefix.
    waiting: HashMap<RequestId, (NewSequence, usize)>,
    /// Sequences whose contents are read once fewer bytes are being read, in the order of their arrival.
    queue: VecDeque<(NewSequence, HashChain)>,
    /// The bytes that are being read, and the most for several requests together.
    bytes_reading: u64,
    most_reading: u64,
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

    /// Moves what the step that was scheduled last is about to overwrite or to read.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn move_contents(&mut self, executor: &mut dyn Executor) -> Result<()> {
        let Moves { saves, loads, overtakes } = self.kv_cache.write().take_moves();
        // Taken first, because saves may push contents out of host memory.
        let load = |load: Move| {
            let content = self.memory.get(&load.key).cloned();
            content.map(|content| (load, content)).ok_or_else(|| Error::internal("a hit without its content"))
        };
        let loads = loads.into_iter().map(load).collect::<Result<Vec<_>>>()?;
        // Copies that have ended make room for those that begin.
        self.end_saves(false, executor)?;
        let is_ordered = overtakes || !saves.is_empty();
        self.begin_saves(saves, executor)?;
        if is_ordered {
            executor.order_copies()?;
        }
        self.end_saves(false, executor)?;
        for (Move { key, block }, content) in loads.iter().filter(|(_, content)| !content.is_empty()) {
            executor.restore(key.pool, *block, content)?;
        }
        Ok(())
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
        Ok(())
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
        self.waiting.insert(request, (sequence, num_tokens));
        None
    }

    /// Takes a report about files. Returns the sequences that need not wait any more.
    pub(super) fn take_event(&mut self, event: FileEvent) -> Vec<NewSequence> {
        // It does not count if everything was cleared meanwhile.
        let is_current = self.files.as_ref().is_some_and(|files| files.is_current(&event));
        let (request, contents) = match event.report {
            FileReport::Changed { present, gone } => {
                if is_current {
                    self.kv_cache.write().note_files(&present, &gone);
                }
                return Vec::new();
            }
            FileReport::Read { request, contents } => (request, contents),
        };
        self.bytes_reading -= contents.iter().map(|(key, _)| self.bytes_of(key)).sum::<u64>();
        let mut is_whole = is_current;
        for (key, content) in contents.into_iter().filter(|_| is_current) {
            let Some(content) = content else {
                self.kv_cache.write().note_files(&[], &[key]);
                is_whole = false;
                continue;
            };
            if !self.memory.contains_key(&key) {
                let gone = self.kv_cache.write().keep_in_memory(key);
                self.hold(key, content, gone);
            }
        }
        let mut ready = Vec::new();
        // The request may have ended meanwhile.
        if let Some((sequence, num_tokens)) = self.waiting.remove(&request) {
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
        if let Some(files) = &mut self.files {
            files.clear();
        }
    }

    /// Writes everything to files. The engine computes nothing more.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn write_all(&mut self, executor: &mut dyn Executor) -> Result<()> {
        self.end_saves(true, executor)?;
        let Some((mut store, counters)) = self.files.take().and_then(Files::finish) else { return Ok(()) };
        for key in self.kv_cache.read().memory_contents() {
            if let Some(content) = self.memory.remove(&key).filter(|content| !content.is_empty()) {
                write_content(&mut store, &counters, key, &content);
            }
        }
        loop {
            let saves = self.kv_cache.write().saves_ahead(&vec![LAST_COPIES; self.content_bytes.len()], true);
            if saves.is_empty() || store.is_paused() {
                return Ok(());
            }
            // Copies of contents that were cleared may still arrive, so no number is used twice.
            let numbered = (self.num_saves..).zip(&saves);
            self.num_saves += saves.len() as u64;
            let keys: HashMap<u64, ContentKey> = numbered.clone().map(|(number, save)| (number, save.key)).collect();
            let mut write = |(number, content): Copied| {
                if let (Some(key), Some(content)) = (keys.get(&number), content) {
                    write_content(&mut store, &counters, *key, &content);
                }
            };
            for (number, Move { key, block }) in numbered.filter(|(_, save)| self.bytes_of(&save.key) > 0) {
                while !executor.save(number, key.pool, *block)? {
                    if let Some(copied) = executor.saved(true)? {
                        write(copied);
                    }
                }
            }
            while let Some(copied) = executor.saved(true)? {
                write(copied);
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
            if let (Some(files), Some(content)) = (&self.files, content) {
                files.write(key, content);
            }
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
