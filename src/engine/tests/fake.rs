//! An executor without a model. It keeps what is "computed" in slots of its own, as a device keeps K and V, and reads a
//! sequence back through its block table only: a wrong slot, a block reused too early or a copy left out changes the
//! tokens or trips an assertion. Recurrent states are the tokens that went into them.

mod rows;
mod rules;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::backend::MemoryLedger;
use crate::batch::{Batch, NO_STATE, TO_GUESS};
use crate::engine::Executor;
use crate::interrupt::Interrupt;
use crate::selection::{Needs, Selection, Wanted, Wish};
use crate::{Error, Result};

use rows::{Best, FakeRow, FakeRows, OwnWish};
pub(super) use rules::{Rule, hashed, listed, repeating};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Error,
    Panic,
    Dead,
    WrongShape,
    /// Computes until it is interrupted, and would never end otherwise.
    UntilInterrupted,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    /// Steps that have come to the gate, and gone through.
    arrived: u64,
    passed: u64,
    /// Steps that may go through all the same.
    permits: u64,
}

/// State that a test shares with its executor.
#[derive(Default)]
pub(super) struct Script {
    /// Computes as a CPU does, not on its own as a GPU does.
    pub synchronous: AtomicBool,
    gate: Mutex<Gate>,
    moved: Condvar,
    /// Faults by the number of their step, from 0.
    faults: Mutex<HashMap<u64, Fault>>,
    /// Every step whose number divides by this fails, and so do as many steps of guesses; 0 = none.
    pub fail_every: AtomicU64,
    /// Steps for which tokens were guessed.
    pub drafts: AtomicU64,
    /// Tokens that were computed first for that, or to catch up.
    pub drafted: AtomicU64,
    pub steps: AtomicU64,
    /// Steps that were launched before the one before them was collected.
    pub fed: AtomicU64,
    pub dropped: AtomicBool,
    pub tokens_computed: AtomicU64,
    /// Microseconds that each step takes besides, so that more rows take hardly more time.
    pub step_micros: AtomicU64,
    /// Microseconds that each row takes of those beyond `free_rows`.
    pub row_micros: AtomicU64,
    pub free_rows: AtomicU64,
    /// Gives what is wanted of a row, and no more.
    pub selects: AtomicBool,
    /// Whole rows that were wanted.
    pub rows_wanted: AtomicU64,
    /// The fault that happens when a row is fetched.
    pub fetch_fault: Mutex<Option<Fault>>,
    /// One in this many guesses of the model is wrong; 0: none is.
    pub wrong_guesses: AtomicU64,
    pub interrupt: Interrupt,
}

impl Script {
    pub(super) fn fault(&self, step: u64, fault: Fault) {
        self.faults.lock().insert(step, fault);
    }

    /// Makes steps wait from now on before they compute.
    pub(super) fn close_gate(&self) {
        let mut gate = self.gate.lock();
        gate.closed = true;
        gate.permits = 0;
    }

    pub(super) fn open_gate(&self) {
        self.gate.lock().closed = false;
        self.moved.notify_all();
    }

    /// Lets one step through the closed gate.
    pub(super) fn let_one_pass(&self) {
        self.gate.lock().permits += 1;
        self.moved.notify_all();
    }

    /// Waits until a step stands before the closed gate.
    pub(super) fn wait_at_gate(&self) {
        let mut gate = self.gate.lock();
        while gate.arrived == gate.passed + gate.permits {
            self.moved.wait(&mut gate);
        }
    }

    fn pass_gate(&self) {
        let mut gate = self.gate.lock();
        gate.arrived += 1;
        self.moved.notify_all();
        while gate.closed && gate.permits == 0 {
            self.moved.wait(&mut gate);
        }
        gate.permits = gate.permits.saturating_sub(1);
        gate.passed += 1;
    }

    fn fault_of(&self, step: u64) -> Option<Fault> {
        let every = self.fail_every.load(Ordering::SeqCst);
        if every > 0 && step % every == every - 1 {
            return Some(if step % (2 * every) < every { Fault::Error } else { Fault::Panic });
        }
        self.faults.lock().get(&step).copied()
    }
}

