//! Logits to candidates on the device: only what the sampler needs of a row comes to the host.

mod alter;
mod results;

use self::alter::Alterations;
use self::results::{Places, Top, TopPlaces, Words};
use super::args::{ArgmaxArgs, Format, TopKArgs};
use super::backend::GpuBackend;
use super::buffer::{Buffer, count};
use super::{Device, DeviceBuffer, DevicePtr, HostBuffer, StepLimits, tuning};
use crate::selection::{DeviceRows, MAX_TOP, Selected, Selection, Wanted, Wish};
use crate::{Error, Result};

/// What the selection kernels are told and find, and what of it came to the host last.
pub struct Results {
    device: DeviceBuffer,
    /// On their way to the kernel.
    temperatures: HostBuffer,
    alterations: Alterations,
    max_rows: usize,
    /// Of each row of the step.
    wanted: Vec<RowWanted>,
    /// Whether any row wants its argmax.
    argmax: bool,
    tokens: Vec<u32>,
    /// Largest logit and log-sum-exp of each row.
    largest: Vec<f32>,
    top: Top,
    /// The best tokens of the rows before their alterations.
    unaltered: Top,
    /// The rows that were wanted whole, one after the other.
    rows: Vec<f32>,
    /// The row that was fetched last.
    fetched: Vec<f32>,
}

#[derive(Clone, Copy)]
struct RowWanted {
    wanted: Wanted,
    /// Where in `Results::rows` it begins if it is wanted whole.
    whole: usize,
    /// Of its best tokens before its alteration.
    unaltered: usize,
}

impl Results {
    pub fn new(device: &Device, limits: &StepLimits) -> Result<Self> {
        let max_rows = limits.logits_rows;
        Ok(Self {
            device: DeviceBuffer::new(device, result_bytes(max_rows))?,
            temperatures: HostBuffer::new(device, 4 * max_rows.max(1))?,
            alterations: Alterations::new(device, limits)?,
            max_rows,
            wanted: Vec::with_capacity(max_rows),
            argmax: false,
            tokens: Vec::with_capacity(max_rows),
            largest: Vec::with_capacity(2 * max_rows),
            top: Top::with_capacity(max_rows, MAX_TOP),
            unaltered: Top::default(),
            rows: Vec::new(),
            fetched: Vec::new(),
        })
    }

    fn at(&self, word: usize) -> DevicePtr {
        self.device.ptr().offset(4 * word as u64)
    }

    /// Notes what is wanted of each row, and what alters it. A row whose tokens find no room comes whole: the host
    /// alters it then.
    fn note(&mut self, wishes: &[Wish<'_>], cols: usize) -> Result<()> {
        self.alterations.clear();
        self.wanted.clear();
        let (mut whole, mut width, mut unaltered) = (0, 0, 0);
        for (row, wish) in (0..).zip(wishes) {
            let fits = match &wish.alteration {
                Some(alteration) if wish.wanted != Wanted::Row => self.alterations.add(row, alteration),
                _ => true,
            };
            let wanted = if fits { wish.wanted } else { Wanted::Row };
            let of_row = if wanted == Wanted::Row { 0 } else { wish.unaltered().min(MAX_TOP).min(cols) };
            self.wanted.push(RowWanted { wanted, whole, unaltered: of_row });
            whole += if wanted == Wanted::Row { cols } else { 0 };
            width = width.max(if let Wanted::Top { k, .. } = wanted { k as usize } else { 0 });
            unaltered = unaltered.max(of_row);
        }
        self.argmax = self.wanted.iter().any(|row| row.wanted == Wanted::Argmax);
        (self.top.width, self.unaltered.width) = (width.min(MAX_TOP).min(cols), unaltered);
        Ok(())
    }

    fn places(&self) -> Places {
        Places::new(self.wanted.len(), self.top.width, self.unaltered.width)
    }
}

/// Bytes of the results of `rows` rows; the temperatures lie behind.
fn result_bytes(rows: usize) -> u64 {
    Format::F32.bytes(1, (Places::new(rows, MAX_TOP, MAX_TOP).end + rows).max(1))
}

/// Bytes on the device for steps of this size.
pub fn device_bytes(limits: &StepLimits) -> u64 {
    result_bytes(limits.logits_rows) + alter::bytes(limits) as u64
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_ne_bytes(word))
}

