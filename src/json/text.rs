//! Strings of a JSON text.

use std::borrow::Cow;

const HIGH: std::ops::Range<u32> = 0xD800..0xDC00;
const LOW: std::ops::Range<u32> = 0xDC00..0xE000;

/// A string between its quotes, with its escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    raw: &'a str,
    escapes: usize,
}

/// A string that JSON can write and UTF-8 cannot: half surrogate pairs are in it as three bytes each.
#[derive(Debug, PartialEq, Eq)]
pub struct LoneSurrogates(pub Vec<u8>);

impl<'a> Text<'a> {
    /// `raw` has this many escapes, all of which are valid.
    pub(super) fn new(raw: &'a str, escapes: usize) -> Self {
        Self { raw, escapes }
    }

    pub fn escapes(&self) -> usize {
        self.escapes
    }

    /// The number of bytes, with those of escapes.
    pub fn num_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Returns the string.
    ///
    /// # Errors
    /// `LoneSurrogates` for one that has such.
    pub fn decode(&self) -> Result<Cow<'a, str>, LoneSurrogates> {
        if self.escapes == 0 {
            return Ok(Cow::Borrowed(self.raw));
        }
        let mut made = Vec::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some((plain, escape)) = rest.split_once('\\') {
            made.extend_from_slice(plain.as_bytes());
            let (code, length) = code_of(escape);
            push_code(&mut made, code);
            rest = &escape[length..];
        }
        made.extend_from_slice(rest.as_bytes());
        String::from_utf8(made).map(Cow::Owned).map_err(|error| LoneSurrogates(error.into_bytes()))
    }
}

/// Returns the code point of an escape, and its length without the backslash. Two escapes may be one code point.
fn code_of(escape: &str) -> (u32, usize) {
    let simple = match escape.as_bytes().first() {
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => 10,
        Some(b'r') => 13,
        Some(b't') => 9,
        Some(b'u') => {
            let first = unit_of(&escape[1..]);
            let next = escape[5..].strip_prefix("\\u").map(unit_of);
            return match next.filter(|next| HIGH.contains(&first) && LOW.contains(next)) {
                Some(next) => (0x10000 + ((first - HIGH.start) << 10) + (next - LOW.start), 11),
                None => (first, 5),
            };
        }
        Some(other) => u32::from(*other),
        None => 0,
    };
    (simple, 1)
}

fn unit_of(digits: &str) -> u32 {
    u32::from_str_radix(&digits[..4], 16).unwrap_or_default()
}

fn push_code(made: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(letter) => made.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        // The bytes that UTF-8 would have for a surrogate.
        None => made.extend([0xE0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]),
    }
}
