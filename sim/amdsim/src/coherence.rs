//! Caches that are not coherent: a wave sees the stores of other workgroups as late as AMD's memory model allows.
//!
//! A store stays in the queue of its wave until the wave waits for it. With several L2 caches (GFX940 and later of
//! GFX9), it then stays in its workgroup until it is written back. A load sees memory as of the last time when its wave
//! invalidated its caches, initially the start of the launch; it also sees the stores of its own workgroup. A scalar
//! load sees the content of the scalar cache, which may be from earlier launches ([`ScalarCache`]). Atomics, and loads
//! and stores with the corresponding scope, access memory directly. LLVM's AMDGPU usage document, "Memory model", lists
//! the instructions of a release and an acquire on each target.

use std::collections::HashMap;

use crate::Memory;
use crate::error::OutOfBounds;

/// The rules for when workgroups see each other's stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// Every store is visible at once.
    #[default]
    Full,
    /// Stores are visible once they were released and acquired for the agent, or else when the launch ends. Slow.
    Weak,
}

/// The written bytes of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    bytes: [u8; 4],
    /// One bit per byte.
    written: u8,
    /// Reaches memory without a write-back.
    through: bool,
}

impl Word {
    fn over(&self, below: &mut [u8; 4]) {
        for (at, byte) in below.iter_mut().enumerate() {
            if self.written >> at & 1 != 0 {
                *byte = self.bytes[at];
            }
        }
    }

    fn add(&mut self, later: Word) {
        later.over(&mut self.bytes);
        self.written |= later.written;
        self.through = later.through;
    }
}

/// Words by their address / 4.
type Words = HashMap<u64, Word>;

/// Bytes of a line of the scalar cache.
const LINE: u64 = 64;

/// The scalar cache: one for the whole device, which never evicts a line. A launch may find what an earlier launch left
/// in it. Runtimes should invalidate it before every kernel (a new one is empty), but were seen not to do so within
/// graphs.
#[derive(Debug, Default)]
pub struct ScalarCache {
    /// Lines by address / LINE, each with the time in this launch at which its content was current.
    lines: HashMap<u64, (u64, [u8; LINE as usize])>,
}

impl ScalarCache {
    fn next_launch(mut self) -> Self {
        self.lines.values_mut().for_each(|(time, _)| *time = 0);
        self
    }
}

/// A cache that an acquire for the agent must invalidate: GFX10 and GFX11 have two levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    Near,
    Far,
    Both,
}

/// A wave's part of the caches. A new one is that of a starting launch: nothing of other workgroups has arrived.
#[derive(Debug, Default)]
pub(crate) struct WaveCache {
    queue: Words,
    /// Times at which the near and the far cache were invalidated.
    invalidated: [u64; 2],
    /// The time at which the scalar cache was invalidated.
    scalar: u64,
}

impl WaveCache {
    fn acquired(&self) -> u64 {
        self.invalidated[0].min(self.invalidated[1])
    }
}

/// A workgroup's part of the caches.
#[derive(Debug, Default)]
struct GroupCache {
    /// Stores that were waited for, but not written back.
    written: Words,
    /// The time at which this workgroup last changed a word in memory.
    seen: HashMap<u64, u64>,
}

/// The caches of a launch.
#[derive(Debug)]
pub(crate) struct Caches {
    /// The number of changes of memory so far.
    time: u64,
    /// Earlier contents of words, each with the time at which it was replaced.
    history: HashMap<u64, Vec<(u64, [u8; 4])>>,
    /// Unpublished stores of workgroups that have ended; they reach memory when the launch ends.
    late: Words,
    groups: Vec<GroupCache>,
    /// The running workgroup.
    pub group: usize,
    scalar: ScalarCache,
}

impl Caches {
    /// Creates caches for `groups` workgroups at a time, with the scalar cache of the previous launch.
    pub(crate) fn new(groups: usize, scalar: ScalarCache) -> Self {
        let groups = (0..groups).map(|_| GroupCache::default()).collect();
        Self { time: 0, history: HashMap::new(), late: Words::new(), groups, group: 0, scalar }
    }

