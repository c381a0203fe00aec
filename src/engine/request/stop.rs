//! Stop strings in text that arrives in pieces.

use std::sync::Arc;

/// A stop string with its Knuth-Morris-Pratt failure function.
#[derive(Debug)]
struct Pattern {
    text: String,
    /// The failure function of Knuth, Morris and Pratt. Entry `i` is the length of the longest proper prefix of the
    /// first `i + 1` bytes that is also their suffix.
    failure: Vec<usize>,
}

/// The stop strings of one request, prepared once and shared by its sequences.
#[derive(Debug, Clone)]
pub(crate) struct StopStrings(Arc<[Pattern]>);

impl StopStrings {
    /// No string may be empty; `SamplingParams::validate` rejects empty ones.
    pub(crate) fn new(stops: &[String]) -> Self {
        Self(stops.iter().map(|stop| Pattern { text: stop.clone(), failure: failure(stop.as_bytes()) }).collect())
    }
}

fn failure(pattern: &[u8]) -> Vec<usize> {
    let mut out = vec![0; pattern.len()];
    let mut matched = 0;
    for i in 1..pattern.len() {
        while matched > 0 && pattern[i] != pattern[matched] {
            matched = out[matched - 1];
        }
        matched += usize::from(pattern[i] == pattern[matched]);
        out[i] = matched;
    }
    out
}

/// Finds stop strings across pieces, and holds back text that may be the start of one.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: StopStrings,
    /// For each stop string, the length of its longest prefix that ends the text so far.
    matched: Vec<usize>,
    /// The end of the text that is not yet given out: the longest of `matched`.
    held: String,
}

/// A stop string that was found. The caller decides whether it belongs in the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StopFound {
    pub stop: String,
    /// The rest of the text, up to the stop string or, with `include`, to its end.
    pub text: String,
}

impl StopMatcher {
    pub(crate) fn new(stops: StopStrings) -> Self {
        let matched = vec![0; stops.0.len()];
        Self { stops, matched, held: String::new() }
    }

    /// Takes the next piece of text. Returns the text that may be given out, or the end. The stop string that is
    /// complete first wins; of several that end together, the longest.
    pub(crate) fn push(&mut self, piece: String, include: bool) -> Result<String, StopFound> {
        if self.matched.is_empty() {
            return Ok(piece);
        }
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            let mut found: Option<&Pattern> = None;
            for (pattern, matched) in self.stops.0.iter().zip(&mut self.matched) {
                if advance(pattern, matched, byte) && found.is_none_or(|f| pattern.text.len() > f.text.len()) {
                    found = Some(pattern);
                }
            }
            if let Some(pattern) = found {
                let mut text = std::mem::take(&mut self.held);
                text.push_str(&piece[..=i]);
                if !include {
                    text.truncate(text.len() - pattern.text.len());
                }
                return Err(StopFound { stop: pattern.text.clone(), text });
            }
        }
        // A match starts with a whole character, so the held-back text does too.
        let hold = self.matched.iter().copied().max().unwrap_or_default();
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&piece);
        self.held = text.split_off(text.len() - hold);
        Ok(text)
    }

    /// Returns the held-back text at the end of the sequence.
    pub(crate) fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }
}

/// Extends a partial match by one byte; `true` when the pattern is complete.
fn advance(pattern: &Pattern, matched: &mut usize, byte: u8) -> bool {
    let bytes = pattern.text.as_bytes();
    while *matched > 0 && bytes[*matched] != byte {
        *matched = pattern.failure[*matched - 1];
    }
    *matched += usize::from(bytes[*matched] == byte);
    *matched == bytes.len()
}
