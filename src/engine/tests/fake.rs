//! An executor without a model. It stores "computed" tokens in its own slots, as a device stores keys and values, and
//! reads a sequence only through its block table. So a wrong slot, a block that is reused too early or a missing copy
//! changes the tokens or fails an assertion. Recurrent states are the tokens that went into them.

mod copies;
mod rows;
mod rules;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Executor;
use crate::backend::{Content, Copied, MemoryLedger};
use crate::batch::{Batch, NO_STATE, TO_DRAFT};
use crate::interrupt::Interrupt;
use crate::model::vision::Images;
use crate::selection::{Needs, SamplingRequest, Selection, Wanted};
use crate::{Error, Result};

use copies::{Copies, CopyScript};
use rows::{Best, FakeRow, FakeRows, OwnRequest};
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
    /// Steps that have reached the gate, and that have passed it.
    arrived: u64,
    passed: u64,
    /// Steps that may pass the closed gate.
    permits: u64,
}

/// The state that a test shares with its executor.
#[derive(Default)]
pub(super) struct Script {
    /// Computes synchronously, as a CPU does.
    pub synchronous: AtomicBool,
    gate: Mutex<Gate>,
    moved: Condvar,
    /// Faults by step number, from 0.
    faults: Mutex<HashMap<u64, Fault>>,
    /// Every step whose number is a multiple of this fails, and so do as many drafting calls; 0 = none.
    pub fail_every: AtomicU64,
    /// The number of steps for which tokens were drafted.
    pub drafts: AtomicU64,
    /// Tokens that were computed for drafting or catching up.
    pub drafted: AtomicU64,
    pub steps: AtomicU64,
    /// Steps that were launched before the previous one was collected.
    pub fed: AtomicU64,
    pub dropped: AtomicBool,
    pub tokens_computed: AtomicU64,
    /// Microseconds that each step takes in addition, so that further rows hardly matter.
    pub step_micros: AtomicU64,
    /// Microseconds for each row beyond `free_rows`.
    pub row_micros: AtomicU64,
    pub free_rows: AtomicU64,
    /// Returns exactly the requested part of a row.
    pub selects: AtomicBool,
    /// The number of rows that are selected at once; 0: all of a step.
    pub rows_at_once: AtomicU64,
    /// The number of pieces of rows after the first ones of their steps.
    pub pieces: AtomicU64,
    /// The number of the piece before which its step is interrupted, from 1; 0: none.
    pub stopped_piece: AtomicU64,
    /// The number of whole rows that were requested.
    pub rows_wanted: AtomicU64,
    /// The fault that happens when a row is fetched.
    pub fetch_fault: Mutex<Option<Fault>>,
    /// One in this many model-made draft tokens is wrong; 0: none is.
    pub wrong_drafts: AtomicU64,
    /// True if the executor has slots of states.
    pub has_states: AtomicBool,
    pub copies: CopyScript,
    pub interrupt: Interrupt,
}

impl Script {
    pub(super) fn fault(&self, step: u64, fault: Fault) {
        self.faults.lock().insert(step, fault);
    }

    /// Makes later steps wait before they compute.
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

    /// Waits until a step is at the closed gate.
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
    /// True if the drafting model is a separate one with its own keys and values.
    draft_lags: bool,
    /// (token, position) in each slot: of the model, and of a drafting model that lags.
    slots: HashMap<u32, (u32, u32)>,
    draft_slots: HashMap<u32, (u32, u32)>,
    /// The tokens before each state, by slot.
    states: HashMap<u32, Vec<u32>>,
    /// Steps that were launched and whose rows are not all collected.
    launched: VecDeque<Running>,
    /// The rows of the last computed step.
    values: Vec<f32>,
    /// The tokens that the last step picked, if nothing else of its rows was requested.
    chosen: Option<Vec<u32>>,
    copies: Copies,
}

/// A step that was launched.
struct Running {
    number: u64,
    batch: Batch,
    /// The rows that were selected last, and the request for each.
    selected: Option<(Range<usize>, Vec<OwnRequest>)>,
    is_computed: bool,
}

impl Fake {
    pub(super) fn new(script: Arc<Script>, rule: Rule, vocab_size: usize, block_size: usize, draft_lags: bool) -> Self {
        let (slots, draft_slots, states) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (launched, values, chosen, copies) = (VecDeque::new(), Vec::new(), None, Copies::default());
        Self {
            script,
            rule,
            vocab_size,
            block_size,
            draft_lags,
            slots,
            draft_slots,
            states,
            launched,
            values,
            chosen,
            copies,
        }
    }