    /// Loads bytes; `agent` bypasses all caches.
    pub(crate) fn load(
        &self,
        memory: &mut dyn Memory,
        wave: &WaveCache,
        (address, bytes): (u64, &mut [u8]),
        agent: bool,
    ) -> Result<(), OutOfBounds> {
        inside(memory, address, bytes.len())?;
        let group = &self.groups[self.group];
        self.read(memory, (address, bytes), |index, now| {
            let seen = group.seen.get(&index).copied().unwrap_or(0);
            let mut word = if agent { now } else { self.at(index, now, wave.acquired().max(seen)) };
            for words in [&group.written, &wave.queue] {
                if let Some(stored) = words.get(&index) {
                    stored.over(&mut word);
                }
            }
            word
        })
    }

    /// Loads bytes through the scalar cache, which does not see vector stores.
    pub(crate) fn load_scalar(
        &mut self,
        memory: &mut dyn Memory,
        wave: &WaveCache,
        (address, bytes): (u64, &mut [u8]),
    ) -> Result<(), OutOfBounds> {
        inside(memory, address, bytes.len())?;
        for (at, to) in (address..).zip(bytes) {
            let number = at / LINE;
            // A wave that has invalidated the cache finds no older content.
            if self.scalar.lines.get(&number).is_none_or(|(time, _)| *time < wave.scalar) {
                let mut content = [0; LINE as usize];
                let line = (number * LINE, &mut content[..]);
                self.read(memory, line, |index, now| self.at(index, now, wave.scalar))?;
                self.scalar.lines.insert(number, (wave.scalar, content));
            }
            if let Some((_, content)) = self.scalar.lines.get(&number) {
                *to = content[(at % LINE) as usize];
            }
        }
        Ok(())
    }

    /// Queues a store; with `through` it needs no write-back.
    pub(crate) fn store(
        &self,
        memory: &mut dyn Memory,
        wave: &mut WaveCache,
        (address, bytes): (u64, &[u8]),
        through: bool,
    ) -> Result<(), OutOfBounds> {
        inside(memory, address, bytes.len())?;
        for (at, byte) in (address..).zip(bytes) {
            let word = wave.queue.entry(at / 4).or_default();
            word.bytes[(at % 4) as usize] = *byte;
            word.written |= 1 << (at % 4);
            word.through = through;
        }
        Ok(())
    }

    /// Changes memory directly, by an atomic. `update` gets the old content. The wave's own earlier stores to it come
    /// first.
    pub(crate) fn atomic(
        &mut self,
        memory: &mut dyn Memory,
        wave: &mut WaveCache,
        (address, bytes): (u64, &mut [u8]),
        update: impl FnOnce(&mut [u8]),
    ) -> Result<(), OutOfBounds> {
        inside(memory, address, bytes.len())?;
        let words = address / 4..(address + bytes.len() as u64).div_ceil(4);
        for index in words.clone() {
            let own = [self.groups[self.group].written.remove(&index), wave.queue.remove(&index)];
            for word in own.into_iter().flatten() {
                self.commit(memory, index, word);
            }
        }
        self.read(memory, (address, bytes), |_, now| now)?;
        update(bytes);
        for index in words {
            let mut word = Word { through: true, ..Word::default() };
            for (at, byte) in (address..).zip(&*bytes).filter(|(at, _)| at / 4 == index) {
                word.bytes[(at % 4) as usize] = *byte;
                word.written |= 1 << (at % 4);
            }
            self.commit(memory, index, word);
        }
        Ok(())
    }

    /// Completes the stores for which the wave has waited.
    pub(crate) fn wait(&mut self, memory: &mut dyn Memory, wave: &mut WaveCache) {
        for (index, word) in ordered(&mut wave.queue) {
            if word.through {
                self.commit(memory, index, word);
            } else {
                self.groups[self.group].written.entry(index).or_default().add(word);
            }
        }
    }

    /// Writes back the stores of the wave's workgroup.
    pub(crate) fn write_back(&mut self, memory: &mut dyn Memory, wave: &mut WaveCache) {
        let mut written = std::mem::take(&mut self.groups[self.group].written);
        for (index, word) in ordered(&mut written).into_iter().chain(ordered(&mut wave.queue)) {
            self.commit(memory, index, word);
        }
    }

