//! The integers of a step: a page-locked buffer, which the step's first kernel copies to the device. Two buffers
//! alternate, so one is written while the step of the other runs. A captured step is padded to its size, so each array
//! has the same place in every replay. The block tables come last, since their length varies.

pub(crate) mod checks;
mod segments;
mod states;

use std::ops::Range;

use super::buffer::count;
use super::launch::args::{CHOSEN_TOKEN, COPY_STEP_BLOCKS, COPY_STEP_HEADER, COPY_STEP_LINE, CopyStepArgs, NO_SLOT};
use super::tuning::Tuning;
use super::{Device, DeviceBuffer, DeviceSlice, Event, Function, MappedBuffer, Stream};
use crate::backend::StepLimits;
use crate::backend::check_batch::validate_batch;
use crate::batch::Batch;
use crate::images::Sight;
use crate::{Error, Result};
use checks::Check;
use segments::{Segment, Tile};

/// Bytes before the words that `copy_step` copies: one line per block of the kernel.
pub(super) const COPY_HEADER: usize = 8 * COPY_STEP_HEADER as usize;

/// Lengths of the arrays of a step.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    tokens: usize,
    seqs: usize,
    /// Segments, which are the sequences of attention.
    segments: usize,
    prefill_items: usize,
    logits_rows: usize,
    groups: usize,
    copies: usize,
    /// States that are kept; `None` for a model without states.
    state_writes: Option<usize>,
    table_entries: usize,
}

impl Sizes {
    /// Returns the sizes of the largest step.
    fn largest(limits: &StepLimits) -> Self {
        let StepLimits { tokens, seqs, logits_rows, groups, .. } = *limits;
        // An image has a segment of its own.
        let (segments, prefill_items) = (tokens, tokens);
        let (copies, table_entries) = (limits.copies(), limits.table_entries());
        let state_writes = limits.has_states().then(|| limits.state_writes.max(states::of_single_rows(seqs)));
        Self { tokens, seqs, segments, prefill_items, logits_rows, groups, copies, state_writes, table_entries }
    }
}

/// Words of a cache line: each array and each line of the header starts at one.
const LINE: usize = 2 * COPY_STEP_LINE as usize;

/// Start of each array, in words.
#[derive(Debug, Clone, Copy)]
struct Layout {
    token_ids: usize,
    /// Token ids, including the padding of a captured step.
    num_token_ids: usize,
    positions: usize,
    /// Slots of the first group; each next group's begin `slots_of_group` words later.
    slots: usize,
    slots_of_group: usize,
    q_start: usize,
    context_lens: usize,
    /// Block starts of the first group; each next group's begin `block_start_of_group` words later. They count from the
    /// start of all groups' tables, which follow each other.
    block_start: usize,
    block_start_of_group: usize,
    decode_items: usize,
    prefill_items: usize,
    logits_indices: usize,
    copies: usize,
    /// The sequence of each row, with the sequences and first rows of the batch, which are not those of segments.
    state_sequences: usize,
    state_starts: usize,
    state_reads: usize,
    state_write_starts: usize,
    state_writes: usize,
    tables: usize,
    end: usize,
}

impl Layout {
    fn new(sizes: Sizes) -> Self {
        let mut at = 0;
        let mut take = |words: usize| {
            let start = at;
            at += words.next_multiple_of(LINE);
            start
        };
        let Sizes { tokens, seqs, segments, prefill_items, logits_rows, groups, copies, state_writes, table_entries } =
            sizes;
        let for_states = |words: usize| if state_writes.is_some() { words } else { 0 };
        let slots_of_group = tokens.next_multiple_of(LINE);
        let block_start_of_group = segments.next_multiple_of(LINE);
        Self {
            token_ids: take(tokens),
            num_token_ids: tokens,
            positions: take(tokens),
            slots: take(groups * slots_of_group),
            slots_of_group,
            q_start: take(segments + 1),
            context_lens: take(segments),
            block_start: take(groups * block_start_of_group),
            block_start_of_group,
            decode_items: take(segments),
            prefill_items: take(2 * prefill_items),
            logits_indices: take(logits_rows),
            copies: take(2 * copies),
            state_sequences: take(for_states(tokens)),
            state_starts: take(for_states(seqs + 1)),
            state_reads: take(for_states(seqs)),
            state_write_starts: take(for_states(seqs + 1)),
            state_writes: take(2 * state_writes.unwrap_or(0)),
            tables: take(table_entries),
            end: take(0),
        }
    }
}