    /// Returns the first `len` tokens of sequence `seq`, read through its block table.
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

    /// Computes a launched step, then triggers its fault, if any.
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

    /// Returns each sequence's first state, if the model has states. States that the step writes are lost from then on.
    fn begin_states(&mut self, batch: &Batch) -> Vec<Vec<u32>> {
        let read = |slot: &u32| if *slot == NO_STATE { Vec::new() } else { self.states[slot].clone() };
        let begun = batch.states.reads.iter().map(read).collect();
        batch.states.writes.iter().for_each(|write| drop(self.states.insert(write.slot, vec![u32::MAX])));
        begun
    }

    /// Saves the states of a sequence that began after `start` tokens.
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

    /// Drafts the best token, or the next one where the draft should be wrong. A model that lags only has the tokens
    /// that it was given, which must equal the model's.
    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()> {
        assert!(self.launched.is_empty(), "drafts for a step while another one is under way");
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
            let is_drafted = first.logits_indices.contains(&(first.tokens_of(seq).end as u32 - 1));
            let computed = len - usize::from(is_drafted);
            assert_eq!(drafted[..computed], self.content(first, seq, computed), "another text than the model's");
        }
        let wrong = self.script.wrong_drafts.load(Ordering::SeqCst);
        for seq in 0..batch.num_seqs() {
            let tokens = batch.tokens_of(seq);
            if batch.token_ids[tokens.end - 1] != TO_DRAFT {
                continue;
            }
            let start = batch.positions[tokens.start] as usize;
            let mut content = self.content(batch, seq, start);
            let table = batch.block_table(0, seq);
            let is_first = |part: &usize| {
                let own = first.block_table(0, *part);
                first.positions[first.tokens_of(*part).end - 1] as usize == start && table.starts_with(own)
            };
            let part =
                (0..first.num_seqs()).find(is_first).expect("the token before the draft tokens is computed first");
            assert!(first.logits_indices.contains(&(first.tokens_of(part).end as u32 - 1)));
            if self.draft_lags {
                assert_eq!(content, self.content_of(&self.draft_slots, batch, seq, start));
            }
            if let Some(&slot) = batch.states.reads.get(seq) {
                assert_eq!(self.states[&slot], content, "draft tokens of sequence {seq} began with another state");
            }
            let end = tokens.end;
            for index in tokens {
                if batch.token_ids[index] == TO_DRAFT {
                    let best = Best::new(&(self.rule)(&content), 1).ids[0];
                    let is_wrong = wrong > 0 && (content.len() as u64 + u64::from(best)).is_multiple_of(wrong);
                    batch.token_ids[index] = (best + u32::from(is_wrong)) % self.vocab_size as u32;
                }
                // Only the step computes the last draft token.
                if index + 1 < end {
                    let entry = (batch.token_ids[index], batch.positions[index]);
                    self.draft_slots.insert(batch.groups[0].slot_mapping[index], entry);
                }
                content.push(batch.token_ids[index]);
            }
        }
        Ok(())
    }

    fn launch(&mut self, batch: &Batch, _: &Images, _needs: Needs) -> Result<()> {
        match self.launched.back() {
            None => assert!(batch.chosen.is_empty(), "tokens that no step chooses"),
            Some(Running { batch, selected, .. }) => {
                assert_eq!(self.launched.len(), 1, "a third step was launched before the first one was collected");
                let selected = selected.as_ref();
                let (rows, sampling_requests) =
                    selected.expect("rows that were selected before the next step was launched");
                assert_eq!(*rows, 0..batch.logits_indices.len(), "a piece that would be overwritten");
                assert!(
                    sampling_requests.iter().all(OwnRequest::is_argmax),
                    "a row that would be overwritten before it is read"
                );
                self.script.fed.fetch_add(1, Ordering::SeqCst);
            }
        }
        let step = self.script.steps.fetch_add(1, Ordering::SeqCst);
        // Every other step fails when it is launched, the rest when they are awaited.
        if step % 2 == 1 {
            self.fault(step)?;
        }
        self.launched.push_back(Running { number: step, batch: batch.clone(), selected: None, is_computed: false });
        Ok(())
    }

    fn rows_at_once(&self) -> usize {
        match self.script.rows_at_once.load(Ordering::SeqCst) {
            0 => usize::MAX,
            rows => rows as usize,
        }
    }

    fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()> {
        let most = self.rows_at_once();
        let Running { batch, selected, is_computed, .. } = self.launched.back_mut().expect("a step that was launched");
        let num_rows = batch.logits_indices.len();
        assert_eq!(
            (sampling_requests.len(), rows.start),
            (rows.len(), selected.as_ref().map_or(0, |(before, _)| before.end))
        );
        assert!(rows.end <= num_rows && rows.len() <= most, "{rows:?} of {num_rows}");
        assert!(selected.is_none() || !rows.is_empty(), "the rows of a step were selected twice");
        if selected.is_some() {
            assert!(*is_computed, "a piece before the one before it was collected");
            let piece = 1 + self.script.pieces.fetch_add(1, Ordering::SeqCst);
            if piece == self.script.stopped_piece.load(Ordering::SeqCst) {
                self.launched.clear();
                return Err(Error::Interrupted);
            }
        }
        *selected = Some((rows, sampling_requests.iter().map(OwnRequest::of).collect()));
        Ok(())
    }

    fn collect(&mut self) -> Result<Selection<'_>> {
        let Running { number, mut batch, selected, is_computed } =
            self.launched.pop_front().expect("a step that was launched");
        let (rows, sampling_requests) = selected.expect("rows that were selected");
        // A step that was launched after a failing one is lost with it.
        let mut behind = std::mem::take(&mut self.launched);
        for chosen in &batch.chosen {
            let tokens = self.chosen.as_ref().expect("tokens that the step before chose");
            batch.token_ids[chosen.index as usize] = tokens[chosen.row as usize];
        }
        if !is_computed {
            self.compute(number, &batch)?;
        }
        let best = |row: &[f32]| Best::new(row, 1).ids[0];
        let chooses = sampling_requests.iter().all(OwnRequest::is_argmax);
        self.chosen = chooses.then(|| self.values.chunks(self.vocab_size).map(best).collect());
        if self.script.fault_of(number) == Some(Fault::WrongShape) {
            return Ok(Selection::of_rows(&[1.0], self.vocab_size));
        }
        if rows.end < batch.logits_indices.len() {
            let selected = Some((rows.clone(), Vec::new()));
            behind.push_front(Running { number, batch, selected, is_computed: true });
        }
        self.launched = behind;
        let values = &self.values[rows.start * self.vocab_size..rows.end * self.vocab_size];
        if !self.script.selects.load(Ordering::SeqCst) {
            let rows = Selection::of_rows(values, self.vocab_size);
            return Ok(rows.with_hidden(values, self.vocab_size));
        }
        let whole = sampling_requests.iter().filter(|request| request.wanted == Wanted::Row).count();
        self.script.rows_wanted.fetch_add(whole as u64, Ordering::SeqCst);
        let rows =
            values.chunks(self.vocab_size).zip(&sampling_requests).map(|(row, request)| FakeRow::new(row, request));
        let rows = FakeRows { rows: rows.collect(), script: &self.script };
        let rows = Selection::on_device(Box::new(rows), sampling_requests.len(), self.vocab_size);
        Ok(rows.with_hidden(values, self.vocab_size))
    }

    fn content_bytes(&self) -> Vec<u64> {
        self.copies.content_bytes(self.block_size, self.script.has_states.load(Ordering::SeqCst))
    }

    fn prepare_copies(&mut self, staged: &[usize]) -> Result<()> {
        self.script.copies.staged.store(staged[0] as u64, Ordering::SeqCst);
        Ok(())
    }

    fn save(&mut self, number: u64, pool: usize, index: u32) -> Result<bool> {
        self.begin_copy(number, pool, index)
    }

    fn saved(&mut self, _wait: bool) -> Result<Option<Copied>> {
        Ok(self.copies.end())
    }

    fn restore(&mut self, number: u64, pool: usize, index: u32, content: &Content) -> Result<bool> {
        self.begin_restore(number, pool, index, content)
    }

    fn restored(&mut self, wait: bool) -> Result<Option<u64>> {
        self.end_restore(wait)
    }

    fn order_copies(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_asynchronous(&self) -> bool {
        !self.script.synchronous.load(Ordering::SeqCst)
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn memory(&self) -> MemoryLedger {
        MemoryLedger { weights: 1000, kv_cache: 500, scratch: 30, other: 4, host_weights: 7, kv_offload: 0 }
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
