//! Results of the selection kernels: their places on the device, and their words on the host.

use crate::launch::args::DRAW_FRACTION_BITS;
use crate::selection::{BestTokens, Cut, Drawn, FRACTION_BITS, Ranked};

// The device sums weights in the same units as the host.
const _: () = assert!(DRAW_FRACTION_BITS == FRACTION_BITS);

/// Words of `Drawn` of `draw.h`.
const DRAWN_WORDS: usize = 12;
/// The index of the token's id among them.
const DRAWN_TOKEN: usize = 8;
/// Words of `Rank` of `sampling.hip`.
const RANK_WORDS: usize = 2;

/// Places in the device buffer, in words, for `rows` rows.
pub(super) struct Places {
    pub tokens: usize,
    /// Largest logit and log-sum-exp of each row.
    pub largest: usize,
    /// Drawn tokens, one after the other. They contain 64-bit numbers.
    pub drawn: usize,
    /// Candidates of the altered rows.
    pub top: TopPlaces,
    /// Candidates of the rows before their alterations.
    pub unaltered: TopPlaces,
    /// Ranks of chosen tokens.
    pub ranks: usize,
    pub end: usize,
}

/// Sizes of the results that only some rows have.
pub(super) struct Widths {
    /// Candidates per row after its alteration, and before it.
    pub top: usize,
    pub unaltered: usize,
    /// Rows with a random draw, and rows that request the rank of their token.
    pub draws: usize,
    pub ranks: usize,
}

/// Places of `width` candidates per row; empty if that is 0.
pub(super) struct TopPlaces {
    pub log_sums: usize,
    pub ids: usize,
    pub logits: usize,
    pub end: usize,
}

impl TopPlaces {
    fn new(start: usize, rows: usize, width: usize) -> Self {
        let ids = start + if width > 0 { rows } else { 0 };
        let logits = ids + rows * width;
        Self { log_sums: start, ids, logits, end: logits + rows * width }
    }
}

impl Places {
    pub(super) fn new(rows: usize, widths: Widths) -> Self {
        let drawn = Self::drawn(rows);
        let top = TopPlaces::new(drawn + widths.draws * DRAWN_WORDS, rows, widths.top);
        let unaltered = TopPlaces::new(top.end, rows, widths.unaltered);
        let ranks = unaltered.end;
        Self { tokens: 0, largest: rows, drawn, ranks, end: ranks + widths.ranks * RANK_WORDS, top, unaltered }
    }

    /// Returns the place of drawn tokens, which follow the largest logits.
    fn drawn(rows: usize) -> usize {
        (3 * rows).next_multiple_of(2)
    }

    /// Returns the word with the id of a row's chosen token: the largest one, or the token drawn at an index.
    pub(super) fn chosen_token(rows: usize, row: usize, drawn: Option<usize>) -> usize {
        drawn.map_or(row, |place| Self::drawn(rows) + place * DRAWN_WORDS + DRAWN_TOKEN)
    }
}

/// Words of the device buffer, starting at `first`.
pub(super) struct Words<'a> {
    pub first: usize,
    pub words: &'a [u32],
}

impl Words<'_> {
    /// Returns the words at `from .. to`; none if they were not copied.
    pub(super) fn part(&self, from: usize, to: usize) -> &[u32] {
        let range = from.checked_sub(self.first).zip(to.checked_sub(self.first));
        range.and_then(|(from, to)| self.words.get(from..to)).unwrap_or(&[])
    }

    /// Replaces the content of `out` by the words at `from .. to` as floats.
    pub(super) fn floats(&self, from: usize, to: usize, out: &mut Vec<f32>) {
        out.clear();
        out.extend(self.part(from, to).iter().map(|&bits| f32::from_bits(bits)));
    }
}

/// The best tokens of each row.
#[derive(Default)]
pub(super) struct Top {
    /// Candidates per row, the most that any row requests.
    pub width: usize,
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// Log-sum-exp of each row.
    log_sums: Vec<f32>,
}

impl Top {
    pub(super) fn with_capacity(rows: usize, width: usize) -> Self {
        Self {
            width: 0,
            ids: Vec::with_capacity(rows * width),
            logits: Vec::with_capacity(rows * width),
            log_sums: Vec::with_capacity(rows),
        }
    }

    pub(super) fn read(&mut self, words: &Words<'_>, places: &TopPlaces) {
        words.floats(places.log_sums, places.ids, &mut self.log_sums);
        self.ids.clear();
        self.ids.extend(words.part(places.ids, places.logits));
        words.floats(places.logits, places.end, &mut self.logits);
    }

    /// Returns the `k` best tokens of a row, or all if there are fewer.
    pub(super) fn of_row(&self, row: usize, k: usize) -> BestTokens<'_> {
        let range = row * self.width..row * self.width + self.width.min(k);
        let (ids, logits) = (&self.ids[range.clone()], &self.logits[range]);
        BestTokens { ids, logits, log_sum_exp: self.log_sums[row], chosen: None }
    }
}

/// Replaces the content of `out` by the drawn tokens.
pub(super) fn read_drawn(words: &[u32], out: &mut Vec<Drawn>) {
    out.clear();
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let cut =
        |[token, logit, low, high]: [u32; 4]| Cut { token, logit: f32::from_bits(logit), before: pair(low, high) };
    out.extend(words.as_chunks::<DRAWN_WORDS>().0.iter().map(|&[largest, _, low, high, a, b, c, d, e, f, g, h]| {
        Drawn {
            largest: f32::from_bits(largest),
            total: pair(low, high),
            last_kept: cut([a, b, c, d]),
            token: cut([e, f, g, h]),
        }
    }));
}

/// Replaces the content of `out` by the ranks of chosen tokens.
pub(super) fn read_ranks(words: &[u32], out: &mut Vec<Ranked>) {
    out.clear();
    let ranks = words.as_chunks::<RANK_WORDS>().0.iter();
    out.extend(ranks.map(|&[rank, logit]| Ranked { rank, logit: f32::from_bits(logit) }));
}
