//! Logits to candidates on the device: only what the sampler needs of a row comes to the host.

use super::args::{ArgmaxArgs, Format, TopKArgs};
use super::backend::HipBackend;
use super::buffer::{Buffer, count};
use super::{Device, DeviceBuffer, DevicePtr, HostBuffer, tuning};
use crate::selection::{DeviceRows, MAX_TOP, Selected, Selection, Wanted};
use crate::{Error, Result};

/// Results of the selection kernels, and what of them came to the host last.
pub struct Results {
    device: DeviceBuffer,
    /// On their way to the kernel.
    temperatures: HostBuffer,
    max_rows: usize,
    /// Per row of the step: its wish, and where in `rows` it begins if it is wanted whole.
    wanted: Vec<(Wanted, usize)>,
    /// Whether any row wants its argmax.
    argmax: bool,
    /// Candidates of a row, the most that any row wants.
    width: usize,
    tokens: Vec<u32>,
    /// Largest logit and log-sum-exp of each row.
    largest: Vec<f32>,
    /// Candidates of all rows, `width` of each.
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// Log-sum-exp of each row, as it is and at its temperature.
    log_sums: Vec<f32>,
    /// The rows that were wanted whole, one after the other.
    rows: Vec<f32>,
    /// The row that was fetched last.
    fetched: Vec<f32>,
}

/// Places in the device buffer, in words, for `rows` rows of `width` candidates.
struct Places {
    tokens: usize,
    largest: usize,
    log_sums: usize,
    ids: usize,
    logits: usize,
    end: usize,
}

impl Places {
    fn new(rows: usize, width: usize) -> Self {
        let (tokens, largest, log_sums, ids) = (0, rows, 3 * rows, 5 * rows);
        let logits = ids + rows * width;
        Self { tokens, largest, log_sums, ids, logits, end: logits + rows * width }
    }
}

impl Results {
    pub fn new(device: &Device, max_rows: usize) -> Result<Self> {
        // The temperatures lie behind the results.
        let words = Places::new(max_rows, MAX_TOP).end + max_rows;
        Ok(Self {
            device: DeviceBuffer::new(device, Format::F32.bytes(1, words.max(1)))?,
            temperatures: HostBuffer::new(device, 4 * max_rows.max(1))?,
            max_rows,
            wanted: Vec::with_capacity(max_rows),
            argmax: false,
            width: 0,
            tokens: Vec::with_capacity(max_rows),
            largest: Vec::with_capacity(2 * max_rows),
            ids: Vec::with_capacity(max_rows * MAX_TOP),
            logits: Vec::with_capacity(max_rows * MAX_TOP),
            log_sums: Vec::with_capacity(2 * max_rows),
            rows: Vec::new(),
            fetched: Vec::new(),
        })
    }

    pub fn device_bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn at(&self, word: usize) -> DevicePtr {
        self.device.ptr().offset(4 * word as u64)
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_ne_bytes(word))
}

impl HipBackend {
    /// Queues the kernels of a selection; `bring_selection` waits for it.
    pub(super) fn queue_selection(&mut self, logits: &Buffer, cols: usize, wanted: &[Wanted]) -> Result<()> {
        let num_rows = wanted.len();
        if num_rows > self.results.max_rows {
            return Err(Error::internal(format!("{num_rows} rows of logits, at most {}", self.results.max_rows)));
        }
        let from = logits.read_f32("logits", num_rows, cols)?;
        let width = wanted.iter().map(|wanted| if let Wanted::Top { k, .. } = wanted { *k as usize } else { 0 }).max();
        let width = width.unwrap_or(0).min(MAX_TOP).min(cols);
        let argmax = wanted.contains(&Wanted::Argmax);
        let places = Places::new(num_rows, width);
        if argmax {
            // How a row's sum comes about must not depend on how many rows there are in batch-invariant mode.
            let share = match self.options.batch_invariant {
                true => cols.max(1),
                false => tuning::argmax_share(num_rows, cols, self.multiprocessors()),
            };
            let args = ArgmaxArgs {
                logits: from,
                tokens: self.results.at(places.tokens),
                values: self.results.at(places.largest),
                partial: self.partial,
                counters: self.counters,
                rows: count(num_rows)?,
                cols: count(cols)?,
                share: count(share)?,
            };
            let grid = [count(num_rows)?, count(cols.div_ceil(share))?, 1];
            // SAFETY: the logits' room was checked, the results' is that of `max_rows`, and where rows are split there are no
            // more blocks than multiprocessors, whose partial results are few; one stream.
            unsafe { self.stream.launch(&self.functions.argmax, grid, &args)? };
        }
        if width > 0 {
            let temperatures = self.upload_temperatures(wanted)?;
            let args = TopKArgs {
                logits: from,
                ids: self.results.at(places.ids),
                values: self.results.at(places.logits),
                log_sums: self.results.at(places.log_sums),
                temperatures,
                rows: count(num_rows)?,
                cols: count(cols)?,
                k: count(width)?,
            };
            // SAFETY: as above.
            unsafe { self.stream.launch(&self.functions.top_k, [count(num_rows)?, 1, 1], &args)? };
        }
        let results = &mut self.results;
        (results.argmax, results.width) = (argmax, width);
        results.wanted.clear();
        let mut whole = 0;
        for &wish in wanted {
            results.wanted.push((wish, whole));
            whole += if wish == Wanted::Row { cols } else { 0 };
        }
        Ok(())
    }

