//! The choice of a row's experts, and the order of rows by expert.

use std::cmp::Ordering;

use crate::backend::{ExpertGroups, ExpertSpec, Gating};

/// The assignment of rows to experts.
#[derive(Debug)]
pub(crate) struct Routes {
    /// The expert of each pair and its weight.
    pub(super) choices: Vec<Choice>,
    pub(super) places: Vec<usize>,
    /// The row at each place.
    pub(super) rows: Vec<usize>,
    /// The first place of each expert, followed by the end of the last expert's places.
    pub(super) starts: Vec<usize>,
    /// Scores of a row's experts, followed by scores of their groups.
    ranks: Vec<f32>,
}

/// The expert of a pair that somebody else computes.
pub const NO_EXPERT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub expert: usize,
    pub weight: f32,
}

impl Choice {
    pub(super) fn is_there(&self) -> bool {
        self.expert != NO_EXPERT as usize
    }
}

impl Routes {
    pub(crate) fn new(spec: &ExpertSpec, rows: usize) -> Self {
        let [pairs, starts, ranks] = Self::sizes(spec, rows);
        Self {
            choices: vec![Choice { expert: 0, weight: 0.0 }; pairs],
            places: vec![0; pairs],
            rows: vec![0; pairs],
            starts: vec![0; starts],
            ranks: vec![0.0; ranks],
        }
    }

    /// Returns the lengths of the lists of pairs, of `starts` and of `ranks`.
    fn sizes(spec: &ExpertSpec, rows: usize) -> [usize; 3] {
        let groups = spec.groups.map_or(0, |groups| groups.num);
        [rows.saturating_mul(spec.used), spec.num + 1, spec.num + groups]
    }

    /// Returns the bytes that `new` allocates.
    pub(crate) fn bytes(spec: &ExpertSpec, rows: usize) -> u64 {
        let [pairs, starts, ranks] = Self::sizes(spec, rows).map(|entries| entries as u64);
        let of_pair = (size_of::<Choice>() + 2 * size_of::<usize>()) as u64;
        let of_experts = size_of::<usize>() as u64 * starts + size_of::<f32>() as u64 * ranks;
        of_pair.saturating_mul(pairs).saturating_add(of_experts)
    }

    /// Chooses the experts of each row of `logits`. `bias` and `scales` have one entry per expert, or are empty.
    pub(super) fn choose(&mut self, spec: &ExpertSpec, logits: &[f32], [bias, scales]: [&[f32]; 2]) {
        for (choices, logits) in self.choices.chunks_exact_mut(spec.used).zip(logits.chunks_exact(spec.num)) {
            choose(spec, logits, bias, &mut self.ranks, choices);
            for choice in choices {
                choice.weight *= scales.get(choice.expert).copied().unwrap_or(1.0);
            }
        }
    }

    /// Takes the experts and weights of the first pairs.
    pub(super) fn set(&mut self, pairs: impl Iterator<Item = Choice>) {
        self.choices.iter_mut().zip(pairs).for_each(|(choice, pair)| *choice = pair);
    }

    /// Sorts the first `pairs` pairs by expert. Returns the number of those that have one.
    pub(super) fn sort(&mut self, spec: &ExpertSpec, pairs: usize) -> usize {
        self.starts.fill(0);
        for choice in self.choices[..pairs].iter().filter(|choice| choice.is_there()) {
            self.starts[choice.expert + 1] += 1;
        }
        for expert in 0..spec.num {
            self.starts[expert + 1] += self.starts[expert];
        }
        let placed = self.starts[spec.num];
        // `starts[expert + 1]` is now the end of the expert's places. Each assigned pair counts it down.
        for pair in (0..pairs).rev().filter(|pair| self.choices[*pair].is_there()) {
            let end = &mut self.starts[self.choices[pair].expert + 1];
            *end -= 1;
            self.places[pair] = *end;
            self.rows[*end] = pair / spec.used;
        }
        // After counting down, the start of each expert's places is one entry too late.
        self.starts.copy_within(1.., 0);
        self.starts[spec.num] = placed;
        placed
    }

    /// Yields the experts that have rows, with their first place and the number of their places.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let runs = self.starts.windows(2).enumerate().map(|(expert, ends)| (expert, ends[0], ends[1] - ends[0]));
        runs.filter(|(_, _, count)| *count > 0)
    }
}

