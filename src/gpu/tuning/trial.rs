//! Reads and replaces numbers of a table by name.

use super::{Attention, Gemv, Matmul, MatmulShape, Tuning};
use crate::config::{Tuned, TunedNumber};

impl Tuning {
    /// Returns a number of the table; `None` if the table has no such entry.
    pub fn number(&self, number: TunedNumber) -> Option<u32> {
        Some(match number {
            TunedNumber::GemvBlocks => self.gemv.blocks,
            TunedNumber::MatmulSplits => self.matmul.most_splits,
            TunedNumber::AttentionBlocks => self.attention.blocks,
            TunedNumber::AttentionPerHeadBlocks => self.attention.per_head_blocks,
            of_shape => self.matmul.shapes.get(shape_of(of_shape)?)?.blocks,
        })
    }

    /// Returns the table with these numbers replaced.
    pub(crate) fn with(self, numbers: &[Tuned]) -> Self {
        numbers.iter().fold(self, |table, &(number, value)| match number {
            TunedNumber::GemvBlocks => Self { gemv: Gemv { blocks: value, ..table.gemv }, ..table },
            TunedNumber::MatmulSplits => Self { matmul: Matmul { most_splits: value, ..table.matmul }, ..table },
            TunedNumber::AttentionBlocks => Self { attention: Attention { blocks: value, ..table.attention }, ..table },
            TunedNumber::AttentionPerHeadBlocks => {
                Self { attention: Attention { per_head_blocks: value, ..table.attention }, ..table }
            }
            of_shape => {
                let mut shapes: Vec<MatmulShape> = table.matmul.shapes.to_vec();
                if let Some(shape) = shape_of(of_shape).and_then(|at| shapes.get_mut(at)) {
                    shape.blocks = value;
                }
                // Tables must be `'static`. A process leaks one of these per load with such numbers.
                Self { matmul: Matmul { shapes: shapes.leak(), ..table.matmul }, ..table }
            }
        })
    }
}

/// Returns the index of a number's shape in the table.
fn shape_of(number: TunedNumber) -> Option<usize> {
    match number {
        TunedNumber::MatmulBlocks8 => Some(0),
        TunedNumber::MatmulBlocks16 => Some(1),
        TunedNumber::MatmulBlocks32 => Some(2),
        TunedNumber::MatmulBlocks => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ALL;
    use super::*;

    /// Each name reads and replaces its own number, and nothing else changes.
    #[test]
    fn numbers_take_the_place_of_the_tables() {
        for (_, table) in ALL {
            assert_eq!(table.with(&[]), *table);
            for number in TunedNumber::ALL {
                let own = table.number(number).unwrap();
                let other = if own == 4 { 2 } else { 4 };
                let changed = table.with(&[(number, other)]);
                for asked in TunedNumber::ALL {
                    let expected = if asked == number { Some(other) } else { table.number(asked) };
                    assert_eq!(changed.number(asked), expected, "{number:?} {asked:?}");
                }
                assert_eq!(changed.with(&[(number, own)]), *table);
            }
            let limits: Vec<u32> = table.matmul.shapes.iter().map(|shape| shape.most_rows).collect();
            assert_eq!(limits, [8, 16, 32, u32::MAX], "{}", table.family);
        }
    }
}
