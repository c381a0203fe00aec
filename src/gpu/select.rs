//! Selection on the device, from logits to candidates: only the results that the sampler needs come to the host.

mod alter;
mod masks;
mod results;
mod rows;

use std::ops::Range;

use self::alter::Alterations;
use self::masks::{Masks, NO_MASKS};
use self::results::{Places, Top, TopPlaces, Widths, Words, read_drawn, read_ranks};
use self::rows::RowArgs;
use super::buffer::{Buffer, count};
use super::compute::Compute;
use super::device::transfers::Transfers;
use super::launch::args::{ArgmaxArgs, DrawArgs, DrawRow, Format, MaskArgs, RankArgs, RankRow, TopKArgs};
use super::launch::catalog::{ARGMAX, DRAW, ONCE, RANK_TOKENS, TOP_K};
use super::launch::launcher::Launcher;
use super::{Device, DeviceBuffer, DeviceSlice, Event, HostBuffer, Stream};
use crate::backend::StepLimits;
use crate::batch::Batch;
use crate::selection::{
    BestTokens, DeviceRows, Draw, Drawn, MAX_TOP, Ranked, SamplingRequest, Selected, Selection, Wanted,
};
use crate::{Error, Result};

/// Memory and results of the selection kernels, and the results last copied to the host.
pub(super) struct Results {
    device: DeviceBuffer,
    /// The host's copy of the results.
    host: HostBuffer,
    /// Recorded after the kernels of the last selection and the copy of their results. Once it has passed, the host may
    /// read the results and overwrite the kernels' inputs.
    arrived: Event,
    /// True if a step has begun since the last selection. It overwrites the logits of that selection.
    overtaken: bool,
    alterations: Alterations,
    masks: Masks,
    max_rows: usize,
    /// The request of each row of the step.
    wanted: Vec<RowWanted>,
    /// True if any row requests its argmax.
    argmax: bool,
    /// The rows with a random draw of a token.
    draws: RowArgs<DrawRow>,
    /// The rows that request the rank of their chosen token.
    ranks: RowArgs<RankRow>,
    /// The host's copy of the results, as words.
    words: Vec<u32>,
    tokens: Vec<u32>,
    /// Largest logit and log-sum-exp of each row.
    largest: Vec<f32>,
    top: Top,
    /// The best tokens of the rows before their alterations.
    unaltered: Top,
    drawn: Vec<Drawn>,
    ranked: Vec<Ranked>,
    /// The rows that were requested whole, one after the other.
    rows: Vec<f32>,
    /// The row that was fetched last.
    fetched: Vec<f32>,
}

/// Rows of logits on the device, and the tokens that may be chosen from them.
struct LogitsRows<'a> {
    logits: DeviceSlice<'a>,
    num_rows: usize,
    cols: usize,
    masks: MaskArgs,
}

#[derive(Clone, Copy)]
struct RowWanted {
    wanted: Wanted,
    /// The row's start in `Results::rows` if it is requested whole; its index in `Results::draws` if a token is drawn.
    place: usize,
    /// The number of best tokens before its alteration that are requested.
    unaltered: usize,
    /// Its index in `Results::ranks`, if it has one.
    rank: Option<usize>,
}

impl Results {
    pub(super) fn new(device: &Device, limits: &StepLimits) -> Result<Self> {
        let max_rows = limits.logits_rows;
        Ok(Self {
            device: DeviceBuffer::new(device, result_bytes(max_rows))?,
            host: HostBuffer::new(device, usize::try_from(result_bytes(max_rows)).map_err(Error::internal)?)?,
            arrived: Event::new(device)?,
            overtaken: false,
            alterations: Alterations::new(device, limits)?,
            masks: Masks::new(device, limits)?,
            max_rows,
            wanted: Vec::with_capacity(max_rows),
            argmax: false,
            draws: RowArgs::new(device, max_rows)?,
            ranks: RowArgs::new(device, max_rows)?,
            words: Vec::new(),
            tokens: Vec::with_capacity(max_rows),
            largest: Vec::with_capacity(2 * max_rows),
            top: Top::with_capacity(max_rows, MAX_TOP),
            unaltered: Top::default(),
            drawn: Vec::with_capacity(max_rows),
            ranked: Vec::with_capacity(max_rows),
            rows: Vec::new(),
            fetched: Vec::new(),
        })
    }