pub(super) struct Fake {
    pub script: Arc<Script>,
    pub rule: Rule,
    pub vocab_size: usize,
    pub block_size: usize,
    /// Whether the model that guesses is none of the steps', and has keys and values of its own.
    draft_lags: bool,
    /// (token, position) in each slot; as the model has it, and as a model does that guesses and lags.
    slots: HashMap<u32, (u32, u32)>,
    draft_slots: HashMap<u32, (u32, u32)>,
    /// The tokens before each state, by slot.
    states: HashMap<u32, Vec<u32>>,
    /// The steps that were launched: the number of each, the step, and what is wanted of its rows.
    launched: VecDeque<(u64, Batch, Option<Vec<OwnWish>>)>,
    values: Vec<f32>,
    /// The tokens that the last step chose, where that was all that was wanted of its rows.
    chosen: Option<Vec<u32>>,
}

impl Fake {
    pub(super) fn new(script: Arc<Script>, rule: Rule, vocab_size: usize, block_size: usize, draft_lags: bool) -> Self {
        let (slots, draft_slots, states) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (launched, values, chosen) = (VecDeque::new(), Vec::new(), None);
        Self { script, rule, vocab_size, block_size, draft_lags, slots, draft_slots, states, launched, values, chosen }
    }

    fn copy_blocks(&mut self, batch: &Batch) {
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

    /// The first `len` tokens of sequence `seq`, read through its block table.
    fn content(&self, batch: &Batch, seq: usize, len: usize) -> Vec<u32> {
        self.content_of(&self.slots, batch, seq, len)
    }

    fn content_of(&self, slots: &HashMap<u32, (u32, u32)>, batch: &Batch, seq: usize, len: usize) -> Vec<u32> {
        let table = batch.block_table(0, seq);
        (0..len)
            .map(|position| {
                let slot = table[position / self.block_size] * self.block_size as u32;
                let slot = slot + (position % self.block_size) as u32;
                let (token, at) = slots.get(&slot).copied().expect("a slot that nothing was written to");
                assert_eq!(at as usize, position, "slot {slot} holds another position");
                token
            })
            .collect()
    }

    /// Computes what was launched; then faults, if it is this step's turn.
    fn compute(&mut self, step: u64, batch: &Batch) -> Result<()> {
        self.script.pass_gate();
        let dear_rows = (batch.num_tokens() as u64).saturating_sub(self.script.free_rows.load(Ordering::SeqCst));
        let micros = self.script.step_micros.load(Ordering::SeqCst);
        let micros = micros + dear_rows * self.script.row_micros.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(micros));
        self.script.tokens_computed.fetch_add(batch.num_tokens() as u64, Ordering::SeqCst);
        self.copy_blocks(batch);
        let slots = &batch.groups[0].slot_mapping;
        let distinct: HashSet<_> = slots.iter().collect();
        assert_eq!(distinct.len(), batch.num_tokens(), "two tokens were given one slot");
        for ((&slot, &token), &position) in slots.iter().zip(&batch.token_ids).zip(&batch.positions) {
            self.slots.insert(slot, (token, position));
        }
        let begun = self.begin_states(batch);
        self.fault(step)?;
        self.values.clear();
        for seq in 0..batch.num_seqs() {
            let tokens = batch.tokens_of(seq);
            let content = self.content(batch, seq, batch.context_lens[seq] as usize);
            if let Some(before) = begun.get(seq) {
                let read = [before, &batch.token_ids[tokens.clone()]].concat();
                assert_eq!(read, content, "sequence {seq} began with another state");
                self.keep_states(batch, seq, before.len(), &content);
            }
            for row in tokens.clone().filter(|i| batch.logits_indices.contains(&(*i as u32))) {
                let len = batch.positions[row] as usize + 1;
                self.values.extend((self.rule)(&content[..len]));
            }
        }
        Ok(())
    }

