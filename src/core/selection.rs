//! Selections from a step's logits, or from the hidden states of its rows. Backends write them; the engine requests
//! them and the sampler reads them.
//!
//! A row of logits is half a megabyte. If the best few logits and the log-sum-exp are enough for the sampler, nothing
//! else leaves the device.

mod alteration;
mod draw;
mod mask;

pub use alteration::{Alteration, AlteredToken, Penalties};
pub use draw::{Cut, Draw, Drawn, FRACTION_BITS, exp_nonpositive};
pub use mask::TokenMask;

use crate::{Error, Result};

/// The most candidates of one row.
pub const MAX_TOP: usize = 256;

/// The value of `Selected::Argmax::token` for a row with a NaN, and of `Cut::token` if it was not found.
pub const NO_TOKEN: u32 = u32::MAX;

/// The part of one row that is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// The largest logit: greedy sampling.
    Argmax,
    /// The `k` largest logits, for filters and log-probabilities. `k` is at most `MAX_TOP` and the vocabulary size.
    Top { k: u32 },
    /// A random token.
    Draw(Draw),
    /// The whole row, for the logits of a prompt.
    Row,
    /// The hidden state of the row's token after the output norm, without logits.
    Hidden,
}

/// The results that a step is computed for: the logits of its rows, or their hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    pub logits: bool,
    pub hidden: bool,
}

/// The part of one row of logits that is needed, and the changes to the row before that part is taken. A row that is
/// returned whole is the model's own, and its reader applies the changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingRequest<'a> {
    pub wanted: Wanted,
    pub alteration: Option<Alteration<'a>>,
    /// After the alteration, all other tokens are impossible.
    pub mask: Option<&'a TokenMask>,
    /// The number of best tokens that are also needed of the row as the model left it (`Selection::unaltered`). It is
    /// at most `MAX_TOP` and the vocabulary size. If the device picks the token, the token's rank is needed as well.
    /// Log-probabilities are the model's own.
    pub unaltered: u32,
}

impl From<Wanted> for SamplingRequest<'_> {
    fn from(wanted: Wanted) -> Self {
        Self { wanted, alteration: None, mask: None, unaltered: 0 }
    }
}

/// The returned part of one row, which is the requested one or more. A whole row is the model's own. Every other part
/// is taken after the row's alteration and under its mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Selected<'a> {
    /// The first token with the largest logit, and the logarithm of the sum of all `exp(logit)`.
    Argmax {
        token: u32,
        logit: f32,
        log_sum_exp: f32,
    },
    /// The best tokens in order (logit descending, id ascending), and the logarithm of the sum of all `exp(logit)`; NaN
    /// if the row holds one.
    Top {
        ids: &'a [u32],
        logits: &'a [f32],
        log_sum_exp: f32,
    },
    Drawn(Drawn),
    Row(&'a [f32]),
    /// No logits, since only the hidden state was requested; `Selection::hidden` returns it.
    Nothing,
}

/// The best tokens of a row, as in `Selected::Top`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestTokens<'a> {
    pub ids: &'a [u32],
    pub logits: &'a [f32],
    pub log_sum_exp: f32,
    /// The token that the device picked after the row's alteration, ranked among all tokens.
    pub chosen: Option<Ranked>,
}

/// A token's logit and its rank among all tokens of its row; the best has rank 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    pub logit: f32,
    pub rank: u32,
}

/// Rows that a backend keeps on its device, and the selections from them.
pub trait DeviceRows {
    fn row(&self, row: usize) -> Selected<'_>;

    /// Returns the best tokens of a row as the model left it, if they were requested.
    fn unaltered(&self, row: usize) -> Option<BestTokens<'_>>;

    /// Copies a whole row to the host, as the model left it. It costs a round trip to the device, and is meant for the
    /// few rows whose selection is not enough.
    fn fetch(&mut self, row: usize) -> Result<&[f32]>;
}

/// The rows of a step, in the order of `Batch::logits_indices`.
pub struct Selection<'a> {
    num_rows: usize,
    cols: usize,
    num_fetched: u64,
    rows: Rows<'a>,
    hidden: Option<Hidden<'a>>,
}

enum Rows<'a> {
    /// No logits were requested.
    Nothing,
    Host(&'a [f32]),
    Device(Box<dyn DeviceRows + 'a>),
}

/// The hidden states of all rows of a step, one after the other.
struct Hidden<'a> {
    values: &'a [f32],
    cols: usize,
}

impl<'a> Selection<'a> {
    /// Returns a selection of whole rows of `cols` values, one after the other.
    pub fn of_rows(values: &'a [f32], cols: usize) -> Self {
        Self { num_rows: values.len() / cols.max(1), cols, num_fetched: 0, rows: Rows::Host(values), hidden: None }
    }

    /// Returns a selection of `num_rows` rows of `cols` values that stay on the device.
    pub fn on_device(rows: Box<dyn DeviceRows + 'a>, num_rows: usize, cols: usize) -> Self {
        Self { num_rows, cols, num_fetched: 0, rows: Rows::Device(rows), hidden: None }
    }

    /// Returns a selection of `num_rows` rows without logits.
    pub fn without_logits(num_rows: usize, cols: usize) -> Self {
        Self { num_rows, cols, num_fetched: 0, rows: Rows::Nothing, hidden: None }
    }

    /// Adds the hidden states of all rows, of `cols` values each.
    pub fn with_hidden(self, values: &'a [f32], cols: usize) -> Self {
        Self { hidden: Some(Hidden { values, cols }), ..self }
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Returns the size of the vocabulary.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn row(&self, row: usize) -> Selected<'_> {
        match &self.rows {
            Rows::Nothing => Selected::Nothing,
            Rows::Host(values) => Selected::Row(&values[row * self.cols..(row + 1) * self.cols]),
            Rows::Device(rows) => rows.row(row),
        }
    }

    /// Returns the best tokens of a row as the model left it, if they were requested and the row is on the device.
    pub fn unaltered(&self, row: usize) -> Option<BestTokens<'_>> {
        match &self.rows {
            Rows::Nothing | Rows::Host(_) => None,
            Rows::Device(rows) => rows.unaltered(row),
        }
    }

    /// Returns the hidden state of a row's token after the output norm.
    ///
    /// # Errors
    /// `Internal` if it was not requested.
    pub fn hidden(&self, row: usize) -> Result<&[f32]> {
        let of_row = |hidden: &Hidden<'a>| hidden.values.get(row * hidden.cols..(row + 1) * hidden.cols);
        let missing = || Error::internal(format!("the hidden state of row {row}, which was not requested"));
        self.hidden.as_ref().and_then(of_row).ok_or_else(missing)
    }

    /// Returns the whole row as the model left it, fetched from the device if necessary.
    pub fn whole_row(&mut self, row: usize) -> Result<&[f32]> {
        match &mut self.rows {
            Rows::Nothing => Err(Error::internal(format!("the logits of row {row}, which were not requested"))),
            Rows::Host(values) => Ok(&values[row * self.cols..(row + 1) * self.cols]),
            Rows::Device(rows) => {
                self.num_fetched += u64::from(!matches!(rows.row(row), Selected::Row(_)));
                rows.fetch(row)
            }
        }
    }

    /// Returns the number of rows that had to be fetched separately from the device.
    pub fn num_fetched(&self) -> u64 {
        self.num_fetched
    }
}