/// The integers that the device got last, and their places on it.
pub struct StepInputs {
    limits: StepLimits,
    /// Layout of the step that was begun last.
    layout: Layout,
    tuning: Tuning,
    device: DeviceBuffer,
    turns: [Turn; TURNS],
    /// The turn of the step that was begun last.
    turn: usize,
    shape: StepShape,
    segments: Vec<Segment>,
    tiles: Vec<Tile>,
    /// For each group of the batch, the range of its copies among the step's.
    copies: Vec<Range<usize>>,
    /// Checks that the batch has passed.
    checked: Vec<Check>,
}

/// Steps whose integers the host holds: one that runs, and one queued after it.
pub(super) const TURNS: usize = 2;

struct Turn {
    host: MappedBuffer,
    /// Recorded after the last copy, or after the graph that contains it. Once it has passed, the host's buffer may be
    /// written again.
    copied: Event,
}

/// Sizes of the step that was begun last.
#[derive(Debug, Clone, Default)]
pub struct StepShape {
    pub tokens: usize,
    /// Segments for the decode kernel, without padding.
    pub decode_items: usize,
    /// Tiles of the others, for the prefill kernel: those of text, then those of images whose tokens attend to each
    /// other.
    pub text_tiles: usize,
    pub image_tiles: usize,
    pub sight: Sight,
    /// The most splits of a context, among sequences with one row.
    pub context_splits: u32,
    /// The longest context among the others, in tokens.
    pub prefill_context: u32,
    /// Every sequence has one row and needs its logits, and no block is copied: the step may be captured.
    pub pure_decode: bool,
}

/// Writes words into a page-locked buffer.
struct Words<'a>(&'a mut [[u8; 4]]);

impl Words<'_> {
    fn put(&mut self, at: usize, values: impl IntoIterator<Item = u32>) {
        for (word, value) in self.0[at..].iter_mut().zip(values) {
            *word = value.to_ne_bytes();
        }
    }
}

/// Tells `copy_step` the number of words, which it copies in pairs; returns their memory.
pub(super) fn counted(host: &mut [u8], words: usize) -> &mut [[u8; 4]] {
    let (header, places) = host.as_chunks_mut().0.split_at_mut(COPY_HEADER / 4);
    for line in header.chunks_exact_mut(LINE) {
        line[0] = (words.div_ceil(2) as u32).to_ne_bytes();
    }
    places
}

/// The token ids at the start of a step's words, and the memory of the tokens chosen by the step before.
pub(super) struct TokenIds<'a> {
    pub count: usize,
    pub chosen: DeviceSlice<'a>,
}

/// Queues `copy_step`.
///
/// # Safety
/// `from` is a `MappedBuffer`: a header (`COPY_HEADER`), then the words. It does not change before the stream has
/// passed the copy. `out` has room for all of them, and `least` is at most their number. Marked token ids
/// (`CHOSEN_TOKEN`) name words of `chosen`, which hold tokens when the stream reaches the copy.
pub(super) unsafe fn launch_copy(
    stream: &Stream,
    copy_step: &Function,
    from: DeviceSlice<'_>,
    out: DeviceSlice<'_>,
    least: usize,
    token_ids: TokenIds<'_>,
) -> Result<()> {
    let TokenIds { count: num_ids, chosen } = token_ids;
    let (least, token_ids) = (count(least / 2)?, count(num_ids)?);
    let args = CopyStepArgs { from: from.ptr(), out: out.ptr(), chosen: chosen.ptr(), least, token_ids };
    // SAFETY: the caller's promise.
    unsafe { stream.launch_apart(copy_step, [COPY_STEP_BLOCKS, 1, 1], &args) }
}

impl StepInputs {
    pub fn new(device: &Device, limits: StepLimits, tuning: Tuning) -> Result<Self> {
        let layout = Layout::new(Sizes::largest(&limits));
        let bytes = 4 * layout.end;
        let host = || MappedBuffer::new(device, COPY_HEADER + bytes);
        let turn = || -> Result<Turn> { Ok(Turn { host: host()?, copied: Event::new(device)? }) };
        Ok(Self {
            limits,
            layout,
            tuning,
            device: DeviceBuffer::new(device, bytes as u64)?,
            turns: [turn()?, turn()?],
            turn: 0,
            shape: StepShape::default(),
            segments: Vec::new(),
            tiles: Vec::new(),
            copies: Vec::new(),
            checked: Vec::new(),
        })
    }

    /// Returns the bytes held on the device.
    pub fn device_bytes(&self) -> u64 {
        self.device.bytes()
    }

    /// Returns the sizes of the step that was begun last.
    pub fn shape(&self) -> &StepShape {
        &self.shape
    }

    pub fn limits(&self) -> &StepLimits {
        &self.limits
    }

    pub fn turn(&self) -> usize {
        self.turn
    }

    /// Returns the size of the largest batch of single rows.
    pub fn most_decodes(&self) -> usize {
        self.limits.most_decodes()
    }

