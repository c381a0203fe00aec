//! Numbers of a GPU family's table that another number takes the place of: what `rocmforge doctor --tune` tries, and
//! what an owner of a GPU uses until a release has it.

use crate::{Error, Result};

/// A number that kernels are launched by, which depends on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunedNumber {
    GemvBlocks,
    /// Blocks of products of up to 8, 16 and 32 rows, and of more.
    MatmulBlocks8,
    MatmulBlocks16,
    MatmulBlocks32,
    MatmulBlocks,
    MatmulSplits,
    AttentionBlocks,
    AttentionPerHeadBlocks,
}

/// A number that takes the place of the table's.
pub type Tuned = (TunedNumber, u32);

/// The largest value of any of them.
const MOST: u32 = 8;

impl TunedNumber {
    pub const ALL: [Self; 8] = [
        Self::GemvBlocks,
        Self::MatmulBlocks8,
        Self::MatmulBlocks16,
        Self::MatmulBlocks32,
        Self::MatmulBlocks,
        Self::MatmulSplits,
        Self::AttentionBlocks,
        Self::AttentionPerHeadBlocks,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::GemvBlocks => "gemv.blocks",
            Self::MatmulBlocks8 => "matmul.blocks_8",
            Self::MatmulBlocks16 => "matmul.blocks_16",
            Self::MatmulBlocks32 => "matmul.blocks_32",
            Self::MatmulBlocks => "matmul.blocks",
            Self::MatmulSplits => "matmul.splits",
            Self::AttentionBlocks => "attention.blocks",
            Self::AttentionPerHeadBlocks => "attention.per_head_blocks",
        }
    }

    /// Values that are worth a try.
    pub fn candidates(self) -> &'static [u32] {
        match self {
            Self::MatmulSplits => &[1, 2, 4, 8],
            _ => &[1, 2, 4, 6],
        }
    }

    fn takes(self, value: u32) -> bool {
        (1..=MOST).contains(&value) && (self != Self::MatmulSplits || value.is_power_of_two())
    }
}

/// Reads a list: `gemv.blocks=2,matmul.splits=4`.
///
/// # Errors
/// `InvalidRequest` that names the variable `what`, for names and values that there are none of.
pub(super) fn parse(what: &'static str, text: &str) -> Result<Vec<Tuned>> {
    let names: Vec<_> = TunedNumber::ALL.iter().map(|number| number.name()).collect();
    let one = |item: &str| -> Option<Tuned> {
        let (name, value) = item.split_once('=')?;
        let number = TunedNumber::ALL.into_iter().find(|number| number.name() == name.trim())?;
        let value = value.trim().parse().ok()?;
        number.takes(value).then_some((number, value))
    };
    let expected = || {
        format!("a list like gemv.blocks=2 of {}, each 1 to {MOST}, and a power of two for splits", names.join(", "))
    };
    text.split(',').map(|item| one(item).ok_or_else(|| Error::invalid(what, item, expected()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let expected = [(TunedNumber::GemvBlocks, 2), (TunedNumber::MatmulSplits, 4)];
        assert_eq!(parse("V", "gemv.blocks=2, matmul.splits = 4").unwrap(), expected);
        for number in TunedNumber::ALL {
            for &value in number.candidates() {
                let text = format!("{}={value}", number.name());
                assert_eq!(parse("V", &text).unwrap(), [(number, value)]);
            }
        }
        for bad in ["", "gemv.blocks", "gemv=2", "gemv.blocks=0", "gemv.blocks=9", "matmul.splits=3", "gemv.blocks=1,"]
        {
            let error = parse("V", bad).unwrap_err().to_string();
            assert!(error.starts_with("V: got ") && error.contains("attention.per_head_blocks"), "{error}");
        }
    }
}
