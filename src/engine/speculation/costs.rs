//! Measured duration of steps on this device by their number of rows.
//!
//! The cost of another row is not known in advance: almost nothing on a GPU with a few sequences, nearly a full share
//! on a CPU with many. So steps with a few drafts are tried first, then slightly larger ones, and their times decide
//! from then on. A measurement that is not renewed is forgotten, since the device's load may change. So a trial that
//! was slow by chance is repeated some hundred steps later.

use std::collections::{BTreeMap, VecDeque};

/// The number of recent times kept for each kind of step; their median counts.
const WINDOW: usize = 5;
/// The number of times after which a kind of step is known.
const ENOUGH: usize = 2;
/// A kind of step is forgotten if it does not recur within this many steps.
const MEMORY: u64 = 512;

/// Up to this number of rows, each number is its own kind. Above, eight kinds cover each doubling.
const EXACT_ROWS: usize = 16;

/// Times of decode steps. Steps with prompt tokens are not included.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// Times without drafts, which a device may overlap with the work between steps, and times with drafts.
    plain: BTreeMap<usize, Times>,
    drafted: BTreeMap<usize, Times>,
    num_steps: u64,
}

#[derive(Debug, Default)]
struct Times {
    micros: VecDeque<u64>,
    /// The number of the latest step.
    newest: u64,
}

impl Times {
    fn median(&self, now: u64) -> Option<f64> {
        if self.micros.len() < ENOUGH || now - self.newest > MEMORY {
            return None;
        }
        let mut sorted: Vec<u64> = self.micros.iter().copied().collect();
        sorted.sort_unstable();
        // Disturbances only make a step longer, so the lower of two medians counts.
        sorted.get((sorted.len() - 1) / 2).map(|&micros| micros.max(1) as f64)
    }
}

impl Costs {
    /// Records the time of a step of `num_seqs` sequences with `num_drafts` drafts.
    pub(super) fn record(&mut self, num_seqs: usize, num_drafts: usize, micros: u64) {
        self.num_steps += 1;
        let kinds = if num_drafts == 0 { &mut self.plain } else { &mut self.drafted };
        let times = kinds.entry(kind(num_seqs + num_drafts)).or_default();
        if self.num_steps - times.newest > MEMORY {
            times.micros.clear();
        }
        times.newest = self.num_steps;
        times.micros.truncate(WINDOW - 1);
        times.micros.push_front(micros);
    }

    /// Returns the times of steps of `num_seqs` sequences by their rows. `None` if the time without drafts is unknown.
    pub(super) fn curve(&self, num_seqs: usize) -> Option<Curve> {
        let plain: Vec<(f64, f64)> = self.known(&self.plain, 0).collect();
        let base = interpolated(&plain, num_seqs as f64)?;
        let mut points = vec![(num_seqs as f64, base)];
        points.extend(self.known(&self.drafted, num_seqs));
        Some(Curve { points })
    }

    /// Returns rows and times of the known kinds with more than `above` rows.
    fn known<'a>(&self, kinds: &'a BTreeMap<usize, Times>, above: usize) -> impl Iterator<Item = (f64, f64)> + 'a {
        let now = self.num_steps;
        kinds.range(above + 1..).filter_map(move |(&rows, times)| Some((rows as f64, times.median(now)?)))
    }
}

/// Known times of steps by their rows. The first point is the step without drafts.
#[derive(Debug)]
pub(super) struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// True if the cost of drafts is unknown.
    pub(super) fn is_untried(&self) -> bool {
        self.points.len() == 1
    }

    /// Returns the time of a step of `rows` rows, in microseconds. `None` for a step much larger than the largest known
    /// one. A slightly larger step is extrapolated from the last slope. With a single known point the slope is zero.
    pub(super) fn time(&self, rows: usize) -> Option<f64> {
        let x = rows as f64;
        let (&(known, time), others) = self.points.split_last()?;
        if x <= known {
            return interpolated(&self.points, x);
        }
        let slope = others.last().map_or(0.0, |&(x, y)| ((time - y) / (known - x)).max(0.0));
        (x <= known * 1.25 + 3.0).then_some(time + slope * (x - known))
    }
}

