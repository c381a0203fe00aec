//! Which weight goes into which staging buffer, and when: numbers only.
//!
//! The weights of a step are copied in the order in which the last step of its kind used them. A step that uses another
//! weight next gets it all the same, and the copies ahead start again behind it.

use std::collections::VecDeque;

/// The places of weights in the staging buffers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Belt {
    /// For each kind of step, weights in the order in which the last one used them.
    orders: Vec<Vec<usize>>,
    /// The kind of this step.
    kind: usize,
    /// Weights that this step has used so far.
    used: Vec<usize>,
    /// Index in the order of the weight that is copied next.
    next: usize,
    /// Weights that are copied and not used yet, with their buffers.
    ahead: VecDeque<Fetch>,
    free: VecDeque<usize>,
    /// Buffers whose weights are in use.
    held: Vec<usize>,
}

/// A weight, and the buffer that it is copied into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fetch {
    pub weight: usize,
    pub buffer: usize,
}

/// The buffer of a weight that is used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub buffer: usize,
    /// True if the copy was queued ahead.
    pub is_there: bool,
}

impl Belt {
    /// Creates a belt of this many buffers. `orders` has the weights that the first step of each kind is expected to
    /// use.
    pub(super) fn new(orders: Vec<Vec<usize>>, buffers: usize) -> Self {
        Self {
            orders,
            kind: 0,
            used: Vec::new(),
            next: 0,
            ahead: VecDeque::new(),
            free: (0..buffers).collect(),
            held: Vec::new(),
        }
    }

    /// Begins a step of a kind, with all buffers free.
    pub(super) fn begin(&mut self, kind: usize) {
        if !self.used.is_empty() {
            std::mem::swap(&mut self.orders[self.kind], &mut self.used);
            self.used.clear();
        }
        self.kind = kind;
        self.next = 0;
        self.drop_ahead();
        self.release();
    }

    /// Returns the next copy to queue; `None` if no buffer is free, or no weight is left.
    pub(super) fn fetch(&mut self) -> Option<Fetch> {
        let &weight = self.orders[self.kind].get(self.next)?;
        let fetch = Fetch { weight, buffer: self.free.pop_front()? };
        self.next += 1;
        self.ahead.push_back(fetch);
        Some(fetch)
    }

    /// Takes the buffer of the weight that is used next. `None` if all buffers are in use.
    pub(super) fn take(&mut self, weight: usize) -> Option<Taken> {
        let is_there = self.ahead.front().is_some_and(|fetch| fetch.weight == weight);
        let buffer = match is_there {
            true => self.ahead.pop_front()?.buffer,
            false => {
                self.drop_ahead();
                if let Some(at) = self.orders[self.kind].iter().position(|&known| known == weight) {
                    self.next = at + 1;
                }
                self.free.pop_front()?
            }
        };
        self.used.push(weight);
        self.held.push(buffer);
        Some(Taken { buffer, is_there })
    }

    /// Returns the buffers whose weights are in use.
    pub(super) fn held(&self) -> &[usize] {
        &self.held
    }

    /// Frees the buffers in use.
    pub(super) fn release(&mut self) {
        self.free.extend(self.held.drain(..));
    }

    /// Yields the buffers of weights that were copied and not used.
    pub(super) fn unused(&self) -> impl Iterator<Item = usize> {
        self.ahead.iter().map(|fetch| fetch.buffer)
    }

    fn drop_ahead(&mut self) {
        self.free.extend(self.ahead.drain(..).map(|fetch| fetch.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fetch_all(belt: &mut Belt) -> Vec<usize> {
        std::iter::from_fn(|| belt.fetch()).map(|fetch| fetch.weight).collect()
    }

    #[test]
    fn weights_come_in_the_order_of_the_last_step() {
        let mut belt = Belt::new(vec![vec![0, 1, 2, 3]], 3);
        belt.begin(0);
        assert_eq!(fetch_all(&mut belt), [0, 1, 2]);
        // The model uses them in another order, and leaves one out.
        for (weight, is_there, ahead) in [(0, true, &[3][..]), (2, false, &[3]), (1, false, &[2, 3])] {
            assert_eq!(belt.take(weight).map(|taken| taken.is_there), Some(is_there), "{weight}");
            belt.release();
            assert_eq!(fetch_all(&mut belt), ahead, "{weight}");
        }
        belt.begin(0);
        assert_eq!(fetch_all(&mut belt), [0, 2, 1]);
        for weight in [0, 2, 1] {
            assert!(belt.take(weight).is_some_and(|taken| taken.is_there), "{weight}");
            belt.release();
            assert!(fetch_all(&mut belt).is_empty());
        }
        // A step without any does not change what is expected.
        belt.begin(0);
        belt.begin(0);
        assert_eq!(fetch_all(&mut belt), [0, 2, 1]);
    }

    /// Steps that copy only some of the weights do not change what others expect.
    #[test]
    fn each_kind_of_step_has_an_order() {
        let mut belt = Belt::new(vec![vec![0, 2], vec![0, 1, 2, 3]], 2);
        for (kind, weights) in [(1, &[0, 1, 2, 3][..]), (0, &[0, 2]), (1, &[0, 1, 2, 3]), (0, &[0, 2])] {
            belt.begin(kind);
            for (at, &weight) in weights.iter().enumerate() {
                let ahead = if at == 0 { 0..2 } else { at + 1..(at + 2).min(weights.len()) };
                assert_eq!(fetch_all(&mut belt), weights[ahead], "{kind} {weight}");
                assert!(belt.take(weight).is_some_and(|taken| taken.is_there), "{kind} {weight}");
                belt.release();
            }
        }
    }

    #[test]
    fn weights_in_use_keep_their_buffers() {
        let mut belt = Belt::new(vec![vec![0, 1, 2]], 2);
        belt.begin(0);
        assert_eq!(fetch_all(&mut belt), [0, 1]);
        let held = [0, 1].map(|weight| belt.take(weight).unwrap().buffer);
        assert_eq!((belt.fetch(), belt.take(2)), (None, None));
        assert_eq!(belt.held(), held);
        belt.release();
        assert_eq!(belt.take(2), Some(Taken { buffer: held[0], is_there: false }));
    }

    proptest! {
        /// Each buffer is free, ahead or in use, whatever a step uses in any order. A weight that is taken was the last
        /// one that was copied into its buffer.
        #[test]
        fn buffers_have_one_use(steps in prop::collection::vec(prop::collection::vec((0..5usize, any::<bool>()), 0..12), 1..5),
                                buffers in 1..4usize) {
            let mut belt = Belt::new(vec![(0..5).collect(); 2], buffers);
            let mut content = vec![None; buffers];
            for (number, step) in steps.into_iter().enumerate() {
                belt.begin(number % 2);
                for (weight, releases) in step {
                    while let Some(fetch) = belt.fetch() {
                        prop_assert!(!belt.held().contains(&fetch.buffer));
                        content[fetch.buffer] = Some(fetch.weight);
                    }
                    let before = belt.held().to_vec();
                    match belt.take(weight) {
                        Some(Taken { buffer, is_there }) => {
                            prop_assert!(!before.contains(&buffer));
                            if !is_there {
                                content[buffer] = Some(weight);
                            }
                            prop_assert_eq!(content[buffer], Some(weight));
                        }
                        None => prop_assert_eq!(before.len(), buffers),
                    }
                    let mut all: Vec<usize> =
                        belt.free.iter().copied().chain(belt.unused()).chain(belt.held().iter().copied()).collect();
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..buffers).collect::<Vec<_>>());
                    if releases {
                        belt.release();
                    }
                }
            }
        }
    }
}
