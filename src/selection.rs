//! Results of a step's logits, or of the hidden states that they are made of. Backends write them; the engine asks for
//! them and the sampler reads them.
//!
//! A row of logits is half a megabyte. Where the sampler can do with the best few and the log-sum-exp, nothing else
//! leaves the device.

mod alteration;
mod draw;
mod mask;

pub use alteration::{Alteration, AlteredToken, Penalties};
pub use draw::{Cut, Draw, Drawn, FRACTION_BITS, exp_nonpositive};
pub use mask::TokenMask;

use crate::{Error, Result};

/// Candidates of one row at most.
pub const MAX_TOP: usize = 256;

/// `Selected::Argmax::token` of a row that holds a NaN, and `Cut::token` where it was not found.
pub const NO_TOKEN: u32 = u32::MAX;

/// The part of one row that is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// The largest logit: greedy sampling.
    Argmax,
    /// The `k` largest logits, `k` at most `MAX_TOP` and the vocabulary: filters and log-probabilities.
    Top { k: u32 },
    /// A random token.
    Draw(Draw),
    /// The whole row: the logits of a prompt.
    Row,
    /// The hidden state of the row's token after the output norm, and none of its logits.
    Hidden,
}

/// The results that a step is computed for: the logits of its rows, or the hidden states that they are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    pub logits: bool,
    pub hidden: bool,
}

/// The part of one row of logits that is needed, and the changes to the row that come before that part is taken of it.
/// A row that comes back whole is the model's own: whoever reads it changes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish<'a> {
    pub wanted: Wanted,
    pub alteration: Option<Alteration<'a>>,
    /// All other tokens are impossible, after the alteration.
    pub mask: Option<&'a TokenMask>,
    /// How many of the best tokens of the row as the model left it are needed too (`Selection::unaltered`), at most
    /// `MAX_TOP` and the vocabulary, and the place of the token among them all if the device chooses it:
    /// log-probabilities are the model's own.
    pub unaltered: u32,
}

impl From<Wanted> for Wish<'_> {
    fn from(wanted: Wanted) -> Self {
        Self { wanted, alteration: None, mask: None, unaltered: 0 }
    }
}

/// The part of one row that came back: the one that was wanted, or more. A whole row is the model's own; every other
/// part is taken from the row after its alteration and under its mask.
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
    /// No logits, since the hidden state alone was wanted: `Selection::hidden` has it.
    Nothing,
}

/// The best tokens of a row, as in `Selected::Top`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestTokens<'a> {
    pub ids: &'a [u32],
    pub logits: &'a [f32],
    pub log_sum_exp: f32,
    /// The token that the device chose, after the row's alteration or of all its tokens.
    pub chosen: Option<Ranked>,
}

/// A token's logit, and its place among all tokens of its row; the best is the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    pub logit: f32,
    pub rank: u32,
}

/// Rows that a backend keeps on its device, with the selections from them.
pub trait DeviceRows {
    fn row(&self, row: usize) -> Selected<'_>;

    /// The best tokens of a row as the model left it, where they were asked for.
    fn unaltered(&self, row: usize) -> Option<BestTokens<'_>>;

    /// Brings a whole row to the host, as the model left it. It costs a round trip to the device: for the few rows
    /// whose selection turns out not to be enough.
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
    /// No row's logits were wanted.
    Nothing,
    Host(&'a [f32]),
    Device(Box<dyn DeviceRows + 'a>),
}

/// Hidden states of all rows of a step, one after the other.
struct Hidden<'a> {
    values: &'a [f32],
    cols: usize,
}

impl<'a> Selection<'a> {
    /// Whole rows of `cols`, one after the other.
    pub fn of_rows(values: &'a [f32], cols: usize) -> Self {
        Self { num_rows: values.len() / cols.max(1), cols, num_fetched: 0, rows: Rows::Host(values), hidden: None }
    }

    /// `num_rows` rows of `cols` that stay on the device.
    pub fn on_device(rows: Box<dyn DeviceRows + 'a>, num_rows: usize, cols: usize) -> Self {
        Self { num_rows, cols, num_fetched: 0, rows: Rows::Device(rows), hidden: None }
    }

    /// `num_rows` rows of which no logits were wanted.
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

    /// The size of the vocabulary.
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

    /// The best tokens of a row as the model left it, where they were asked for and the row itself is not here.
    pub fn unaltered(&self, row: usize) -> Option<BestTokens<'_>> {
        match &self.rows {
            Rows::Nothing | Rows::Host(_) => None,
            Rows::Device(rows) => rows.unaltered(row),
        }
    }

    /// The hidden state of a row's token after the output norm.
    ///
    /// # Errors
    /// `Internal` where it was not wanted.
    pub fn hidden(&self, row: usize) -> Result<&[f32]> {
        let of_row = |hidden: &Hidden<'a>| hidden.values.get(row * hidden.cols..(row + 1) * hidden.cols);
        let missing = || Error::internal(format!("the hidden state of row {row}, which nobody wanted"));
        self.hidden.as_ref().and_then(of_row).ok_or_else(missing)
    }

    /// The whole row as the model left it, from the device if it is not here.
    pub fn whole_row(&mut self, row: usize) -> Result<&[f32]> {
        match &mut self.rows {
            Rows::Nothing => Err(Error::internal(format!("the logits of row {row}, which nobody wanted"))),
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