    pub(crate) fn invalidate(&self, wave: &mut WaveCache, cache: Cache) {
        let [near, far] = &mut wave.invalidated;
        match cache {
            Cache::Near => *near = self.time,
            Cache::Far => *far = self.time,
            Cache::Both => (*near, *far) = (self.time, self.time),
        }
    }

    pub(crate) fn invalidate_scalar(&self, wave: &mut WaveCache) {
        wave.scalar = self.time;
    }

    /// Merges the acquires of a workgroup's waves at a barrier: what one has acquired, all have.
    pub(crate) fn meet<'a>(waves: impl Iterator<Item = &'a mut WaveCache>) {
        let waves: Vec<&mut WaveCache> = waves.collect();
        let latest = [0, 1].map(|cache| waves.iter().map(|wave| wave.invalidated[cache]).max().unwrap_or(0));
        waves.into_iter().for_each(|wave| wave.invalidated = latest);
    }

    /// Passes the stores of a wave that has ended to its workgroup.
    pub(crate) fn end_wave(&mut self, wave: &mut WaveCache) {
        for (index, word) in ordered(&mut wave.queue) {
            self.groups[self.group].written.entry(index).or_default().add(word);
        }
    }

    /// Ends the running workgroup.
    pub(crate) fn end_group(&mut self) {
        let mut group = std::mem::take(&mut self.groups[self.group]);
        for (index, word) in ordered(&mut group.written) {
            self.late.entry(index).or_default().add(word);
        }
    }

    /// Ends the launch: all stores reach memory. Returns the scalar cache.
    pub(crate) fn finish(mut self, memory: &mut dyn Memory) -> ScalarCache {
        let mut late = std::mem::take(&mut self.late);
        for (index, word) in ordered(&mut late) {
            self.commit(memory, index, word);
        }
        self.scalar.next_launch()
    }

    fn commit(&mut self, memory: &mut dyn Memory, index: u64, word: Word) {
        let before = current(memory, index);
        self.time += 1;
        self.history.entry(index).or_default().push((self.time, before));
        self.groups[self.group].seen.insert(index, self.time);
        for at in (0..4).filter(|at| word.written >> at & 1 != 0) {
            // The store was checked, so the byte exists.
            if let Some(byte) = byte(memory, 4 * index + at) {
                *byte = word.bytes[at as usize];
            }
        }
    }

    /// Returns a word as it was at a time.
    fn at(&self, index: u64, now: [u8; 4], time: u64) -> [u8; 4] {
        let changes = self.history.get(&index).map_or(&[][..], Vec::as_slice);
        changes.iter().find(|(changed, _)| *changed > time).map_or(now, |(_, before)| *before)
    }

    fn read(
        &self,
        memory: &mut dyn Memory,
        (address, bytes): (u64, &mut [u8]),
        word: impl Fn(u64, [u8; 4]) -> [u8; 4],
    ) -> Result<(), OutOfBounds> {
        let mut index = u64::MAX;
        let mut content = [0; 4];
        for (at, to) in (address..).zip(bytes) {
            if at / 4 != index {
                index = at / 4;
                content = word(index, current(memory, index));
            }
            *to = content[(at % 4) as usize];
        }
        Ok(())
    }
}

/// Empties a queue and returns its words in an order that does not depend on hashes.
fn ordered(words: &mut Words) -> Vec<(u64, Word)> {
    let mut words: Vec<_> = words.drain().collect();
    words.sort_unstable_by_key(|(index, _)| *index);
    words
}

fn inside(memory: &mut dyn Memory, address: u64, bytes: usize) -> Result<(), OutOfBounds> {
    let (start, content) = memory.around(address).ok_or(OutOfBounds)?;
    let end = (address - start) as usize + bytes;
    if end <= content.len() { Ok(()) } else { Err(OutOfBounds) }
}

fn byte(memory: &mut dyn Memory, address: u64) -> Option<&mut u8> {
    let (start, content) = memory.around(address)?;
    content.get_mut((address - start) as usize)
}

/// Returns a word of memory; bytes outside of all allocations are 0.
fn current(memory: &mut dyn Memory, index: u64) -> [u8; 4] {
    std::array::from_fn(|at| byte(memory, 4 * index + at as u64).map_or(0, |byte| *byte))
}