/// Returns a value in the form that is compared. Zeros of both signs are equal. NaN ranks above everything, so that it
/// stays visible in the row's result.
fn ordered(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value + 0.0 }
}

/// Ranks the experts of all but the best groups below all others. A group's score is the sum of its best two experts.
/// `values` is scratch with one number per group.
fn keep_best_groups(groups: ExpertGroups, ranks: &mut [f32], values: &mut [f32]) {
    let of_group = ranks.len() / groups.num;
    let larger = |a: f32, b: f32| if b.total_cmp(&a).is_gt() { b } else { a };
    for (group, value) in ranks.chunks_exact(of_group).zip(&mut *values) {
        let [best, second] = group.iter().fold([BEHIND; 2], |[best, second], &rank| match rank.total_cmp(&best) {
            Ordering::Greater => [rank, best],
            _ => [best, larger(second, rank)],
        });
        *value = ordered(best + second);
    }
    for (group, ranks) in ranks.chunks_exact_mut(of_group).enumerate() {
        let is_before = |other: &usize| values[group].total_cmp(&values[*other]).then(other.cmp(&group)).is_lt();
        if (0..groups.num).filter(is_before).count() >= groups.used {
            ranks.fill(BEHIND);
        }
    }
}

/// The rank of excluded experts, which is below every number.
const BEHIND: f32 = -f32::NAN;

