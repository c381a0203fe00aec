//! Numbers and strings in a template's source.

use super::token::Token;
use crate::template::fault::{Fault, Res};

/// Returns the number at the start of `source`, and its length in bytes. After a dot it is an index, without a
/// fraction.
pub(in crate::template) fn number(source: &str, after_dot: bool) -> Res<(Token, usize)> {
    let bytes = source.as_bytes();
    let radix = match (bytes.first(), bytes.get(1).map(u8::to_ascii_lowercase)) {
        (Some(b'0'), Some(b'b')) => 2,
        (Some(b'0'), Some(b'o')) => 8,
        (Some(b'0'), Some(b'x')) => 16,
        _ => 10,
    };
    if radix != 10 {
        let end = 2 + digits(&bytes[2..], radix);
        return Ok((Token::Int(integer(&source[2..end], radix)?), end));
    }
    let whole = digits(bytes, 10);
    let mut end = whole;
    if !after_dot {
        if bytes.get(end) == Some(&b'.') {
            let fraction = digits(&bytes[end + 1..], 10);
            end += if fraction > 0 { 1 + fraction } else { 0 };
        }
        if bytes.get(end).is_some_and(|b| b.eq_ignore_ascii_case(&b'e')) {
            let sign = usize::from(bytes.get(end + 1).is_some_and(|b| matches!(b, b'+' | b'-')));
            let exponent = bytes.get(end + 1 + sign..).map_or(0, |rest| digits(rest, 10));
            end += if exponent > 0 { 1 + sign + exponent } else { 0 };
        }
    }
    if end == whole {
        return Ok((Token::Int(integer(&source[..whole], 10)?), whole));
    }
    let value = source[..end].replace('_', "").parse().map_err(|_| bad_number(&source[..end]))?;
    Ok((Token::Float(value), end))
}

/// Returns the bytes of digits, with single underscores between them.
fn digits(bytes: &[u8], radix: u32) -> usize {
    let digit = |at: usize| bytes.get(at).is_some_and(|&b| char::from(b).is_digit(radix));
    let mut end = 0;
    while digit(end) || (end > 0 && bytes.get(end) == Some(&b'_') && digit(end + 1)) {
        end += 1;
    }
    end
}

fn integer(text: &str, radix: u32) -> Res<i128> {
    i128::from_str_radix(&text.replace('_', ""), radix).map_err(|_| bad_number(text))
}

fn bad_number(text: &str) -> Fault {
    Fault::new(format!("'{text}' is not a number of at most 127 bits"))
}

/// Returns the string literal at the start of `source`, and its length in bytes.
pub(in crate::template) fn string(source: &str) -> Res<(Box<str>, usize)> {
    let quote = source.as_bytes()[0];
    let mut escaped = false;
    let end = source.bytes().enumerate().skip(1).find_map(|(at, byte)| {
        let closes = byte == quote && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes.then_some(at)
    });
    let end = end.ok_or_else(|| Fault::new("a string is not closed"))?;
    Ok((unescape(&source[1..end])?.into(), end + 1))
}

/// Resolves Python's escapes.
fn unescape(text: &str) -> Res<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else { break };
        rest = &rest[kind.len_utf8()..];
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(kind),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                let code = u32::from_str_radix(&format!("{kind}{}", &rest[..more]), 8).unwrap_or(0);
                rest = &rest[more..];
                out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            'x' => out.push(hexadecimal(&mut rest, 2)?),
            'u' => out.push(hexadecimal(&mut rest, 4)?),
            'U' => out.push(hexadecimal(&mut rest, 8)?),
            'N' => return Err(Fault::new("the escape \\N{name} of a character's name is not supported, write \\u")),
            other => out.extend(['\\', other]),
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn hexadecimal(rest: &mut &str, digits: usize) -> Res<char> {
    let code = |text: &str| text.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let bad = || Fault::new(format!("an escape in a string needs {digits} hexadecimal digits of a character"));
    let first = code(rest).ok_or_else(bad)?;
    *rest = &rest[digits..];
    // A character beyond U+FFFF may be written as two surrogates.
    let second = rest.strip_prefix("\\u").filter(|_| (0xD800..0xDC00).contains(&first)).and_then(code);
    if let Some(low) = second.filter(|low| (0xDC00..0xE000).contains(low)) {
        *rest = &rest[2 + digits..];
        return char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + (low - 0xDC00)).ok_or_else(bad);
    }
    char::from_u32(first).ok_or_else(bad)
}