    /// Checks the batch and writes its integers to the buffer of that turn, or of the next. `bring` or a captured graph
    /// copies them. A batch of single rows is padded to `padded` rows, and the padding rows do nothing.
    ///
    /// # Errors
    /// `Error::Internal` for a batch that contradicts itself or exceeds the limits.
    pub fn begin(&mut self, batch: &Batch, turn: Option<usize>, padded: impl Fn(usize) -> usize) -> Result<()> {
        validate_batch(batch)?;
        let (tokens, seqs) = (batch.num_tokens(), batch.num_seqs());
        let groups = &batch.groups;
        let entries: usize = groups.iter().map(|group| group.block_tables.len()).sum();
        let (rows, copies) = (batch.logits_indices.len(), batch.block_copies.len());
        let kept = batch.states.writes.len();
        let limits = &self.limits;
        if tokens > limits.tokens
            || seqs > limits.seqs
            || rows > limits.logits_rows
            || groups.len() > limits.groups
            || entries > limits.table_entries()
            || copies > limits.copies()
            || kept > limits.state_writes
        {
            return Err(Error::internal(format!(
                "a step of {tokens} tokens, {seqs} sequences, {rows} logits rows, {} KV groups, {entries} table \
                 entries, {copies} copies, {kept} states to keep. The limits are {limits:?}",
                groups.len()
            )));
        }
        if let Some(token) = batch.token_ids.iter().find(|&&token| token & CHOSEN_TOKEN != 0) {
            return Err(Error::internal(format!("token {token}, which is a mark")));
        }
        if let Some(copy) = batch.block_copies.iter().find(|copy| copy.group as usize >= groups.len()) {
            return Err(Error::internal(format!("{copy:?} in a batch of {} KV groups", groups.len())));
        }
        let pure_decode = tokens == seqs
            && rows == tokens
            && copies == 0
            && kept <= states::of_single_rows(seqs)
            && !groups.is_empty()
            && batch.cu_seqlens_q.iter().enumerate().all(|(i, &start)| start as usize == i);
        let padded = if pure_decode { padded(tokens).max(tokens) } else { tokens };
        segments::of_batch(batch, self.tuning.attention.by_token, &mut self.segments);
        segments::tiles(&self.segments, &batch.positions, self.tuning.attention.prefill_rows, &mut self.tiles);
        // In a batch of single rows, the layout depends only on `padded`.
        let seqs_there = if pure_decode { padded } else { seqs };
        self.layout = Layout::new(Sizes {
            tokens: padded,
            seqs: seqs_there,
            segments: if pure_decode { padded } else { self.segments.len() },
            prefill_items: self.tiles.len(),
            logits_rows: if pure_decode { padded } else { rows },
            // A captured step needs fixed places, whatever groups the batch has.
            groups: limits.groups,
            copies,
            state_writes: limits.has_states().then(|| if pure_decode { states::of_single_rows(padded) } else { kept }),
            table_entries: entries,
        });
        self.turn = turn.unwrap_or(self.turn + 1) % TURNS;
        let Turn { host, copied } = &mut self.turns[self.turn];
        copied.synchronize()?;
        let at = &self.layout;
        let mut words = Words(counted(host.as_mut_slice(), at.tables + entries));
        let padding = |value: u32| std::iter::repeat_n(value, padded - tokens);
        words.put(at.token_ids, batch.token_ids.iter().copied().chain(padding(0)));
        for chosen in &batch.chosen {
            words.put(at.token_ids + chosen.index as usize, [CHOSEN_TOKEN | chosen.row]);
        }
        words.put(at.positions, batch.first_rope_positions().iter().copied().chain(padding(0)));
        for (i, group) in groups.iter().enumerate() {
            let slots = group.slot_mapping.iter().copied();
            words.put(at.slots + i * at.slots_of_group, slots.chain(padding(NO_SLOT)));
        }
        words.put(at.logits_indices, batch.logits_indices.iter().copied().chain(tokens as u32..padded as u32));
        self.copies.clear();
        let mut copied = 0;
        for group in 0..groups.len() {
            let of_group = batch.block_copies.iter().filter(|copy| copy.group as usize == group);
            let first = copied;
            for copy in of_group {
                words.put(at.copies + 2 * copied, [copy.src, copy.dst]);
                copied += 1;
            }
            self.copies.push(first..copied);
        }
        if !batch.states.reads.is_empty() && limits.has_states() {
            states::put(&mut words, at, batch, padded);
        }
        words.put(at.tables, groups.iter().flat_map(|group| group.block_tables.iter().copied()));
        let mut tables = 0;
        for (i, group) in groups.iter().enumerate() {
            let starts = self.segments.iter().map(|segment| tables + group.cu_blocks[segment.seq]);
            words.put(at.block_start + i * at.block_start_of_group, starts.chain(padding(0)));
            tables += group.block_tables.len() as u32;
        }

        let starts = self.segments.iter().map(|segment| segment.tokens.start as u32);
        words.put(at.q_start, starts.chain(tokens as u32..=padded as u32));
        words.put(at.context_lens, self.segments.iter().map(|segment| segment.context).chain(padding(0)));
        let decodes = (0..).zip(&self.segments).filter(|(_, segment)| segment.is_decode).map(|(index, _)| index);
        let decode_items = decodes.clone().count();
        words.put(at.decode_items, decodes.chain(tokens as u32..padded as u32));
        words.put(at.prefill_items, self.tiles.iter().flat_map(|tile| [tile.segment, tile.first_row]));

        let longest = |alone: bool| {
            let these = (0..seqs).filter(|&seq| (batch.tokens_of(seq).len() == 1) == alone);
            these.map(|seq| batch.context_lens[seq]).max().unwrap_or(0)
        };
        let text_tiles = self.tiles.partition_point(|tile| !tile.is_image);
        self.shape = StepShape {
            tokens,
            decode_items,
            text_tiles,
            image_tiles: self.tiles.len() - text_tiles,
            sight: batch.images.sight,
            context_splits: self.tuning.context_splits(longest(true)),
            prefill_context: longest(false),
            pure_decode,
        };
        self.checked.clear();
        Ok(())
    }

