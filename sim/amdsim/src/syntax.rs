//! The syntax of an instruction's text: mnemonic, operands, modifiers.

use std::cell::Cell;

use crate::wave::{sgpr, vgpr};

/// One instruction's text in parts. Modifiers that no decoder reads are an error: see [`Text::unused`].
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub mnemonic: String,
    pub operands: Vec<String>,
    modifiers: Vec<(String, String, Cell<bool>)>,
}

impl Text {
    pub(crate) fn parse(text: &str) -> Self {
        let (mnemonic, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mut operands = split_outside_brackets(rest, ',');
        let mut modifiers = Vec::new();
        if let Some(last) = operands.pop() {
            let mut words = split_outside_brackets(&last, ' ').into_iter().filter(|word| !word.is_empty());
            operands.extend(words.next());
            for word in words {
                let (name, value) = word.split_once(':').unwrap_or((&word, ""));
                modifiers.push((name.to_owned(), value.to_owned(), Cell::new(false)));
            }
        }
        Self { mnemonic: mnemonic.to_owned(), operands, modifiers }
    }

    /// Returns the value of a modifier, empty if it has none.
    pub(crate) fn modifier(&self, name: &str) -> Option<&str> {
        let (_, value, used) = self.modifiers.iter().find(|(n, ..)| n == name)?;
        used.set(true);
        Some(value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.modifier(name).is_some()
    }

    /// Returns a list such as `op_sel:[0,1]`.
    pub(crate) fn bits(&self, name: &str) -> Option<Vec<bool>> {
        let list = self.modifier(name)?.strip_prefix('[')?.strip_suffix(']')?;
        Some(list.split(',').map(|bit| bit.trim() == "1").collect())
    }

    /// Returns a modifier that nothing has read yet.
    pub(crate) fn unused(&self) -> Option<&str> {
        self.modifiers.iter().find(|(.., used)| !used.get()).map(|(name, ..)| name.as_str())
    }

    /// Replaces a register in the operands' text, keeping `-`, `|x|`.
    pub(crate) fn replace_register(&mut self, operand: usize, register: u16) {
        let Some(text) = self.operands.get_mut(operand) else { return };
        let inner = text.trim_start_matches(['-', '|']).trim_end_matches('|');
        *text = text.replacen(inner, &format!("v{register}"), 1);
    }
}

fn split_outside_brackets(text: &str, separator: char) -> Vec<String> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ if letter == separator && depth == 0 => {
                parts.push(text[start..at].trim().to_owned());
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        parts.push(last.to_owned());
    }
    parts
}

/// A register, or the first of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Vgpr { first: u16, count: u16 },
    Sgpr { first: u16, count: u16 },
}

impl Register {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let named = |first, count| Some(Self::Sgpr { first, count });
        match text {
            "vcc" => return named(sgpr::VCC, 2),
            "vcc_lo" => return named(sgpr::VCC, 1),
            "vcc_hi" => return named(sgpr::VCC + 1, 1),
            "exec" => return named(sgpr::EXEC, 2),
            "exec_lo" => return named(sgpr::EXEC, 1),
            "exec_hi" => return named(sgpr::EXEC + 1, 1),
            "m0" => return named(sgpr::M0, 1),
            "null" => return named(sgpr::NULL, 1),
            "flat_scratch" => return named(sgpr::FLAT_SCRATCH, 2),
            "flat_scratch_lo" => return named(sgpr::FLAT_SCRATCH, 1),
            "flat_scratch_hi" => return named(sgpr::FLAT_SCRATCH + 1, 1),
            "xnack_mask" => return named(sgpr::XNACK_MASK, 2),
            "xnack_mask_lo" => return named(sgpr::XNACK_MASK, 1),
            "xnack_mask_hi" => return named(sgpr::XNACK_MASK + 1, 1),
            _ => {}
        }
        let digits = text.find(|letter: char| letter.is_ascii_digit() || letter == '[')?;
        let (file, range) = text.split_at(digits);
        let (first, last) = match range.strip_prefix('[') {
            Some(range) => {
                let range = range.strip_suffix(']')?;
                range.split_once(':').unwrap_or((range, range))
            }
            None => (range, range),
        };
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        let count = last.checked_sub(first)? + 1;
        let end = usize::from(first) + usize::from(count);
        match file {
            "v" if end <= vgpr::COUNT => Some(Self::Vgpr { first, count }),
            "a" if end <= usize::from(vgpr::ACC) => Some(Self::Vgpr { first: vgpr::ACC + first, count }),
            "s" if end <= usize::from(sgpr::VCC) => Some(Self::Sgpr { first, count }),
            "ttmp" if end <= 16 => Some(Self::Sgpr { first: sgpr::TTMP + first, count }),
            _ => None,
        }
    }
}

