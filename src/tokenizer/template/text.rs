//! Strings that know which of their bytes come from the template and which from a client.
//!
//! Every operation of the language builds its results from pieces of its operands, and each piece keeps its origin.
//! Text that an operation generates itself (digits, quotes and brackets of JSON, padding) counts as the client's. Its
//! amount depends on the client's data, and no control token is spelled with it. So a byte that is marked as the
//! template's comes from the template's source, or from the texts of BOS and EOS.

use std::ops::Range;
use std::rc::Rc;

use super::fault::{Fault, Res};
use super::meter::{self, Charge};

/// The bytes of a string besides its text: counters, pointers and the allocator's overhead.
const OVERHEAD: usize = 96;
/// The cost of adding a piece besides its bytes, in bytes that could be copied instead.
const PIECE_WORK: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Template,
    Client,
}

/// A range of one origin, up to `end` (bytes).
#[derive(Debug, Clone, Copy)]
struct Run {
    end: usize,
    origin: Origin,
}

/// Cheap to clone. Comparisons use only the text, so a template's decisions do not depend on origins.
#[derive(Debug, Clone)]
pub(super) struct Text(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    text: Box<str>,
    runs: Runs,
    /// True if it needs no HTML escaping, as the results of `safe` and `escape`.
    markup: bool,
    _charge: Charge,
}

#[derive(Debug)]
enum Runs {
    One(Run),
    Many(Box<[Run]>),
}

impl Text {
    pub(super) fn new(text: &str, origin: Origin) -> Res<Self> {
        let mut builder = Builder::new();
        builder.push(text, origin)?;
        builder.finish()
    }

    /// Returns the text, marked as needing no escaping.
    pub(super) fn into_markup(self) -> Res<Self> {
        if self.0.markup {
            return Ok(self);
        }
        let mut builder = Builder::new();
        builder.push_text(&self)?;
        builder.finish_as(true)
    }

    pub(super) fn is_markup(&self) -> bool {
        self.0.markup
    }

    /// True if no byte of it came from a client.
    pub(super) fn is_of_template(&self) -> bool {
        self.pieces(0..self.0.text.len()).all(|(_, origin)| origin == Origin::Template)
    }

    /// Returns the text with HTML's reserved characters escaped, as in Jinja; markup stays as it is.
    pub(super) fn escaped(&self) -> Res<Self> {
        if self.0.markup { Ok(self.clone()) } else { self.force_escaped() }
    }

    pub(super) fn force_escaped(&self) -> Res<Self> {
        let mut out = Builder::new();
        for (c, origin) in self.chars() {
            match c {
                '&' => out.push("&amp;", origin)?,
                '<' => out.push("&lt;", origin)?,
                '>' => out.push("&gt;", origin)?,
                '\'' => out.push("&#39;", origin)?,
                '"' => out.push("&#34;", origin)?,
                c => out.push_char(c, origin)?,
            }
        }
        out.finish_as(true)
    }

