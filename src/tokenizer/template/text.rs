//! Strings that know which of their bytes are the template's and which a client's.
//!
//! Every operation of the language builds its results from pieces of its operands, and each piece keeps its origin.
//! What an operation makes up itself (digits, quotes and brackets of JSON, padding) counts as the client's, because how
//! much of it there is depends on the client's data; no control token is spelled with it. So a byte that is marked as
//! the template's was written in the template's source, or in the texts of BOS and EOS.

use std::ops::Range;
use std::rc::Rc;

use super::fault::{Fault, Res};
use super::meter::{self, Charge};

/// Bytes of a string beside its text: counters, pointers and what the allocator adds.
const OVERHEAD: usize = 96;
/// Cost of adding a piece, beside its bytes, in bytes that could be copied instead.
const PIECE_WORK: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Template,
    Client,
}

/// A stretch of one origin, up to `end` (bytes).
#[derive(Debug, Clone, Copy)]
struct Run {
    end: usize,
    origin: Origin,
}

/// Cheap to clone. Comparisons are made on the text alone: what a template decides does not depend on origins.
#[derive(Debug, Clone)]
pub(super) struct Text(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    text: Box<str>,
    runs: Runs,
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

    pub(super) fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The part in `range` (bytes, between characters).
    pub(super) fn slice(&self, range: Range<usize>) -> Res<Self> {
        if range == (0..self.0.text.len()) {
            return Ok(self.clone());
        }
        let mut builder = Builder::new();
        builder.push_slice(self, range)?;
        builder.finish()
    }

    /// The part of this text that `part`, a slice of its `as_str`, covers.
    pub(super) fn part(&self, part: &str) -> Res<Self> {
        let start = (part.as_ptr() as usize).saturating_sub(self.as_str().as_ptr() as usize);
        self.slice(start..start + part.len())
    }

    /// The stretches of one origin in `range`.
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

    /// Each character with its origin.
    pub(super) fn chars(&self) -> impl Iterator<Item = (char, Origin)> {
        self.pieces(0..self.0.text.len()).flat_map(|(text, origin)| text.chars().map(move |c| (c, origin)))
    }

    /// The text with each character replaced by the characters that `map` gives for it, which get its origin.
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

/// A string being made; what does not fit the budget is refused before it is allocated.
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

    /// Adds text that the language makes up itself (digits, padding), rather than the template's author.
    pub(super) fn push_made(&mut self, text: &str) -> Res<()> {
        self.push(text, Origin::Client)
    }

    pub(super) fn push_text(&mut self, text: &Text) -> Res<()> {
        self.push_slice(text, 0..text.as_str().len())
    }

    pub(super) fn push_slice(&mut self, text: &Text, range: Range<usize>) -> Res<()> {
        text.pieces(range).try_for_each(|(piece, origin)| self.push(piece, origin))
    }

    /// `text` `count` times.
    pub(super) fn push_repeated(&mut self, text: &Text, count: usize) -> Res<()> {
        if text.as_str().is_empty() {
            return Ok(());
        }
        // Refuses at once what would be refused after much copying.
        let bytes =
            text.as_str().len().checked_mul(count).ok_or_else(|| Fault::new("a repeated string is too long"))?;
        drop(Charge::new(bytes)?);
        (0..count).try_for_each(|_| self.push_text(text))
    }

    pub(super) fn finish(mut self) -> Res<Text> {
        self.charge.add(OVERHEAD)?;
        let runs = match self.runs.as_slice() {
            [] => Runs::One(Run { end: 0, origin: Origin::Template }),
            [run] => Runs::One(*run),
            _ => Runs::Many(self.runs.into_boxed_slice()),
        };
        Ok(Text(Rc::new(Inner { text: self.text.into_boxed_str(), runs, _charge: self.charge })))
    }

    /// The text, and the stretches of it (bytes) that are the template's.
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