impl GpuBackend {
    /// Queues the kernels of a selection; `bring_selection` waits for it.
    pub(super) fn queue_selection(&mut self, logits: &Buffer, cols: usize, wishes: &[Wish<'_>]) -> Result<()> {
        let num_rows = wishes.len();
        if num_rows > self.results.max_rows {
            return Err(Error::internal(format!("{num_rows} rows of logits, at most {}", self.results.max_rows)));
        }
        let from = logits.read_f32("logits", num_rows, cols)?;
        self.results.note(wishes, cols)?;
        let places = self.results.places();
        let tops = self.results.top.width.max(self.results.unaltered.width);
        let temperatures = if tops > 0 { self.upload_temperatures()? } else { DevicePtr::NULL };
        self.queue_top_k(from, num_rows, cols, temperatures, &places.unaltered)?;
        let (stream, alter_logits) = (&self.stream, &self.functions.alter_logits);
        // SAFETY: the rows' room was checked, and the results of one selection are waited for before the next is asked
        // for.
        unsafe { self.results.alterations.queue(stream, alter_logits, from, cols)? };
        if self.results.argmax {
            self.queue_argmax(from, num_rows, cols, &places)?;
        }
        self.queue_top_k(from, num_rows, cols, temperatures, &places.top)
    }

    fn queue_argmax(&mut self, logits: DevicePtr, num_rows: usize, cols: usize, places: &Places) -> Result<()> {
        // How a row's sum comes about must not depend on how many rows there are in batch-invariant mode.
        let share = match self.options.batch_invariant {
            true => cols.max(1),
            false => tuning::argmax_share(num_rows, cols, self.multiprocessors()),
        };
        let args = ArgmaxArgs {
            logits,
            tokens: self.results.at(places.tokens),
            values: self.results.at(places.largest),
            partial: self.partial,
            counters: self.counters,
            rows: count(num_rows)?,
            cols: count(cols)?,
            share: count(share)?,
        };
        let grid = [count(num_rows)?, count(cols.div_ceil(share))?, 1];
        // SAFETY: the logits' room was checked, the results' is that of `max_rows`, and where rows are split there are
        // no more blocks than multiprocessors, whose partial results are few; one stream.
        unsafe { self.stream.launch(&self.functions.argmax, grid, &args) }
    }

    /// Nothing where no row wants candidates.
    fn queue_top_k(
        &mut self,
        logits: DevicePtr,
        num_rows: usize,
        cols: usize,
        temperatures: DevicePtr,
        places: &TopPlaces,
    ) -> Result<()> {
        let width = (places.logits - places.ids) / num_rows.max(1);
        if width == 0 {
            return Ok(());
        }
        let args = TopKArgs {
            logits,
            ids: self.results.at(places.ids),
            values: self.results.at(places.logits),
            log_sums: self.results.at(places.log_sums),
            temperatures,
            rows: count(num_rows)?,
            cols: count(cols)?,
            k: count(width)?,
        };
        // SAFETY: as above.
        unsafe { self.stream.launch(&self.functions.top_k, [count(num_rows)?, 1, 1], &args) }
    }

    fn upload_temperatures(&mut self) -> Result<DevicePtr> {
        let results = &mut self.results;
        let to = results.at(Places::new(results.max_rows, MAX_TOP, MAX_TOP).end);
        let places = results.temperatures.as_mut_slice().as_chunks_mut().0;
        for (place, row) in places.iter_mut().zip(&results.wanted) {
            let temperature = if let Wanted::Top { temperature, .. } = row.wanted { temperature } else { 1.0 };
            *place = temperature.to_ne_bytes();
        }
        // SAFETY: the results of one selection are waited for before the next is asked for, so the last copy has run.
        unsafe { self.stream.copy_to_device(to, &results.temperatures.as_slice()[..4 * results.wanted.len()])? };
        Ok(to)
    }

    /// Waits for what the kernels left, then brings the rows that are wanted whole.
    pub(super) fn bring_selection<'a>(
        &'a mut self,
        logits: &'a Buffer,
        num_rows: usize,
        cols: usize,
    ) -> Result<Selection<'a>> {
        let from = logits.read_f32("logits", num_rows, cols)?;
        let asked = self.results.wanted.len();
        if num_rows != asked {
            return Err(Error::internal(format!("the selection of {num_rows} rows, {asked} were asked for")));
        }
        let places = self.results.places();
        let first = if self.results.argmax { places.tokens } else { places.top.log_sums };
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        let read = self.read(self.results.at(first), 4 * (places.end - first), |bytes| {
            words.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        });
        let (results, found) = (&mut self.results, Words { first, words: &words });
        results.tokens.clear();
        results.tokens.extend(found.part(places.tokens, places.largest));
        found.floats(places.largest, places.top.log_sums, &mut results.largest);
        results.top.read(&found, &places.top);
        results.unaltered.read(&found, &places.unaltered);
        self.words = words;
        read?;