    /// Notes that a step begins. Returns the memory of the tokens chosen for the rows of the step before, indexed by
    /// row.
    ///
    /// # Errors
    /// `Error::Internal` if the batch names a row that did not request its argmax.
    pub(super) fn begin_step(&mut self, batch: &Batch) -> Result<DeviceSlice<'_>> {
        let chooses = |row: u32| self.wanted.get(row as usize).is_some_and(|row| row.wanted == Wanted::Argmax);
        if let Some(chosen) = batch.chosen.iter().find(|chosen| self.overtaken || !chooses(chosen.row)) {
            return Err(Error::internal(format!("{chosen:?}, of a row whose token the device has not chosen")));
        }
        self.overtaken = true;
        Ok(self.device.slice())
    }

    fn at(&self, word: usize) -> Result<DeviceSlice<'_>> {
        self.device.slice().after(4 * word as u64)
    }

    /// Notes each row's request, its alteration and its mask. A row without room for them is copied whole, and the host
    /// does the selection.
    fn note(&mut self, sampling_requests: &[SamplingRequest<'_>], cols: usize) -> Result<()> {
        self.alterations.clear();
        self.masks.clear(cols);
        self.wanted.clear();
        self.draws.clear();
        self.ranks.clear();
        let (mut whole, mut width, mut unaltered) = (0, 0, 0);
        for (row, request) in (0..).zip(sampling_requests) {
            let alter = |alteration| self.alterations.add(row, alteration);
            let chosen_here = request.wanted != Wanted::Row
                && (request.mask.is_none() || self.masks.has_room())
                && request.alteration.as_ref().is_none_or(alter);
            self.masks.add(request.mask.filter(|_| chosen_here));
            let wanted = if chosen_here { request.wanted } else { Wanted::Row };
            let of_row = if wanted == Wanted::Row { 0 } else { (request.unaltered as usize).min(MAX_TOP).min(cols) };
            let place = match wanted {
                Wanted::Row => whole,
                Wanted::Draw(Draw { top_p, uniform, per_logit, min_p, top_k }) => {
                    self.draws.add(DrawRow { top_p, uniform, per_logit, min_p, top_k, row })
                }
                Wanted::Argmax | Wanted::Top { .. } | Wanted::Hidden => 0,
            };
            let chosen = match wanted {
                Wanted::Argmax => Some(Places::chosen_token(sampling_requests.len(), row as usize, None)),
                Wanted::Draw(_) => Some(Places::chosen_token(sampling_requests.len(), row as usize, Some(place))),
                Wanted::Top { .. } | Wanted::Row | Wanted::Hidden => None,
            };
            let rank = match chosen.filter(|_| of_row > 0) {
                Some(token_at) => {
                    let (first, num_altered) = self.alterations.place_of(row as usize);
                    Some(self.ranks.add(RankRow { row, token_at: count(token_at)?, first, count: num_altered }))
                }
                None => None,
            };
            self.wanted.push(RowWanted { wanted, place, unaltered: of_row, rank });
            whole += if wanted == Wanted::Row { cols } else { 0 };
            width = width.max(if let Wanted::Top { k } = wanted { k as usize } else { 0 });
            unaltered = unaltered.max(of_row);
        }
        self.argmax = self.wanted.iter().any(|row| row.wanted == Wanted::Argmax);
        (self.top.width, self.unaltered.width) = (width.min(MAX_TOP).min(cols), unaltered);
        Ok(())
    }

    fn places(&self) -> Places {
        let (top, unaltered) = (self.top.width, self.unaltered.width);
        let widths = Widths { top, unaltered, draws: self.draws.len(), ranks: self.ranks.len() };
        Places::new(self.wanted.len(), widths)
    }
}

/// Returns the maximum number of bytes of results for `rows` rows.
fn result_bytes(rows: usize) -> u64 {
    let widths = Widths { top: MAX_TOP, unaltered: MAX_TOP, draws: rows, ranks: rows };
    Format::F32.bytes(1, Places::new(rows, widths).end.max(1))
}

/// Returns the bytes on the device for steps of this size.
pub(super) fn device_bytes(limits: &StepLimits) -> u64 {
    let of_rows = rows::bytes::<DrawRow>(limits.logits_rows) + rows::bytes::<RankRow>(limits.logits_rows);
    result_bytes(limits.logits_rows) + (alter::bytes(limits) + masks::bytes(limits) + of_rows) as u64
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_ne_bytes(word))
}

