//! Copies of blocks of the fake device, and its contents as bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Fake;
use crate::backend::{Content, Copied};
use crate::batch::Batch;
use crate::{Error, Result};

/// The bytes of a state: the number of its tokens and the tokens, up to as many as fit.
const STATE_BYTES: usize = 4 * 128;

/// Decides how copies of contents go.
#[derive(Default)]
pub(in crate::tests) struct CopyScript {
    /// The number of blocks that the engine copies to the host at once.
    pub staged: AtomicU64,
    /// The most copies to the host that may be under way; 0: no limit.
    pub most_saves: AtomicU64,
    /// The most copies to the device that may be under way; 0: no limit.
    pub most_restores: AtomicU64,
    /// True if copies to the device do not end, unless they are waited for.
    pub holds_restores: AtomicBool,
    /// True if copies fail because the device is lost.
    pub is_lost: AtomicBool,
    /// True if the host has no memory for copies.
    pub refuses_memory: AtomicBool,
}

#[derive(Default)]
pub(super) struct Copies {
    ended: VecDeque<Copied>,
    /// Contents that have not arrived.
    restoring: VecDeque<(u64, usize, u32, Content)>,
    /// True if the next question whether one has arrived is answered with yes. Every other one is.
    arrives: bool,
}

impl Copies {
    pub(super) fn content_bytes(&self, block_size: usize, has_states: bool) -> Vec<u64> {
        std::iter::once(8 * block_size as u64).chain(has_states.then_some(STATE_BYTES as u64)).collect()
    }

    pub(super) fn end(&mut self) -> Option<Copied> {
        self.ended.pop_front()
    }
}

impl Fake {
    pub(super) fn copy_blocks(&mut self, batch: &Batch) {
        let size = self.block_size as u32;
        for copy in &batch.block_copies {
            for offset in 0..size {
                match self.slots.get(&(copy.src * size + offset)).copied() {
                    Some(content) => self.slots.insert(copy.dst * size + offset, content),
                    None => self.slots.remove(&(copy.dst * size + offset)),
                };
            }
        }
    }

    pub(super) fn begin_copy(&mut self, number: u64, pool: usize, index: u32) -> Result<bool> {
        let CopyScript { is_lost, most_saves, refuses_memory, .. } = &self.script.copies;
        if is_lost.load(Ordering::SeqCst) {
            return Err(Error::EngineDead { reason: "the device was lost".into() });
        }
        let most = most_saves.load(Ordering::SeqCst);
        if most > 0 && self.copies.ended.len() as u64 >= most {
            return Ok(false);
        }
        let content = (!refuses_memory.load(Ordering::SeqCst)).then(|| self.content_at(pool, index));
        self.copies.ended.push_back((number, content));
        Ok(true)
    }

    /// Returns a block, or a state for the second pool.
    fn content_at(&self, pool: usize, index: u32) -> Vec<u8> {
        match pool {
            0 => of_block(&self.slots, index, self.block_size),
            _ => of_state(&self.states[&index]),
        }
    }

    pub(super) fn begin_restore(&mut self, number: u64, pool: usize, index: u32, content: &Content) -> Result<bool> {
        if self.script.copies.is_lost.load(Ordering::SeqCst) {
            return Err(Error::EngineDead { reason: "the device was lost".into() });
        }
        let most = self.script.copies.most_restores.load(Ordering::SeqCst);
        if most > 0 && self.copies.restoring.len() as u64 >= most {
            return Ok(false);
        }
        self.copies.restoring.push_back((number, pool, index, content.clone()));
        Ok(true)
    }

    /// The content is there only from now on.
    pub(super) fn end_restore(&mut self, wait: bool) -> Result<Option<u64>> {
        if self.script.copies.is_lost.load(Ordering::SeqCst) && !self.copies.restoring.is_empty() {
            return Err(Error::EngineDead { reason: "the device was lost".into() });
        }
        self.copies.arrives = !self.copies.arrives;
        let is_held = self.script.copies.holds_restores.load(Ordering::SeqCst) || !self.copies.arrives;
        if is_held && !wait {
            return Ok(None);
        }
        let Some((number, pool, index, content)) = self.copies.restoring.pop_front() else { return Ok(None) };
        match pool {
            0 => into_block(&mut self.slots, index, self.block_size, &content),
            _ => drop(self.states.insert(index, into_state(&content))),
        }
        Ok(Some(number))
    }
}

fn words(content: &[u8]) -> impl Iterator<Item = u32> {
    content.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

fn of_block(slots: &HashMap<u32, (u32, u32)>, block: u32, block_size: usize) -> Vec<u8> {
    let slots = (0..block_size as u32).map(|offset| slots[&(block * block_size as u32 + offset)]);
    slots.flat_map(|(token, position)| [token, position].map(u32::to_le_bytes)).flatten().collect()
}

fn into_block(slots: &mut HashMap<u32, (u32, u32)>, block: u32, block_size: usize, content: &[u8]) {
    let words: Vec<u32> = words(content).collect();
    assert_eq!(words.len(), 2 * block_size);
    for (offset, entry) in (0..).zip(words.chunks(2)) {
        slots.insert(block * block_size as u32 + offset, (entry[0], entry[1]));
    }
}

fn of_state(tokens: &[u32]) -> Vec<u8> {
    let mut content: Vec<u8> =
        [&[tokens.len() as u32], tokens].concat().into_iter().flat_map(u32::to_le_bytes).collect();
    assert!(content.len() <= STATE_BYTES, "a state of {} tokens", tokens.len());
    content.resize(STATE_BYTES, 0);
    content
}

fn into_state(content: &[u8]) -> Vec<u32> {
    let words: Vec<u32> = words(content).collect();
    words[1..=words[0] as usize].to_vec()
}
