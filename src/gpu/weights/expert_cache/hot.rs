//! Which experts have a place in the cache: those that were used most, by counts that fade. Numbers only.

use std::cmp::Ordering;

/// The factor of earlier uses at each count. They count half after about 22.
const FADE: f32 = 31.0 / 32.0;
/// The uses, in fading counts, that justify a copy into an empty slot.
const LEAST_USES: f32 = 2.0;
/// A cached expert is replaced only by one that was used more often by this factor, so that no two alternate.
const GAIN: f32 = 1.5;

/// An expert that gets a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub slot: usize,
    pub expert: usize,
}

/// The experts of all layers, by their numbers, and the slots of the cache.
pub(super) struct Hot {
    uses: Vec<f32>,
    /// The slot of each expert.
    places: Vec<Option<usize>>,
    /// The expert in each slot.
    slots: Vec<Option<usize>>,
}

impl Hot {
    pub(super) fn new(experts: usize, slots: usize) -> Self {
        Self { uses: vec![0.0; experts], places: vec![None; experts], slots: vec![None; slots] }
    }

    /// Returns the slot of each expert.
    pub(super) fn places(&self) -> &[Option<usize>] {
        &self.places
    }

    /// Takes the uses of each expert since the last count.
    pub(super) fn count(&mut self, uses: impl Iterator<Item = u32>) {
        for (sum, new) in self.uses.iter_mut().zip(uses) {
            *sum = *sum * FADE + new as f32;
        }
    }

    /// Chooses at most `most` experts that are worth a slot, the most used first. Empty slots are filled before others
    /// are replaced, and then the least used experts go first.
    pub(super) fn choose(&self, most: usize) -> Vec<Change> {
        let of_slot = |slot: usize| self.slots[slot].map_or(-1.0, |expert| self.uses[expert]);
        let mut experts: Vec<usize> =
            (0..self.uses.len()).filter(|&e| self.places[e].is_none() && self.uses[e] >= LEAST_USES).collect();
        first(&mut experts, most, |a, b| self.uses[b].total_cmp(&self.uses[a]).then(a.cmp(&b)));
        let mut slots: Vec<usize> = (0..self.slots.len()).collect();
        first(&mut slots, experts.len(), |a, b| of_slot(a).total_cmp(&of_slot(b)).then(a.cmp(&b)));
        let pairs = slots.into_iter().zip(experts).map(|(slot, expert)| Change { slot, expert });
        pairs.take_while(|change| self.uses[change.expert] > of_slot(change.slot) * GAIN).collect()
    }

    /// Empties a slot.
    pub(super) fn empty(&mut self, slot: usize) {
        if let Some(expert) = self.slots[slot].take() {
            self.places[expert] = None;
        }
    }

    /// Puts an expert into an empty slot.
    pub(super) fn fill(&mut self, Change { slot, expert }: Change) {
        self.slots[slot] = Some(expert);
        self.places[expert] = Some(slot);
    }
}

/// Keeps the first `most` elements in this order, sorted.
fn first(all: &mut Vec<usize>, most: usize, order: impl Fn(usize, usize) -> Ordering) {
    if most < all.len() {
        all.select_nth_unstable_by(most, |&a, &b| order(a, b));
        all.truncate(most);
    }
    all.sort_unstable_by(|&a, &b| order(a, b));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(hot: &mut Hot, most: usize) -> Vec<usize> {
        let changes = hot.choose(most);
        for &change in &changes {
            hot.empty(change.slot);
            hot.fill(change);
        }
        changes.iter().map(|change| change.expert).collect()
    }

    #[test]
    fn the_most_used_experts_get_the_slots() {
        let mut hot = Hot::new(6, 2);
        assert!(apply(&mut hot, 9).is_empty());
        hot.count([1, 5, 0, 9, 2, 5].into_iter());
        assert_eq!(apply(&mut hot, 1), [3]);
        assert_eq!(apply(&mut hot, 9), [1]);
        assert!(apply(&mut hot, 9).is_empty());
        // A little more than a cached one is not enough. Then the least used one makes room.
        hot.count([0, 1, 0, 0, 0, 2].into_iter());
        assert!(apply(&mut hot, 9).is_empty());
        hot.count([0, 0, 0, 0, 0, 9].into_iter());
        assert_eq!(apply(&mut hot, 9), [5]);
        assert_eq!(hot.places(), [None, None, None, Some(0), None, Some(1)]);
    }

    #[test]
    fn old_uses_fade() {
        let mut hot = Hot::new(2, 1);
        hot.count([100, 0].into_iter());
        assert_eq!(apply(&mut hot, 1), [0]);
        let counts = (1..).find(|_| {
            hot.count([0, 8].into_iter());
            apply(&mut hot, 1) == [1]
        });
        assert_eq!(counts, Some(15));
    }

    proptest! {
        /// Slots and places agree, no expert has two slots, and no round makes more changes than allowed. Under
        /// constant uses, the cache settles.
        #[test]
        fn the_cache_settles(uses in prop::collection::vec(0..20u32, 1..40), slots in 0..12usize, most in 1..5usize) {
            let mut hot = Hot::new(uses.len(), slots);
            for _ in 0..60 {
                hot.count(uses.iter().copied());
                prop_assert!(apply(&mut hot, most).len() <= most);
                for (slot, expert) in hot.slots.iter().enumerate() {
                    if let Some(expert) = *expert {
                        prop_assert_eq!(hot.places[expert], Some(slot));
                    }
                }
                prop_assert_eq!(hot.places.iter().flatten().count(), hot.slots.iter().flatten().count());
            }
            hot.count(uses.iter().copied());
            prop_assert_eq!(hot.choose(most), vec![]);
            // Nothing outside is used much more than anything inside.
            let least = hot.slots.iter().map(|slot| slot.map_or(0.0, |expert| hot.uses[expert])).fold(f32::MAX, f32::min);
            for (expert, place) in hot.places.iter().enumerate() {
                prop_assert!(place.is_some() || hot.uses[expert] <= (least * GAIN).max(LEAST_USES));
            }
        }
    }
}
