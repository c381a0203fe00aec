//! The character map of a SentencePiece model (`tokenizer.ggml.precompiled_charsmap`): character sequences and their
//! replacements. Source of the format: SentencePiece's normalizer. The map is a double-array trie of Darts-clone, whose
//! leaves are offsets into the replacements after it.

use crate::Result;
use crate::gguf::Metadata;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// The bit of a unit that marks the offset of a replacement.
const IS_VALUE: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    /// The replacements, each followed by a NUL.
    replacements: Box<str>,
}

impl CharsMap {
    /// Returns `None` for a file without a map; then text stays unchanged.
    ///
    /// # Errors
    /// `ModelFile` for a truncated map, or one whose leaves are not replacements.
    pub(super) fn new(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(values) = metadata.opt_ints(KEY)? else { return Ok(None) };
        // Files store signed or unsigned bytes.
        let bytes: Option<Vec<u8>> = values.iter().map(|&v| (-128..256).contains(&v).then_some(v as u8)).collect();
        let bytes = bytes.ok_or_else(|| metadata.error(KEY, "holds numbers that are no bytes"))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let cut = || metadata.error(KEY, format!("has {} bytes, fewer than it says", bytes.len()));
        let (size, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
        let (units, replacements) = rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or_else(cut)?;
        let units: Vec<u32> = units.as_chunks().0.iter().map(|&unit| u32::from_le_bytes(unit)).collect();
        let replacements = std::str::from_utf8(replacements).ok().filter(|all| all.ends_with('\0') || all.is_empty());
        let map = replacements.map(|replacements| Self { units, replacements: replacements.into() });
        let offsets = |map: &Self| {
            let mut offsets = map.units.iter().filter(|&unit| unit & IS_VALUE != 0).map(|unit| unit & !IS_VALUE);
            offsets.all(|offset| (offset as usize) < map.replacements.len() && map.replacement(offset).is_some())
        };
        let map = map.filter(offsets);
        map.map(Some).ok_or_else(|| metadata.error(KEY, "holds leaves that are no replacements in UTF-8"))
    }

    fn replacement(&self, offset: u32) -> Option<&str> {
        self.replacements.get(offset as usize..)?.split('\0').next()
    }

    /// Returns the longest prefix of the text that has a replacement: its bytes, and the replacement.
    pub(super) fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let unit = |index: u32| self.units.get(index as usize).copied();
        let base = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let (mut index, mut found) = (base(unit(0)?), None);
        for (at, byte) in text.bytes().enumerate() {
            index ^= u32::from(byte);
            // A value's unit has its bit next to the label, so it is not a child.
            let Some(child) = unit(index).filter(|unit| unit & (IS_VALUE | 0xff) == u32::from(byte)) else { break };
            index ^= base(child);
            let has_value = child & (1 << 8) != 0;
            let value = unit(index).filter(|unit| has_value && unit & IS_VALUE != 0);
            let end = at + 1;
            if let Some(value) = value.filter(|_| text.is_char_boundary(end)) {
                found = Some((end, value & !IS_VALUE));
            }
        }
        found.and_then(|(end, offset)| Some((end, self.replacement(offset)?)))
    }
}