    fn upload_temperatures(&mut self, wanted: &[Wanted]) -> Result<DevicePtr> {
        let to = self.results.at(Places::new(self.results.max_rows, MAX_TOP).end);
        let host = &mut self.results.temperatures;
        for (bytes, wanted) in host.as_mut_slice().as_chunks_mut().0.iter_mut().zip(wanted) {
            let temperature = if let Wanted::Top { temperature, .. } = *wanted { temperature } else { 1.0 };
            *bytes = temperature.to_ne_bytes();
        }
        // SAFETY: the results of one selection are waited for before the next is asked for, so the last copy has run.
        unsafe { self.stream.copy_to_device(to, &host.as_slice()[..4 * wanted.len()])? };
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
        let (asked, width) = (self.results.wanted.len(), self.results.width);
        if num_rows != asked {
            return Err(Error::internal(format!("the selection of {num_rows} rows, {asked} were asked for")));
        }
        let places = Places::new(num_rows, width);
        let range = match (self.results.argmax, width > 0) {
            (false, false) => 0..0,
            (true, false) => 0..places.log_sums,
            (false, true) => places.log_sums..places.end,
            (true, true) => 0..places.end,
        };
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.resize(range.start, 0);
        let read = self.read(self.results.at(range.start), 4 * range.len(), |bytes| {
            words.extend(bytes.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)));
        });
        let results = &mut self.results;
        let part = |from: usize, to: usize| words.get(from..to).unwrap_or(&[]);
        let numbers = |part: &[u32], out: &mut Vec<f32>| {
            out.clear();
            out.extend(part.iter().map(|&bits| f32::from_bits(bits)));
        };
        results.tokens.clear();
        results.tokens.extend(part(places.tokens, places.largest));
        numbers(part(places.largest, places.log_sums), &mut results.largest);
        numbers(part(places.log_sums, places.ids), &mut results.log_sums);
        results.ids.clear();
        results.ids.extend(part(places.ids, places.logits));
        numbers(part(places.logits, places.end), &mut results.logits);
        self.words = words;
        read?;

        let mut rows = std::mem::take(&mut self.results.rows);
        rows.clear();
        let mut outcome = Ok(());
        for row in 0..num_rows {
            if self.results.wanted[row].0 == Wanted::Row && outcome.is_ok() {
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
    backend: &'a mut HipBackend,
    logits: DevicePtr,
    cols: usize,
}

impl DeviceRows for Rows<'_> {
    fn row(&self, row: usize) -> Selected<'_> {
        let results = &self.backend.results;
        let (wanted, at) = results.wanted[row];
        match wanted {
            Wanted::Argmax => Selected::Argmax {
                token: results.tokens[row],
                logit: results.largest[2 * row],
                log_sum_exp: results.largest[2 * row + 1],
            },
            Wanted::Top { k, .. } => {
                let range = row * results.width..row * results.width + results.width.min(k as usize);
                Selected::Top {
                    ids: &results.ids[range.clone()],
                    logits: &results.logits[range],
                    log_sum_exp: results.log_sums[2 * row],
                    log_total: results.log_sums[2 * row + 1],
                }
            }
            Wanted::Row => Selected::Row(&results.rows[at..at + self.cols]),
        }
    }

    fn fetch(&mut self, row: usize) -> Result<&[f32]> {
        let (wanted, at) = self.backend.results.wanted[row];
        if wanted == Wanted::Row {
            return Ok(&self.backend.results.rows[at..at + self.cols]);
        }
        let mut fetched = std::mem::take(&mut self.backend.results.fetched);
        fetched.clear();
        let from = self.logits.offset(4 * (row * self.cols) as u64);
        let read = self.backend.read(from, 4 * self.cols, |bytes| fetched.extend(floats(bytes)));
        self.backend.results.fetched = fetched;
        read?;
        Ok(&self.backend.results.fetched)
    }
}