/// Interpolates linearly between points sorted by rows; `None` outside of them.
fn interpolated(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let above = points.iter().position(|point| point.0 >= x)?;
    let (x1, y1) = points[above];
    if x1 == x {
        return Some(y1);
    }
    let (x0, y0) = *points.get(above.checked_sub(1)?)?;
    Some(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
}

/// Returns the kind of a step: its rows, rounded up where several numbers of rows count as equal.
fn kind(rows: usize) -> usize {
    if rows <= EXACT_ROWS { rows } else { rows.next_multiple_of(rows.next_power_of_two() / EXACT_ROWS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(costs: &mut Costs, num_seqs: usize, num_drafts: usize, micros: u64) {
        (0..ENOUGH).for_each(|_| costs.record(num_seqs, num_drafts, micros));
    }

    fn time(costs: &Costs, num_seqs: usize, num_drafts: usize) -> Option<f64> {
        costs.curve(num_seqs)?.time(num_seqs + num_drafts)
    }

    #[test]
    fn kinds_grow_with_the_rows() {
        assert_eq!([1, 2, 9, 16, 17, 18, 31, 32, 33, 36, 37, 64, 65].map(kind), {
            [1, 2, 9, 16, 18, 18, 32, 32, 36, 36, 40, 64, 72]
        });
        assert!((1..2000).all(|rows| (rows..=rows + rows / 8).contains(&kind(rows)) && kind(rows) <= kind(rows + 1)));
    }

    #[test]
    fn one_time_is_none_and_the_median_counts() {
        let mut costs = Costs::default();
        assert!(costs.curve(1).is_none());
        costs.record(1, 0, 1000);
        assert!(costs.curve(1).is_none());
        costs.record(1, 0, 90_000);
        assert_eq!(time(&costs, 1, 0), Some(1000.0));
        for micros in [1010, 1020, 80_000] {
            costs.record(1, 0, micros);
        }
        assert_eq!(time(&costs, 1, 0), Some(1020.0));
        // Old times leave the window.
        (0..WINDOW).for_each(|_| costs.record(1, 0, 400));
        assert_eq!(time(&costs, 1, 0), Some(400.0));
    }

    #[test]
    fn larger_steps_are_tried_one_after_the_other() {
        let mut costs = Costs::default();
        known(&mut costs, 1, 0, 1000);
        // Nothing is known of drafts, so a few are assumed to be free.
        assert_eq!((time(&costs, 1, 3), time(&costs, 1, 4)), (Some(1000.0), None));
        known(&mut costs, 1, 3, 1300);
        assert_eq!([1, 2, 3, 7].map(|drafts| time(&costs, 1, drafts)), [1100.0, 1200.0, 1300.0, 1700.0].map(Some));
        assert_eq!(time(&costs, 1, 8), None);
        known(&mut costs, 1, 7, 1200);
        // The extrapolated time never falls.
        assert_eq!((time(&costs, 1, 5), time(&costs, 1, 10)), (Some(1250.0), Some(1200.0)));
        // Drafts of other numbers of sequences give times for the same rows; smaller steps do not.
        known(&mut costs, 6, 0, 1500);
        assert_eq!((time(&costs, 6, 2), time(&costs, 3, 0)), (Some(1200.0), Some(1200.0)));
        assert_eq!(time(&costs, 7, 0), None, "more sequences than were ever measured");
    }

    #[test]
    fn what_is_not_renewed_is_forgotten() {
        let mut costs = Costs::default();
        known(&mut costs, 1, 0, 1000);
        known(&mut costs, 1, 3, 9000);
        (0..MEMORY).for_each(|_| costs.record(1, 0, 1000));
        assert_eq!(time(&costs, 1, 3), Some(9000.0));
        costs.record(1, 0, 1000);
        assert_eq!(time(&costs, 1, 3), Some(1000.0), "to be tried again");
        costs.record(1, 3, 1100);
        assert_eq!(time(&costs, 1, 3), Some(1000.0), "old times do not make a new one known");
        costs.record(1, 3, 1100);
        assert_eq!(time(&costs, 1, 3), Some(1100.0));
    }
}
