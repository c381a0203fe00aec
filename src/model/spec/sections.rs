//! RoPE with three positions (M-RoPE; arXiv 2409.12191, section 2.1): time, row and column for a token of an image, and
//! three equal ones for text. Each pair of a head rotates with one of them.

/// Assigns one of the three positions to each pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections {
    /// The numbers of pairs that rotate with the time, the row and the column.
    pub(crate) counts: [usize; 3],
    /// True if the three alternate and the remaining pairs rotate with the time. Otherwise they are consecutive.
    pub(crate) interleaved: bool,
}

impl Sections {
    /// Returns the position of a pair: 0, 1 or 2.
    pub fn position_of(self, pair: usize) -> usize {
        let [time, row, _] = self.counts;
        match self.interleaved {
            true => {
                let which = pair % 3;
                if which > 0 && pair < 3 * self.counts[which] { which } else { 0 }
            }
            false => usize::from(pair >= time) + usize::from(pair >= time + row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_its_position() {
        let of = |counts, interleaved| {
            let sections = Sections { counts, interleaved };
            (0..counts.iter().sum()).map(|pair| sections.position_of(pair)).collect::<Vec<_>>()
        };
        assert_eq!(of([2, 3, 1], false), [0, 0, 1, 1, 1, 2]);
        assert_eq!(of([3, 2, 2], true), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(of([4, 2, 1], true), [0, 1, 2, 0, 1, 0, 0]);
    }
}
