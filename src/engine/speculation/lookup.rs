//! N-gram lookup: finds earlier occurrences of a text's last tokens, and proposes the tokens that followed there.
//!
//! It works like the hash chains of a Lempel-Ziv compressor. An entry for the last few tokens at each position leads to
//! the previous position with the same ones. A hash only leads to candidates; their tokens are compared.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::config::SpeculativeConfig;

/// The most candidates that one lookup compares, which bounds the time for a text that repeats a few tokens.
const MAX_PLACES: usize = 16;

/// The tokens of one sequence, and the positions of each run of `shortest` tokens.
#[derive(Debug)]
pub(super) struct Lookup {
    shortest: usize,
    longest: usize,
    prompt: Arc<[u32]>,
    generated: Vec<u32>,
    /// Maps the hash of a run to the last position after such a run, counted in tokens from the start.
    last: HashMap<u64, usize>,
    /// For the position after each run, the previous position with the same hash, or 0. The first run ends at
    /// `shortest`.
    before: Vec<usize>,
}

impl Lookup {
    /// The prompt is not indexed before the first `find`.
    pub(super) fn new(config: &SpeculativeConfig, prompt: Arc<[u32]>) -> Self {
        let (shortest, longest) = (config.prompt_lookup_min, config.prompt_lookup_max);
        Self { shortest, longest, prompt, generated: Vec::new(), last: HashMap::new(), before: Vec::new() }
    }

    pub(super) fn push(&mut self, token: u32) {
        self.generated.push(token);
    }

    fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    fn at(&self, place: usize) -> u32 {
        self.prompt.get(place).copied().unwrap_or_else(|| self.generated[place - self.prompt.len()])
    }

    /// Writes `most` tokens to `found`: those that followed an earlier occurrence of the last tokens. The longest match
    /// wins, and the latest of equally long ones. If the match reaches the end of the text, the found tokens repeat.
    /// Returns the length of the match; 0 if there is none.
    pub(super) fn find(&mut self, most: usize, found: &mut Vec<u32>) -> usize {
        found.clear();
        self.index();
        let end = self.len();
        let (mut best, mut best_run) = (0, 0);
        let mut place = if end < self.shortest { 0 } else { self.before[end - self.shortest] };
        for _ in 0..MAX_PLACES {
            if place == 0 || best_run == self.longest {
                break;
            }
            let run = self.common_run(place, end);
            if run >= self.shortest && run > best_run {
                (best, best_run) = (place, run);
            }
            place = self.before[place - self.shortest];
        }
        if best_run > 0 {
            for place in best..best + most {
                found.push(if place < end { self.at(place) } else { found[place - end] });
            }
        }
        best_run
    }

    /// Returns how many tokens before both positions are equal, up to `longest`.
    fn common_run(&self, place: usize, end: usize) -> usize {
        (1..=self.longest.min(place)).take_while(|&back| self.at(place - back) == self.at(end - back)).count()
    }

    /// Indexes the new runs.
    fn index(&mut self) {
        for end in self.shortest + self.before.len()..=self.len() {
            let run = (end - self.shortest..end).map(|place| u64::from(self.at(place)));
            let hash = run.fold(0u64, |hash, token| (hash.rotate_left(23) ^ token).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            self.before.push(self.last.insert(hash, end).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(prompt: &[u32], generated: &[u32], shortest: usize, longest: usize) -> Lookup {
        let config =
            SpeculativeConfig { prompt_lookup_min: shortest, prompt_lookup_max: longest, ..Default::default() };
        let mut lookup = Lookup::new(&config, prompt.into());
        generated.iter().for_each(|token| lookup.push(*token));
        lookup
    }

    fn find(lookup: &mut Lookup, most: usize) -> (usize, Vec<u32>) {
        let mut found = vec![77];
        let run = lookup.find(most, &mut found);
        (run, found)
    }

    #[test]
    fn what_followed_the_longest_run_is_found() {
        // The latest of the longest runs counts, not the latest of all runs.
        let text = [1, 2, 3, 4, 50, 51, 52, 1, 2, 3, 4, 60, 61, 62, 9, 3, 4, 70, 71, 72];
        let behind = |end: &[u32]| find(&mut lookup(&text, end, 2, 4), 3);
        assert_eq!(behind(&[3, 4]), (2, vec![70, 71, 72]));
        assert_eq!(behind(&[2, 3, 4]), (3, vec![60, 61, 62]));
        assert_eq!(behind(&[1, 2, 3, 4]), (4, vec![60, 61, 62]));
        assert_eq!(behind(&[8, 1, 2, 3, 4]), (4, vec![60, 61, 62]));
        assert_eq!(behind(&[4]), (0, vec![]), "too short a run");
        assert_eq!(behind(&[9, 4]), (0, vec![]));
        assert_eq!(find(&mut lookup(&[5], &[], 2, 4), 3), (0, vec![]));
        assert_eq!(find(&mut lookup(&[5, 5], &[], 2, 4), 3), (0, vec![]));
    }

    /// A periodic text continues periodically.
    #[test]
    fn repetition_goes_on() {
        let mut circle = lookup(&[7, 8, 9], &[7, 8, 9, 7, 8], 2, 4);
        assert_eq!(find(&mut circle, 8), (4, vec![9, 7, 8, 9, 7, 8, 9, 7]));
        assert_eq!(find(&mut lookup(&[4, 4, 4], &[4], 3, 8), 4), (3, vec![4, 4, 4, 4]));
    }

    /// Every lookup agrees with a search of the whole text.
    #[test]
    fn it_finds_what_a_search_finds() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for (vocab, shortest, longest) in [(20, 2, 5), (300, 1, 3), (30, 2, 2), (1000, 3, 8)] {
            let mut text: Vec<u32> = (0..20).map(|_| random(vocab) as u32).collect();
            let mut lookup = lookup(&text, &[], shortest, longest);
            for _ in 0..150 {
                let (end, mut best) = (text.len(), None);
                for place in (shortest..end).rev() {
                    let same = |n: usize| n <= place && text[place - n..place] == text[end - n..];
                    let run = (1..=longest).rev().find(|&n| same(n)).unwrap_or(0);
                    if run >= shortest && best.is_none_or(|(_, longest)| run > longest) {
                        best = Some((place, run));
                    }
                }
                let (run, found) = find(&mut lookup, 3);
                assert_eq!(run, best.map_or(0, |(_, run)| run), "{text:?}");
                for (i, token) in found.iter().enumerate() {
                    let place = best.unwrap().0 + i;
                    assert_eq!(*token, if place < end { text[place] } else { found[place - end] }, "{text:?}");
                }
                // Repeat earlier runs now and then.
                let copied = random(end as u64) as usize;
                let next = if random(3) > 0 { text[copied] } else { random(vocab) as u32 };
                text.push(next);
                lookup.push(next);
            }
        }
    }

    /// A text that repeats one token takes no longer than others, since a lookup compares few positions.
    #[test]
    fn a_look_is_short() {
        let mut lookup = lookup(&vec![3; 200_000], &[], 3, 8);
        for _ in 0..1000 {
            assert_eq!(find(&mut lookup, 4), (8, vec![3; 4]));
            lookup.push(3);
        }
    }
}
