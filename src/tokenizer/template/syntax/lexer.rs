//! Splits a template's source into tokens, with Jinja's white-space rules as transformers sets them: `trim_blocks`,
//! `lstrip_blocks`, and one newline dropped at the end of the source.

use super::literals;
use super::token::Token;
use crate::template::fault::{Fault, Res};

/// Longer symbols come first, so that the first match is correct.
const SYMBOLS: &[&str] = &[
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// Returns the tokens of `source`, each with its line.
pub(super) fn tokens(source: &str) -> Res<Vec<(Token, u32)>> {
    let mut normal = source.replace("\r\n", "\n").replace('\r', "\n");
    if normal.ends_with('\n') {
        normal.pop();
    }
    let mut lexer = Lexer { source: &normal, at: 0, line: 1, line_starting: true, out: Vec::new() };
    match lexer.run() {
        Ok(()) => Ok(lexer.out),
        Err(fault) => Err(fault.at(lexer.line)),
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// True if the last thing read ended a line, so that `lstrip_blocks` may remove the white space before a tag.
    line_starting: bool,
    out: Vec<(Token, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    None,
    Minus,
    Plus,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.out.push((token, self.line));
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.matches('\n').count() as u32;
        self.at += bytes;
        if bytes > 0 {
            self.line_starting = passed.ends_with('\n');
        }
    }

    fn run(&mut self) -> Res<()> {
        loop {
            let rest = self.rest();
            let tag = rest.match_indices('{').map(|(at, _)| at).find(|at| rest[at + 1..].starts_with(['{', '%', '#']));
            let Some(tag) = tag else {
                self.text(rest, Sign::None, false);
                self.at = self.source.len();
                self.push(Token::End);
                return Ok(());
            };
            let kind = rest.as_bytes()[tag + 1];
            let sign = sign_of(&rest[tag + 2..]);
            self.text(&rest[..tag], sign, kind != b'{');
            self.advance(tag + 2 + usize::from(sign != Sign::None));
            match kind {
                b'#' => self.comment()?,
                b'%' => match self.raw_begin() {
                    Some(bytes) => self.raw(bytes)?,
                    None => self.tag(Token::TagBegin, Token::TagEnd)?,
                },
                _ => self.tag(Token::PrintBegin, Token::PrintEnd)?,
            }
        }
    }

    /// Adds `text`, which precedes a tag with `sign`. `block`: true if `lstrip_blocks` applies to the tag.
    fn text(&mut self, text: &str, sign: Sign, block: bool) {
        let kept = match sign {
            Sign::Minus => text.trim_end_matches(is_space),
            Sign::None if block => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[line..].chars().all(is_space);
                if blank && (line > 0 || self.line_starting) { &text[..line] } else { text }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Token::Text(kept.into()));
        }
    }

    fn comment(&mut self) -> Res<()> {
        let rest = self.rest();
        let end = rest.find("#}").ok_or_else(|| Fault::new("a comment is not closed with '#}'"))?;
        let sign = match rest[..end].chars().next_back() {
            Some('-') => Sign::Minus,
            Some('+') => Sign::Plus,
            _ => Sign::None,
        };
        self.advance(end + 2);
        self.after_tag(sign, true);
        Ok(())
    }

    /// Returns the bytes of `raw %}` if this tag is `{% raw %}`.
    fn raw_begin(&self) -> Option<usize> {
        let rest = self.rest();
        let after = rest.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
        let end = match after.strip_prefix("-%}") {
            Some(text) => text.trim_start_matches(is_space),
            None => after.strip_prefix("%}")?,
        };
        Some(rest.len() - end.len())
    }

    fn raw(&mut self, begin: usize) -> Res<()> {
        self.advance(begin);
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let sign = sign_of(&rest[at + 2..]);
            let inside = rest[at + 2 + usize::from(sign != Sign::None)..].trim_start_matches(is_space);
            let Some(after) = inside.strip_prefix("endraw") else { continue };
            let after = after.trim_start_matches(is_space);
            let end_sign = sign_of(after);
            let Some(end) = after[usize::from(end_sign != Sign::None)..].strip_prefix("%}") else { continue };
            self.text(&rest[..at], sign, true);
            self.advance(rest.len() - end.len());
            self.after_tag(end_sign, true);
            return Ok(());
        }
        Err(Fault::new("a raw block is not closed with '{% endraw %}'"))
    }

    /// Skips white space that the end of a tag removes.
    fn after_tag(&mut self, sign: Sign, block: bool) {
        let rest = self.rest();
        match sign {
            Sign::Minus => self.advance(rest.len() - rest.trim_start_matches(is_space).len()),
            Sign::None if block && rest.starts_with('\n') => self.advance(1),
            _ => {}
        }
    }

    fn tag(&mut self, begin: Token, end: Token) -> Res<()> {
        let block = end == Token::TagEnd;
        let closing = if block { "%}" } else { "}}" };
        self.push(begin);
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            self.advance(rest.len() - rest.trim_start_matches(is_space).len());
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return Err(Fault::new(format!("a tag is not closed with '{closing}'")));
            };
            let sign = sign_of(rest);
            let signed = usize::from(sign == Sign::Minus || (block && sign == Sign::Plus));
            if open.is_empty() && rest[signed..].starts_with(closing) {
                self.advance(signed + 2);
                self.after_tag(if signed == 1 { sign } else { Sign::None }, block);
                self.push(end);
                return Ok(());
            }
            if first.is_ascii_digit() {
                let after_dot = matches!(self.out.last(), Some((Token::Symbol("."), _)));
                let (token, bytes) = literals::number(rest, after_dot)?;
                self.push(token);
                self.advance(bytes);
            } else if first.is_alphabetic() || first == '_' {
                let bytes = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.push(Token::Name(rest[..bytes].into()));
                self.advance(bytes);
            } else if first == '\'' || first == '"' {
                let (text, bytes) = literals::string(rest)?;
                self.push(Token::Str(text));
                self.advance(bytes);
            } else {
                self.symbol(rest, first, &mut open)?;
            }
        }
    }

    fn symbol(&mut self, rest: &str, first: char, open: &mut Vec<&str>) -> Res<()> {
        let known = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
        let symbol = known.ok_or_else(|| Fault::new(format!("unexpected character {first:?}")))?;
        match *symbol {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(*symbol) => return Err(Fault::new(format!("unexpected '{symbol}'"))),
            _ => {}
        }
        self.push(Token::Symbol(symbol));
        self.advance(symbol.len());
        Ok(())
    }
}

fn sign_of(text: &str) -> Sign {
    match text.as_bytes().first() {
        Some(b'-') => Sign::Minus,
        Some(b'+') => Sign::Plus,
        _ => Sign::None,
    }
}

/// True for white space as Python defines it.
pub(in crate::template) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