/// Chooses the best `choices.len()` experts with their weights, best first; the lower index wins a tie. `bias` has one
/// entry per expert or is empty, and `ranks` is scratch.
fn choose(spec: &ExpertSpec, logits: &[f32], bias: &[f32], ranks: &mut [f32], choices: &mut [Choice]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let share = |expert: usize| match spec.gating {
        Gating::Softmax => (logits[expert] - largest).exp(),
        Gating::Sigmoid => 1.0 / (1.0 + (-logits[expert]).exp()),
    };
    let all: f32 = match spec.gating {
        Gating::Softmax => (0..logits.len()).map(share).sum(),
        Gating::Sigmoid => 1.0,
    };
    let (ranks, values) = ranks.split_at_mut(logits.len());
    for (expert, rank) in ranks.iter_mut().enumerate() {
        // Without a bias, compare logits: they have the order of the weights, and do not round to equal numbers.
        *rank = ordered(match (bias.get(expert), spec.groups) {
            (None, None) => logits[expert],
            (bias, _) => share(expert) / all + bias.unwrap_or(&0.0),
        });
    }
    if let Some(groups) = spec.groups {
        keep_best_groups(groups, ranks, values);
    }
    let is_before = |a: usize, b: usize| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)).is_lt();
    let mut last = None;
    for choice in choices.iter_mut() {
        let rest = (0..logits.len()).filter(|&expert| last.is_none_or(|last| is_before(last, expert)));
        choice.expert = rest.reduce(|best, expert| if is_before(expert, best) { expert } else { best }).unwrap_or(0);
        last = Some(choice.expert);
    }
    let sum: f32 = match spec.normalize {
        true => choices.iter().map(|choice| share(choice.expert)).sum(),
        false => all,
    };
    for choice in choices {
        choice.weight = spec.scale * (share(choice.expert) / sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(num: usize, used: usize, normalize: bool) -> ExpertSpec {
        ExpertSpec { normalize, ..ExpertSpec::plain(num, used, 1, 1) }
    }

    fn chosen(logits: &[f32], used: usize) -> Vec<usize> {
        let mut choices = vec![Choice { expert: 0, weight: 0.0 }; used];
        choose(&spec(logits.len(), used, true), logits, &[], &mut vec![0.0; logits.len()], &mut choices);
        choices.iter().map(|choice| choice.expert).collect()
    }

    #[test]
    fn best_first_and_among_equals_the_lower_index() {
        assert_eq!(chosen(&[1.0, 3.0, 2.0, 3.0], 3), [1, 3, 2]);
        assert_eq!(chosen(&[0.0, -0.0, 0.0], 2), [0, 1]);
        assert_eq!(chosen(&[f32::NEG_INFINITY; 4], 4), [0, 1, 2, 3]);
    }

    /// The chosen experts exist and are distinct for any row, even with NaN and infinity.
    #[test]
    fn experts_of_rows_that_are_not_numbers_exist() {
        let mut experts = chosen(&[f32::NAN, 1.0, -f32::NAN, f32::INFINITY, f32::NAN], 5);
        experts.sort_unstable();
        assert_eq!(experts, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_row_keeps_its_nan() {
        for nan in [f32::NAN, -f32::NAN] {
            let mut choices = [Choice { expert: 0, weight: 0.0 }; 2];
            choose(&spec(4, 2, true), &[1.0, 2.0, nan, 3.0], &[], &mut [0.0; 4], &mut choices);
            assert!(choices[0].expert == 2 && choices.iter().all(|choice| choice.weight.is_nan()), "{choices:?}");
        }
    }

    /// The groups with the best sums of two biased scores are chosen, the first of equal ones. The weights ignore the
    /// bias.
    #[test]
    fn experts_are_of_the_best_groups() {
        let groups = Some(ExpertGroups { num: 3, used: 2 });
        let spec = ExpertSpec { gating: Gating::Sigmoid, groups, choice_bias: true, ..spec(6, 3, false) };
        let choose = |logits: [f32; 6], bias: &[f32]| {
            let mut choices = [Choice { expert: 0, weight: 0.0 }; 3];
            super::choose(&spec, &logits, bias, &mut [0.0; 9], &mut choices);
            choices
        };
        let experts = |logits, bias: &[f32]| choose(logits, bias).map(|choice| choice.expert);
        // The best expert is in the worst group.
        assert_eq!(experts([9.0, -9.0, 1.0, 1.0, 2.0, 2.0], &[0.0; 6]), [4, 5, 2]);
        assert_eq!(experts([9.0, -9.0, 1.0, 1.0, 2.0, 2.0], &[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]), [0, 4, 5]);
        assert_eq!(experts([0.0; 6], &[]), [0, 1, 2]);
        assert_eq!(experts([0.0, 0.0, 0.0, 0.0, 0.0, f32::NAN], &[0.0; 6])[0], 5);
        let weights = choose([0.0; 6], &[0.0, 0.0, 0.25, 0.25, 0.25, 0.25]).map(|choice| choice.weight);
        assert_eq!(weights, [0.5; 3]);
    }

    #[test]
    fn weights_are_those_of_the_softmax() {
        let logits = [0.5f32, -1.0, 2.0];
        let all: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (normalize, sum) in [(false, all), (true, f64::from(logits[2]).exp() + f64::from(logits[0]).exp())] {
            let mut choices = [Choice { expert: 0, weight: 0.0 }; 2];
            choose(&ExpertSpec { scale: 2.5, ..spec(3, 2, normalize) }, &logits, &[], &mut [0.0; 3], &mut choices);
            for (choice, expert) in choices.iter().zip([2, 0]) {
                let expected = 2.5 * f64::from(logits[expert]).exp() / sum;
                assert_eq!(choice.expert, expert);
                assert!((f64::from(choice.weight) - expected).abs() < 1e-6, "{choices:?}");
            }
        }
    }

    #[test]
    fn pairs_are_sorted_by_expert() {
        let spec = spec(5, 2, true);
        let mut routes = Routes::new(&spec, 4);
        let experts = [3, 1, 1, 0, 3, 4, 0, 1];
        for (choice, expert) in routes.choices.iter_mut().zip(experts) {
            choice.expert = expert;
        }
        routes.sort(&spec, 8);
        assert_eq!(routes.starts, [0, 2, 5, 5, 7, 8]);
        assert_eq!(routes.places, [5, 2, 3, 0, 6, 7, 1, 4]);
        assert_eq!(routes.rows, [1, 3, 0, 1, 3, 0, 2, 2]);
        // Fewer rows than before.
        assert_eq!(routes.sort(&spec, 2), 2);
        assert_eq!(routes.starts, [0, 0, 1, 1, 2, 2]);
        assert_eq!(routes.places[..2], [1, 0]);
        // Pairs of other processors have no place.
        [0, 3, 4, 5].into_iter().for_each(|pair| routes.choices[pair].expert = NO_EXPERT as usize);
        assert_eq!(routes.sort(&spec, 8), 4);
        assert_eq!(routes.starts, [0, 1, 4, 4, 4, 4]);
        assert_eq!(
            (&routes.rows[..4], [1, 2, 6, 7].map(|pair| routes.places[pair])),
            (&[3, 0, 1, 3][..], [1, 2, 0, 3])
        );
    }
}
