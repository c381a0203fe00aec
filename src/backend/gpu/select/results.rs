//! Results of the selection kernels: their places on the device, and the words that came to the host.

use crate::backend::gpu::args::DRAW_FRACTION_BITS;
use crate::selection::{BestTokens, Cut, Drawn, FRACTION_BITS, Ranked};

// A device sums weights in the units of the host.
const _: () = assert!(DRAW_FRACTION_BITS == FRACTION_BITS);

/// Words of `Drawn` of `draw.h`.
const DRAWN_WORDS: usize = 12;
/// The one of them with the id of the token.
const DRAWN_TOKEN: usize = 8;
/// Words of `Rank` of `sampling.hip`.
const RANK_WORDS: usize = 2;

/// Places in the device buffer, in words, for `rows` rows.
pub(super) struct Places {
    pub tokens: usize,
    /// Largest logit and log-sum-exp of each row.
    pub largest: usize,
    /// Tokens that were drawn, one after the other. They hold numbers of 64 bits.
    pub drawn: usize,
    /// Candidates of the rows as they were chosen from.
    pub top: TopPlaces,
    /// Candidates of the rows before their alterations.
    pub unaltered: TopPlaces,
    /// Ranks of chosen tokens.
    pub ranks: usize,
    pub end: usize,
}

/// How much there is of what not every row has.
pub(super) struct Widths {
    /// Candidates of a row as it was chosen from, and before its alteration.
    pub top: usize,
    pub unaltered: usize,
    /// Rows of which a token is drawn, and rows of whose token the rank is wanted.
    pub draws: usize,
    pub ranks: usize,
}

/// Places of `width` candidates a row; they are empty where that is 0.
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

    /// They lie behind the largest logits.
    fn drawn(rows: usize) -> usize {
        (3 * rows).next_multiple_of(2)
    }

    /// The word with the id of a row's chosen token: the largest, or the one drawn at a place.
    pub(super) fn chosen_token(rows: usize, row: usize, drawn: Option<usize>) -> usize {
        drawn.map_or(row, |place| Self::drawn(rows) + place * DRAWN_WORDS + DRAWN_TOKEN)
    }
}

/// Words of the device buffer from `first` on.
pub(super) struct Words<'a> {
    pub first: usize,
    pub words: &'a [u32],
}

impl Words<'_> {
    /// The words at `from .. to`; nothing where they were not brought.
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
    /// Candidates of a row, the most that any row wants.
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

    /// The `k` best tokens of a row, or as many as there are.
    pub(super) fn of_row(&self, row: usize, k: usize) -> BestTokens<'_> {
        let range = row * self.width..row * self.width + self.width.min(k);
        let (ids, logits) = (&self.ids[range.clone()], &self.logits[range]);
        BestTokens { ids, logits, log_sum_exp: self.log_sums[row], chosen: None }
    }
}

/// Replaces the content of `out` by the tokens that were drawn.
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