    /// The state that each sequence begins with, if the model has any. What the step writes is lost from then on.
    fn begin_states(&mut self, batch: &Batch) -> Vec<Vec<u32>> {
        let read = |slot: &u32| if *slot == NO_STATE { Vec::new() } else { self.states[slot].clone() };
        let begun = batch.states.reads.iter().map(read).collect();
        batch.states.writes.iter().for_each(|write| drop(self.states.insert(write.slot, vec![u32::MAX])));
        begun
    }

    /// Keeps the states of a sequence that began after `start` tokens.
    fn keep_states(&mut self, batch: &Batch, seq: usize, start: usize, content: &[u32]) {
        let states = &batch.states;
        for write in &states.writes[states.cu_writes[seq] as usize..states.cu_writes[seq + 1] as usize] {
            self.states.insert(write.slot, content[..start + write.num_tokens as usize].to_vec());
        }
    }

    fn fault(&self, step: u64) -> Result<()> {
        match self.script.fault_of(step) {
            Some(Fault::Error) => Err(Error::Device { device: "fake".into(), problem: "scripted".into() }),
            Some(Fault::Panic) => std::panic::resume_unwind(Box::new("scripted panic")),
            Some(Fault::Dead) => Err(Error::EngineDead { reason: "scripted loss of the device".into() }),
            Some(Fault::UntilInterrupted) => loop {
                self.script.interrupt.check()?;
                std::thread::yield_now();
            },
            Some(Fault::WrongShape) | None => Ok(()),
        }
    }
}

impl Executor for Fake {
    fn interrupt(&self) -> Option<Interrupt> {
        Some(self.script.interrupt.clone())
    }

    fn draft_lags(&self) -> bool {
        self.draft_lags
    }

    /// Guesses the best token, but for those that are to be wrong: the one after it. A model that lags has what it was
    /// given alone, and that has to be the model's.
    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()> {
        assert!(self.launched.is_empty(), "guesses for a step while another one is under way");
        let call = self.script.drafts.fetch_add(1, Ordering::SeqCst);
        if self.script.fail_every.load(Ordering::SeqCst) > 0 {
            self.fault(call)?;
        }
        self.copy_blocks(batch);
        self.script.drafted.fetch_add(first.num_tokens() as u64, Ordering::SeqCst);
        for (row, &slot) in first.groups[0].slot_mapping.iter().enumerate() {
            self.draft_slots.insert(slot, (first.token_ids[row], first.positions[row]));
        }
        for seq in (0..first.num_seqs()).filter(|_| self.draft_lags) {
            let len = first.context_lens[seq] as usize;
            let drafted = self.content_of(&self.draft_slots, first, seq, len);
            let is_guessed = first.logits_indices.contains(&(first.tokens_of(seq).end as u32 - 1));
            let computed = len - usize::from(is_guessed);
            assert_eq!(drafted[..computed], self.content(first, seq, computed), "another text than the model's");
        }
        let wrong = self.script.wrong_guesses.load(Ordering::SeqCst);
        for seq in 0..batch.num_seqs() {
            let tokens = batch.tokens_of(seq);
            if batch.token_ids[tokens.end - 1] != TO_GUESS {
                continue;
            }
            let start = batch.positions[tokens.start] as usize;
            let mut content = self.content(batch, seq, start);
            let table = batch.block_table(0, seq);
            let is_first = |part: &usize| {
                let own = first.block_table(0, *part);
                first.positions[first.tokens_of(*part).end - 1] as usize == start && table.starts_with(own)
            };
            let part = (0..first.num_seqs()).find(is_first).expect("the token before the guesses is computed first");
            assert!(first.logits_indices.contains(&(first.tokens_of(part).end as u32 - 1)));
            if self.draft_lags {
                assert_eq!(content, self.content_of(&self.draft_slots, batch, seq, start));
            }
            if let Some(&slot) = batch.states.reads.get(seq) {
                assert_eq!(self.states[&slot], content, "guesses of sequence {seq} began with another state");
            }
            let end = tokens.end;
            for index in tokens {
                if batch.token_ids[index] == TO_GUESS {
                    let best = Best::new(&(self.rule)(&content), 1).ids[0];
                    let is_wrong = wrong > 0 && (content.len() as u64 + u64::from(best)).is_multiple_of(wrong);
                    batch.token_ids[index] = (best + u32::from(is_wrong)) % self.vocab_size as u32;
                }
                // The last guess is computed by nobody but the step.
                if index + 1 < end {
                    let entry = (batch.token_ids[index], batch.positions[index]);
                    self.draft_slots.insert(batch.groups[0].slot_mapping[index], entry);
                }
                content.push(batch.token_ids[index]);
            }
        }
        Ok(())
    }

