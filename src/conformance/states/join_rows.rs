//! Rows joined with the rows of the tokens before them.

use super::{Parts, Random, Row, StateLayerCase, check_refused};
use crate::Result;
use crate::Tally;
use crate::backend::{Backend, JoinRows, Loader, Ops, StateLayerSpec};

pub(super) struct Case {
    cols: usize,
    texts: &'static [usize],
    /// True if rows are joined with the rows before them, not with the rows of the same tokens.
    shifts: bool,
}

const fn case(cols: usize, texts: &'static [usize]) -> Case {
    Case { cols, texts, shifts: true }
}

/// Odd sizes, then some around the size of a thread block, and rows joined without a shift.
const CASES: [Case; 7] = [
    case(1, &[5]),
    case(3, &[1, 4]),
    case(33, &[7, 2, 21, 1]),
    case(256, &[40, 2, 9, 17]),
    case(300, &[33, 6]),
    Case { shifts: false, ..case(3, &[1, 4]) },
    Case { shifts: false, ..case(300, &[33, 6]) },
];

static REFUSED: Case = case(256, &[40, 40]);

pub(super) fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let layer = || JoinedRows::new(&REFUSED, 0);
    let others = [0, 64, 257].map(|cols| JoinedRows { cols, ..layer() });
    check_refused(loader, &layer(), &others, tally)
}

/// The rows of all tokens of some texts, joined with themselves.
pub(super) struct JoinedRows {
    cols: usize,
    texts: &'static [usize],
    shifts: bool,
    x: Vec<f32>,
}

impl StateLayerCase for JoinedRows {
    type Case = Case;
    const NAME: &'static str = "pairs of rows";
    const CASES: &'static [Case] = &CASES;

    fn new(&Case { cols, texts, shifts }: &'static Case, seed: u64) -> Self {
        Self { cols, texts, shifts, x: Random(seed).values(texts.iter().sum::<usize>() * cols) }
    }

    fn name(&self) -> String {
        let Self { cols, shifts, .. } = self;
        format!("pairs of rows of {cols}, {}", if *shifts { "with those before them" } else { "as they lie" })
    }

    fn texts(&self) -> &'static [usize] {
        self.texts
    }

    fn x(&self) -> &[f32] {
        &self.x
    }

    fn cols(&self) -> [usize; 3] {
        [self.cols, 1, 2 * self.cols]
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec {
        StateLayerSpec::of_row(num_slots, self.cols)
    }

    fn vectors(&self) -> Vec<&[f32]> {
        Vec::new()
    }

    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64> {
        let rows: Vec<&[f32]> = rows.iter().map(|row| row.x).collect();
        let nothing = vec![0.0; self.cols];
        let before = std::iter::once(&nothing[..]).chain(rows.iter().copied());
        let beside = before.skip(usize::from(!self.shifts));
        rows.iter().zip(beside).flat_map(|(row, beside)| row.iter().chain(beside)).map(|&x| f64::from(x)).collect()
    }

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()> {
        let Parts { x, state, out, .. } = parts;
        step.join_rows(JoinRows { left: x, right: x, cols: self.cols, previous: self.shifts.then_some(state), out })
    }
}