    /// Returns two texts as one. If one of them is markup, the other is escaped and the result is markup.
    pub(super) fn joined(&self, other: &Self) -> Res<Self> {
        let markup = self.0.markup || other.0.markup;
        let mut sum = Builder::new();
        for part in [self, other] {
            if markup { sum.push_text(&part.escaped()?)? } else { sum.push_text(part)? }
        }
        sum.finish_as(markup)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns the part in `range` (bytes, at character boundaries).
    pub(super) fn slice(&self, range: Range<usize>) -> Res<Self> {
        if range == (0..self.0.text.len()) {
            return Ok(self.clone());
        }
        let mut builder = Builder::new();
        builder.push_slice(self, range)?;
        builder.finish()
    }

    /// Returns the part of this text that `part`, a slice of its `as_str`, covers.
    pub(super) fn part(&self, part: &str) -> Res<Self> {
        let start = (part.as_ptr() as usize).saturating_sub(self.as_str().as_ptr() as usize);
        self.slice(start..start + part.len())
    }

    /// Returns the pieces of one origin in `range`.
    pub(super) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (&str, Origin)> {
        let runs = match &self.0.runs {
            Runs::One(run) => std::slice::from_ref(run),
            Runs::Many(runs) => runs,
        };
        let first = runs.partition_point(|run| run.end <= range.start);
        let mut at = range.start;
        runs[first..].iter().map_while(move |run| {
            let (start, end) = (at, run.end.min(range.end));
            at = end;
            (start < end).then(|| (&self.0.text[start..end], run.origin))
        })
    }

    /// Returns each character with its origin.
    pub(super) fn chars(&self) -> impl Iterator<Item = (char, Origin)> {
        self.pieces(0..self.0.text.len()).flat_map(|(text, origin)| text.chars().map(move |c| (c, origin)))
    }

    /// Returns the text with each character replaced by the characters of `map`, which get its origin.
    pub(super) fn map<I: Iterator<Item = char>>(&self, mut map: impl FnMut(char) -> I) -> Res<Self> {
        let mut builder = Builder::new();
        for (c, origin) in self.chars() {
            for mapped in map(c) {
                builder.push_char(mapped, origin)?;
            }
        }
        builder.finish()
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string under construction. Text beyond the budget is rejected before it is allocated.
#[derive(Debug, Default)]
pub(super) struct Builder {
    text: String,
    runs: Vec<Run>,
    charge: Charge,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn push(&mut self, text: &str, origin: Origin) -> Res<()> {
        if text.is_empty() {
            return Ok(());
        }
        meter::work(PIECE_WORK)?;
        self.charge.add(text.len())?;
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(run) if run.origin == origin => run.end = end,
            _ => {
                self.charge.add(size_of::<Run>())?;
                self.runs.push(Run { end, origin });
            }
        }
        Ok(())
    }

    pub(super) fn push_char(&mut self, c: char, origin: Origin) -> Res<()> {
        self.push(c.encode_utf8(&mut [0; 4]), origin)
    }

    /// Adds text that the language generates itself (digits, padding), rather than the template's author.
    pub(super) fn push_made(&mut self, text: &str) -> Res<()> {
        self.push(text, Origin::Client)
    }

    pub(super) fn push_text(&mut self, text: &Text) -> Res<()> {
        self.push_slice(text, 0..text.as_str().len())
    }

    pub(super) fn push_slice(&mut self, text: &Text, range: Range<usize>) -> Res<()> {
        text.pieces(range).try_for_each(|(piece, origin)| self.push(piece, origin))
    }

    /// Adds `text` `count` times.
    pub(super) fn push_repeated(&mut self, text: &Text, count: usize) -> Res<()> {
        if text.as_str().is_empty() {
            return Ok(());
        }
        // Fails at once instead of after much copying.
        let bytes =
            text.as_str().len().checked_mul(count).ok_or_else(|| Fault::new("a repeated string is too long"))?;
        drop(Charge::new(bytes)?);
        (0..count).try_for_each(|_| self.push_text(text))
    }

    pub(super) fn finish(self) -> Res<Text> {
        self.finish_as(false)
    }

    fn finish_as(mut self, markup: bool) -> Res<Text> {
        self.charge.add(OVERHEAD)?;
        let runs = match self.runs.as_slice() {
            [] => Runs::One(Run { end: 0, origin: Origin::Template }),
            [run] => Runs::One(*run),
            _ => Runs::Many(self.runs.into_boxed_slice()),
        };
        Ok(Text(Rc::new(Inner { text: self.text.into_boxed_str(), runs, markup, _charge: self.charge })))
    }

    /// Returns the text, and the ranges of it (bytes) that are the template's.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        let mut start = 0;
        let mut template = Vec::new();
        for run in &self.runs {
            if run.origin == Origin::Template {
                template.push(start..run.end);
            }
            start = run.end;
        }
        (self.text, template)
    }
}