    fn launch(&mut self, batch: &Batch, _needs: Needs) -> Result<()> {
        match self.launched.back() {
            None => assert!(batch.chosen.is_empty(), "tokens that no step chooses"),
            Some((_, _, wishes)) => {
                assert_eq!(self.launched.len(), 1, "a third step was launched before the first one was collected");
                let wishes = wishes.as_ref().expect("rows that were selected before the next step was launched");
                assert!(wishes.iter().all(OwnWish::is_argmax), "a row that would be overwritten before it is read");
                self.script.fed.fetch_add(1, Ordering::SeqCst);
            }
        }
        let step = self.script.steps.fetch_add(1, Ordering::SeqCst);
        // Every other step fails when it is launched, the rest when it is waited for.
        if step % 2 == 1 {
            self.fault(step)?;
        }
        self.launched.push_back((step, batch.clone(), None));
        Ok(())
    }

    fn select(&mut self, wishes: &[Wish<'_>]) -> Result<()> {
        let (_, batch, selected) = self.launched.back_mut().expect("a step that was launched");
        assert_eq!(wishes.len(), batch.logits_indices.len());
        assert!(selected.is_none(), "the rows of a step were selected twice");
        *selected = Some(wishes.iter().map(OwnWish::of).collect());
        Ok(())
    }

    fn collect(&mut self) -> Result<Selection<'_>> {
        let (step, mut batch, wishes) = self.launched.pop_front().expect("a step that was launched");
        let wishes = wishes.expect("rows that were selected");
        // A step that was launched behind one that fails is lost with it.
        let behind = std::mem::take(&mut self.launched);
        for chosen in &batch.chosen {
            let tokens = self.chosen.as_ref().expect("tokens that the step before chose");
            batch.token_ids[chosen.index as usize] = tokens[chosen.row as usize];
        }
        self.compute(step, &batch)?;
        let best = |row: &[f32]| Best::new(row, 1).ids[0];
        let chooses = wishes.iter().all(OwnWish::is_argmax);
        self.chosen = chooses.then(|| self.values.chunks(self.vocab_size).map(best).collect());
        if self.script.fault_of(step) == Some(Fault::WrongShape) {
            return Ok(Selection::of_rows(&[1.0], self.vocab_size));
        }
        self.launched = behind;
        if !self.script.selects.load(Ordering::SeqCst) {
            let rows = Selection::of_rows(&self.values, self.vocab_size);
            return Ok(rows.with_hidden(&self.values, self.vocab_size));
        }
        let whole = wishes.iter().filter(|wish| wish.wanted == Wanted::Row).count();
        self.script.rows_wanted.fetch_add(whole as u64, Ordering::SeqCst);
        let rows = self.values.chunks(self.vocab_size).zip(&wishes).map(|(row, wish)| FakeRow::new(row, wish));
        let rows = FakeRows { rows: rows.collect(), script: &self.script };
        let rows = Selection::on_device(Box::new(rows), wishes.len(), self.vocab_size);
        Ok(rows.with_hidden(&self.values, self.vocab_size))
    }

    fn is_asynchronous(&self) -> bool {
        !self.script.synchronous.load(Ordering::SeqCst)
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn memory(&self) -> MemoryLedger {
        MemoryLedger { weights: 1000, kv_cache: 500, scratch: 30, other: 4 }
    }

    fn device_allocations(&self) -> u64 {
        7
    }

    fn describe(&self) -> String {
        "fake device".into()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.script.dropped.store(true, Ordering::SeqCst);
    }
}