    /// Queues the copy of the step's integers, for all work queued after it. `chosen` holds the tokens that the step
    /// before has chosen, by row.
    pub fn bring(&mut self, stream: &Stream, copy_step: &Function, chosen: DeviceSlice<'_>) -> Result<()> {
        self.queue_copy(stream, copy_step, chosen)?;
        self.mark_copied(stream)
    }

    /// Queues only the copy, as a captured graph contains it.
    pub fn queue_copy(&mut self, stream: &Stream, copy_step: &Function, chosen: DeviceSlice<'_>) -> Result<()> {
        let Layout { num_token_ids, tables, .. } = self.layout;
        let (from, token_ids) = (self.turns[self.turn].host.slice(), TokenIds { count: num_token_ids, chosen });
        // SAFETY: the layout ends inside both buffers. The host's is written again only after `copied`; the device's is
        // read only on this stream, before or after the copy. Token ids come first, and `begin` marked only rows of the
        // step before.
        unsafe { launch_copy(stream, copy_step, from, self.device.slice(), tables, token_ids) }
    }

    /// Notes that the copy was queued on the stream, directly or in a captured graph. After an error nothing tells when
    /// it has read the host's memory, so the stream must be waited for before the next step begins.
    pub fn mark_copied(&mut self, stream: &Stream) -> Result<()> {
        self.turns[self.turn].copied.record(stream)
    }

    /// Runs a check once per step, since several layers ask for it.
    ///
    /// # Errors
    /// The errors of `Check::run`.
    pub fn check(&mut self, batch: &Batch, check: Check) -> Result<()> {
        if !self.checked.contains(&check) {
            check.run(batch)?;
            self.checked.push(check);
        }
        Ok(())
    }

    /// Returns the checks that the batch has passed.
    pub fn checked(&self) -> &[Check] {
        &self.checked
    }

    fn at(&self, word: usize) -> Result<DeviceSlice<'_>> {
        self.device.slice().after(4 * word as u64)
    }

    pub fn token_ids(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.token_ids)
    }

    pub fn positions(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.positions)
    }

    pub fn slots(&self, group: usize) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.slots + group * self.layout.slots_of_group)
    }

    /// Returns the slots of the first group in a captured step. Its padding rows have none.
    pub fn padded_slots(&self, captured: Option<usize>) -> Result<Option<DeviceSlice<'_>>> {
        captured.map(|_| self.slots(0)).transpose()
    }

    pub fn q_start(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.q_start)
    }

    pub fn context_lens(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.context_lens)
    }

    pub fn block_start(&self, group: usize) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.block_start + group * self.layout.block_start_of_group)
    }

    /// Returns the block tables of all groups.
    pub fn block_tables(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.tables)
    }

    pub fn decode_items(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.decode_items)
    }

    pub fn prefill_items(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.prefill_items)
    }

    pub fn logits_indices(&self) -> Result<DeviceSlice<'_>> {
        self.at(self.layout.logits_indices)
    }

    /// Returns a group's pairs of blocks to copy, and their number.
    pub fn copies(&self, group: usize) -> Result<(DeviceSlice<'_>, usize)> {
        let copies = self.copies.get(group).cloned().unwrap_or_default();
        Ok((self.at(self.layout.copies + 2 * copies.start)?, copies.len()))
    }
}

/// Returns the bytes of the largest step, for budgeting.
pub(super) fn device_bytes(limits: &StepLimits) -> u64 {
    4 * Layout::new(Sizes::largest(limits)).end as u64
}
