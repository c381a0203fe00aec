//! The byte-level alphabet of GPT-2. Every byte is one printable character, so that vocabularies are plain text.
//!
//! Printable bytes of Latin-1 (`!`–`~`, `¡`–`¬`, `®`–`ÿ`) stand for themselves. The other 68 are U+0100 upwards in
//! order: a space is `Ġ`, a newline `Ċ`.

const fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const ENCODE: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = if printable(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => '\0',
            }
        };
        byte += 1;
    }
    table
};

/// The byte of each character from U+0000 to U+0143; `None` for characters outside the alphabet.
const DECODE: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let mut byte = 0usize;
    while byte < 256 {
        table[ENCODE[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    table
};

pub(super) fn char_of(byte: u8) -> char {
    ENCODE[byte as usize]
}

/// Appends the bytes that `text` spells. A token with a character outside the alphabet was added by hand and stands for
/// its own text, as in the models' own tokenizers.
pub(super) fn decode(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        match DECODE.get(c as usize) {
            Some(Some(byte)) => out.push(*byte),
            _ => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}