impl Results {
    /// Queues the kernels of a selection; `collect` waits for it.
    pub(super) fn select(
        &mut self,
        compute: &Compute,
        logits: &Buffer,
        cols: usize,
        sampling_requests: &[SamplingRequest<'_>],
    ) -> Result<()> {
        let num_rows = sampling_requests.len();
        if num_rows > self.max_rows {
            return Err(Error::internal(format!("{num_rows} rows of logits, at most {}", self.max_rows)));
        }
        let launcher = compute.launcher();
        let from = logits.read_f32("logits", num_rows, cols)?;
        self.arrived.synchronize()?;
        self.note(sampling_requests, cols)?;
        self.overtaken = false;
        let places = self.places();
        let rows = LogitsRows { logits: from, num_rows, cols, masks: NO_MASKS };
        self.queue_top_k(launcher, &rows, &places.unaltered)?;
        // SAFETY: the rows' room was checked, and the selection before this one has run.
        let masks = unsafe {
            self.alterations.queue(launcher, from, cols)?;
            self.masks.queue(launcher.stream())?
        };
        let rows = LogitsRows { masks, ..rows };
        if self.argmax {
            self.queue_argmax(compute, &rows, &places)?;
        }
        self.queue_top_k(launcher, &rows, &places.top)?;
        self.queue_draw(launcher, &rows, &places)?;
        self.queue_ranks(launcher, &rows, &places)?;
        let stream = launcher.stream();
        let bytes = self.found(&places);
        let found = self.device.slice().part(bytes.start as u64, bytes.len() as u64)?;
        let host = &mut self.host.as_mut_slice()[bytes];
        if !host.is_empty() {
            // SAFETY: the buffers are the backend's. The host's is read, and the device's written again, only after
            // `arrived`.
            unsafe { stream.copy_to_host(host, found)? };
        }
        self.arrived.record(stream)
    }

    /// # Errors
    /// `Error::Internal` if a newer step has overwritten the rows of the last selection.
    fn check_rows(&self) -> Result<()> {
        if self.overtaken {
            Err(Error::internal("a row of logits behind which another step was begun"))
        } else {
            Ok(())
        }
    }

    /// Returns the byte range of a selection's results.
    fn found(&self, places: &Places) -> Range<usize> {
        let first = if self.argmax { places.tokens } else { places.drawn };
        4 * first..4 * places.end
    }

    fn queue_argmax(&self, compute: &Compute, rows: &LogitsRows<'_>, places: &Places) -> Result<()> {
        let &LogitsRows { logits, num_rows, cols, masks } = rows;
        let (launcher, workspace) = (compute.launcher(), compute.workspace());
        let share = launcher.tuning().argmax_share(num_rows, cols, launcher.multiprocessors());
        let args = ArgmaxArgs {
            logits: logits.ptr(),
            tokens: self.at(places.tokens)?.ptr(),
            values: self.at(places.largest)?.ptr(),
            partial: workspace.partial().ptr(),
            counters: workspace.counters().ptr(),
            masks,
            rows: count(num_rows)?,
            cols: count(cols)?,
            share: count(share)?,
        };
        let grid = [count(num_rows)?, count(cols.div_ceil(share))?, 1];
        // SAFETY: the size of the logits was checked, and the results have room for `max_rows` rows. If rows are split,
        // there are at most as many blocks as multiprocessors, so their partial results fit. There is one stream.
        unsafe { launcher.launch(ARGMAX, ONCE, grid, &args) }
    }

    /// Queues `top_k`, unless no row requests candidates.
    fn queue_top_k(&self, launcher: &Launcher, rows: &LogitsRows<'_>, places: &TopPlaces) -> Result<()> {
        let &LogitsRows { logits, num_rows, cols, masks } = rows;
        let width = (places.logits - places.ids) / num_rows.max(1);
        if width == 0 {
            return Ok(());
        }
        let args = TopKArgs {
            logits: logits.ptr(),
            ids: self.at(places.ids)?.ptr(),
            values: self.at(places.logits)?.ptr(),
            log_sums: self.at(places.log_sums)?.ptr(),
            masks,
            rows: count(num_rows)?,
            cols: count(cols)?,
            k: count(width)?,
        };
        // SAFETY: as above.
        unsafe { launcher.launch(TOP_K, ONCE, [count(num_rows)?, 1, 1], &args) }
    }

    /// Queues `draw` for the rows with a random draw.
    fn queue_draw(&mut self, launcher: &Launcher, rows: &LogitsRows<'_>, places: &Places) -> Result<()> {
        if self.draws.is_empty() {
            return Ok(());
        }
        // SAFETY: the selection before this one has run, and its copy with it.
        let requests = unsafe { self.draws.queue(launcher.stream())? };
        let &LogitsRows { logits, cols, masks, .. } = rows;
        let found = self.at(places.drawn)?.ptr();
        let args = DrawArgs { logits: logits.ptr(), rows: requests, found, masks, cols: count(cols)? };
        // SAFETY: the logits' room was checked, the results' is that of `max_rows`.
        unsafe { launcher.launch(DRAW, ONCE, [count(self.draws.len())?, 1, 1], &args) }
    }

    /// Queues `rank_tokens` for the rows that request the rank of their token, which was chosen before.
    fn queue_ranks(&mut self, launcher: &Launcher, rows: &LogitsRows<'_>, places: &Places) -> Result<()> {
        if self.ranks.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        let requests = unsafe { self.ranks.queue(launcher.stream())? };
        let &LogitsRows { logits, cols, .. } = rows;
        let args = RankArgs {
            logits: logits.ptr(),
            rows: requests,
            tokens: self.at(0)?.ptr(),
            altered: self.alterations.all_tokens()?.ptr(),
            found: self.at(places.ranks)?.ptr(),
            cols: count(cols)?,
        };
        // SAFETY: as above; a row's tokens are those that `alter_logits` left.
        unsafe { launcher.launch(RANK_TOKENS, ONCE, [count(self.ranks.len())?, 1, 1], &args) }
    }

    /// Waits for the kernels' results, then copies the rows that are requested whole.
    pub(super) fn collect<'a>(
        &'a mut self,
        stream: &'a Stream,
        transfers: &'a mut Transfers,
        logits: &'a Buffer,
        num_rows: usize,
        cols: usize,
    ) -> Result<Selection<'a>> {
        let from = logits.read_f32("logits", num_rows, cols)?;
        let asked = self.wanted.len();
        if num_rows != asked {
            return Err(Error::internal(format!("the selection of {num_rows} rows, {asked} were asked for")));
        }
        self.arrived.synchronize()?;
        let places = self.places();
        let bytes = self.found(&places);
        let first = bytes.start / 4;
        self.words.clear();
        self.words.extend(self.host.as_slice()[bytes].as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        let found = Words { first, words: &self.words };
        self.tokens.clear();
        self.tokens.extend(found.part(places.tokens, places.largest));
        found.floats(places.largest, places.largest + 2 * num_rows, &mut self.largest);
        self.top.read(&found, &places.top);
        self.unaltered.read(&found, &places.unaltered);
        read_drawn(found.part(places.drawn, places.top.log_sums), &mut self.drawn);
        read_ranks(found.part(places.ranks, places.end), &mut self.ranked);

        self.rows.clear();
        for row in (0..num_rows).filter(|&row| self.wanted[row].wanted == Wanted::Row) {
            self.check_rows()?;
            transfers.read(stream, row_of(from, row, cols)?, |bytes| self.rows.extend(floats(bytes)))?;
        }
        let rows = Rows { results: self, stream, transfers, logits: from, cols };
        Ok(Selection::on_device(Box::new(rows), num_rows, cols))
    }
}