        let mut rows = std::mem::take(&mut self.results.rows);
        rows.clear();
        let mut outcome = Ok(());
        for row in 0..num_rows {
            if self.results.wanted[row].wanted == Wanted::Row && outcome.is_ok() {
                let from = from.offset(4 * (row * cols) as u64);
                outcome = self.read(from, 4 * cols, |bytes| rows.extend(floats(bytes)));
            }
        }
        self.results.rows = rows;
        outcome?;
        Ok(Selection::on_device(Box::new(Rows { backend: self, logits: from, cols }), num_rows, cols))
    }
}

/// The rows of one step.
struct Rows<'a> {
    backend: &'a mut GpuBackend,
    logits: DevicePtr,
    cols: usize,
}

impl DeviceRows for Rows<'_> {
    fn row(&self, row: usize) -> Selected<'_> {
        let results = &self.backend.results;
        let RowWanted { wanted, whole, .. } = results.wanted[row];
        match wanted {
            Wanted::Argmax => Selected::Argmax {
                token: results.tokens[row],
                logit: results.largest[2 * row],
                log_sum_exp: results.largest[2 * row + 1],
            },
            Wanted::Top { k, .. } => results.top.of_row(row, k as usize),
            Wanted::Row => Selected::Row(&results.rows[whole..whole + self.cols]),
        }
    }

    fn unaltered(&self, row: usize) -> Option<Selected<'_>> {
        let results = &self.backend.results;
        let k = results.wanted[row].unaltered;
        (k > 0).then(|| results.unaltered.of_row(row, k))
    }

    fn fetch(&mut self, row: usize) -> Result<&[f32]> {
        let RowWanted { wanted, whole, .. } = self.backend.results.wanted[row];
        if wanted == Wanted::Row {
            return Ok(&self.backend.results.rows[whole..whole + self.cols]);
        }
        let mut fetched = std::mem::take(&mut self.backend.results.fetched);
        fetched.clear();
        let from = self.logits.offset(4 * (row * self.cols) as u64);
        let mut read = self.backend.read(from, 4 * self.cols, |bytes| fetched.extend(floats(bytes)));
        // What the row's own logits were is with its tokens on the device.
        if let (Ok(()), Some((from, bytes))) = (&read, self.backend.results.alterations.tokens_of(row)) {
            let mut tokens = Vec::with_capacity(bytes);
            read = self.backend.read(from, bytes, |bytes| tokens.extend_from_slice(bytes));
            alter::undo(&tokens, &mut fetched);
        }
        self.backend.results.fetched = fetched;
        read?;
        Ok(&self.backend.results.fetched)
    }
}
