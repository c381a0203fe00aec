//! Results of the selection kernels: their places on the device, and the words that came to the host.

use crate::selection::Selected;

/// Places in the device buffer, in words, for `rows` rows.
pub(super) struct Places {
    pub tokens: usize,
    /// Largest logit and log-sum-exp of each row.
    pub largest: usize,
    /// Candidates of the rows as they were chosen from.
    pub top: TopPlaces,
    /// Candidates of the rows before their alterations.
    pub unaltered: TopPlaces,
    pub end: usize,
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
        let ids = start + if width > 0 { 2 * rows } else { 0 };
        let logits = ids + rows * width;
        Self { log_sums: start, ids, logits, end: logits + rows * width }
    }
}

impl Places {
    /// `width` and `unaltered` are numbers of candidates of a row, as it was chosen from and before its alteration.
    pub(super) fn new(rows: usize, width: usize, unaltered: usize) -> Self {
        let top = TopPlaces::new(3 * rows, rows, width);
        let unaltered = TopPlaces::new(top.end, rows, unaltered);
        Self { tokens: 0, largest: rows, end: unaltered.end, top, unaltered }
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
    /// Log-sum-exp of each row, as it is and at its temperature.
    log_sums: Vec<f32>,
}

impl Top {
    pub(super) fn with_capacity(rows: usize, width: usize) -> Self {
        Self {
            width: 0,
            ids: Vec::with_capacity(rows * width),
            logits: Vec::with_capacity(rows * width),
            log_sums: Vec::with_capacity(2 * rows),
        }
    }

    pub(super) fn read(&mut self, words: &Words<'_>, places: &TopPlaces) {
        words.floats(places.log_sums, places.ids, &mut self.log_sums);
        self.ids.clear();
        self.ids.extend(words.part(places.ids, places.logits));
        words.floats(places.logits, places.end, &mut self.logits);
    }

    /// The `k` best tokens of a row, or as many as there are.
    pub(super) fn of_row(&self, row: usize, k: usize) -> Selected<'_> {
        let range = row * self.width..row * self.width + self.width.min(k);
        Selected::Top {
            ids: &self.ids[range.clone()],
            logits: &self.logits[range],
            log_sum_exp: self.log_sums[2 * row],
            log_total: self.log_sums[2 * row + 1],
        }
    }
}