/// The rows of one step.
struct Rows<'a> {
    results: &'a mut Results,
    stream: &'a Stream,
    transfers: &'a mut Transfers,
    logits: DeviceSlice<'a>,
    cols: usize,
}

/// Returns one row of logits.
fn row_of(logits: DeviceSlice<'_>, row: usize, cols: usize) -> Result<DeviceSlice<'_>> {
    logits.part(4 * (row * cols) as u64, 4 * cols as u64)
}

impl DeviceRows for Rows<'_> {
    fn row(&self, row: usize) -> Selected<'_> {
        let results = &self.results;
        let RowWanted { wanted, place, .. } = results.wanted[row];
        match wanted {
            Wanted::Argmax => Selected::Argmax {
                token: results.tokens[row],
                logit: results.largest[2 * row],
                log_sum_exp: results.largest[2 * row + 1],
            },
            Wanted::Top { k } => {
                let BestTokens { ids, logits, log_sum_exp, .. } = results.top.of_row(row, k as usize);
                Selected::Top { ids, logits, log_sum_exp }
            }
            Wanted::Draw(_) => Selected::Drawn(results.drawn[place]),
            Wanted::Row => Selected::Row(&results.rows[place..place + self.cols]),
            Wanted::Hidden => Selected::Nothing,
        }
    }

    fn unaltered(&self, row: usize) -> Option<BestTokens<'_>> {
        let RowWanted { unaltered: k, rank, .. } = self.results.wanted[row];
        let chosen = rank.map(|place| self.results.ranked[place]).filter(|ranked| ranked.rank > 0);
        (k > 0).then(|| BestTokens { chosen, ..self.results.unaltered.of_row(row, k) })
    }

    fn fetch(&mut self, row: usize) -> Result<&[f32]> {
        let Self { results, stream, transfers, logits, cols } = self;
        let RowWanted { wanted, place, .. } = results.wanted[row];
        if wanted == Wanted::Row {
            return Ok(&results.rows[place..place + *cols]);
        }
        results.check_rows()?;
        let fetched = &mut results.fetched;
        fetched.clear();
        transfers.read(stream, row_of(*logits, row, *cols)?, |bytes| fetched.extend(floats(bytes)))?;
        // The row's unaltered logits are on the device, next to its tokens.
        if let Some(from) = results.alterations.tokens_of(row)? {
            let mut tokens = Vec::with_capacity(from.bytes() as usize);
            transfers.read(stream, from, |bytes| tokens.extend_from_slice(bytes))?;
            alter::undo(&tokens, fetched);
        }
        Ok(fetched)
    }
}
