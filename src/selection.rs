//! What a step brings back of its logits. Backends write it; the engine asks for it and the sampler reads it.
//!
//! A row of logits is half a megabyte. Where the sampler can do with the best few and the log-sum-exp, nothing else
//! leaves the device.

use crate::Result;

/// Candidates of one row at most.
pub const MAX_TOP: usize = 256;

/// `Selected::Argmax::token` of a row that holds a NaN.
pub const NO_TOKEN: u32 = u32::MAX;

/// What is needed of one row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// The largest logit: greedy sampling.
    Argmax,
    /// The `k` largest logits, `k` at most `MAX_TOP` and the vocabulary: filters and log-probabilities. `temperature`
    /// (a normal number above 0) is that of `Selected::Top::log_total`.
    Top { k: u32, temperature: f32 },
    /// All of them: whatever changes logits before the choice, and the logits of a prompt.
    Row,
}

/// What came back of one row: what was wanted, or more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Selected<'a> {
    /// The first token with the largest logit, and the logarithm of the sum of all `exp(logit)`.
    Argmax {
        token: u32,
        logit: f32,
        log_sum_exp: f32,
    },
    /// The best tokens in order (logit descending, id ascending). `log_total` is the logarithm of the sum of all
    /// `exp((logit - largest) / temperature)`. Both logarithms are NaN if the row holds one.
    Top {
        ids: &'a [u32],
        logits: &'a [f32],
        log_sum_exp: f32,
        log_total: f32,
    },
    Row(&'a [f32]),
}

/// Rows that a backend keeps on its device, with what it selected from them.
pub trait DeviceRows {
    fn row(&self, row: usize) -> Selected<'_>;

    /// Brings a whole row to the host. It costs a round trip to the device: for the few rows whose selection turns out
    /// not to be enough.
    fn fetch(&mut self, row: usize) -> Result<&[f32]>;
}

/// The rows of a step, in the order of `Batch::logits_indices`.
pub struct Selection<'a> {
    num_rows: usize,
    cols: usize,
    num_fetched: u64,
    rows: Rows<'a>,
}

enum Rows<'a> {
    Host(&'a [f32]),
    Device(Box<dyn DeviceRows + 'a>),
}

impl<'a> Selection<'a> {
    /// Whole rows of `cols`, one after the other.
    pub fn of_rows(values: &'a [f32], cols: usize) -> Self {
        Self { num_rows: values.len() / cols.max(1), cols, num_fetched: 0, rows: Rows::Host(values) }
    }

    /// `num_rows` rows of `cols` that stay on the device.
    pub fn on_device(rows: Box<dyn DeviceRows + 'a>, num_rows: usize, cols: usize) -> Self {
        Self { num_rows, cols, num_fetched: 0, rows: Rows::Device(rows) }
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// The size of the vocabulary.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn row(&self, row: usize) -> Selected<'_> {
        match &self.rows {
            Rows::Host(values) => Selected::Row(&values[row * self.cols..(row + 1) * self.cols]),
            Rows::Device(rows) => rows.row(row),
        }
    }

    /// The whole row, from the device if it is not here.
    pub fn whole_row(&mut self, row: usize) -> Result<&[f32]> {
        match &mut self.rows {
            Rows::Host(values) => Ok(&values[row * self.cols..(row + 1) * self.cols]),
            Rows::Device(rows) => {
                self.num_fetched += u64::from(!matches!(rows.row(row), Selected::Row(_)));
                rows.fetch(row)
            }
        }
    }

    /// Rows that had to be read from the device on their own.
    pub fn num_fetched(&self) -> u64 {
        self.num_fetched
    }
}