/// A constant in the text; its bits depend on the operand's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Constant {
    /// `5`, `-16`: an inline integer.
    Integer(i64),
    /// `0x1234`: bits from the instruction stream.
    Literal(u64),
    /// `0.5`, `-4.0`, `0.15915494`.
    Float(f64),
}

impl Constant {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // A literal that could be an inline constant is printed as `lit(...)`.
        let text = text.strip_prefix("lit(").and_then(|text| text.strip_suffix(')')).unwrap_or(text);
        if let Some(hex) = text.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).ok().map(Self::Literal);
        }
        if let Ok(value) = text.parse::<i64>() {
            return Some(Self::Integer(value));
        }
        if text.trim_start_matches('-').starts_with("0.159154") {
            return Some(Self::Float(if text.starts_with('-') { -1.0 } else { 1.0 } / std::f64::consts::TAU));
        }
        text.parse::<f64>().ok().filter(|value| value.is_finite()).map(Self::Float)
    }
}

/// Parses an integer in decimal or hexadecimal, the form of offsets and immediates.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_instruction() {
        let text = Text::parse("v_pk_fma_f32 v[4:5], -v[8:9], |s2|, 0x10 op_sel_hi:[0,1,1] clamp");
        assert_eq!(text.mnemonic, "v_pk_fma_f32");
        assert_eq!(text.operands, ["v[4:5]", "-v[8:9]", "|s2|", "0x10"]);
        assert_eq!(text.bits("op_sel_hi"), Some(vec![false, true, true]));
        assert_eq!(text.unused(), Some("clamp"));
        assert!(text.has("clamp") && !text.has("offset"));
        assert_eq!(text.unused(), None);
        let swizzle = Text::parse("ds_swizzle_b32 v2, v1 offset:swizzle(SWAP,1)");
        assert_eq!((swizzle.operands.len(), swizzle.modifier("offset")), (2, Some("swizzle(SWAP,1)")));
    }

    #[test]
    fn registers() {
        assert_eq!(Register::parse("v[4:7]"), Some(Register::Vgpr { first: 4, count: 4 }));
        assert_eq!(Register::parse("a3"), Some(Register::Vgpr { first: 259, count: 1 }));
        assert_eq!(Register::parse("ttmp9"), Some(Register::Sgpr { first: sgpr::TTMP + 9, count: 1 }));
        assert_eq!(Register::parse("s106"), None);
        assert_eq!(Register::parse("0x10"), None);
    }

    #[test]
    fn constants() {
        assert_eq!(Constant::parse("-16"), Some(Constant::Integer(-16)));
        assert_eq!(Constant::parse("0x3f800000"), Some(Constant::Literal(0x3f80_0000)));
        assert_eq!(Constant::parse("lit(0xffffffff)"), Some(Constant::Literal(0xffff_ffff)));
        assert_eq!(Constant::parse("-4.0"), Some(Constant::Float(-4.0)));
        assert_eq!(Constant::parse("0.15915494"), Some(Constant::Float(1.0 / std::f64::consts::TAU)));
        assert_eq!(Constant::parse("v1"), None);
    }
}
