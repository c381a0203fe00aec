//! Unigram (`tokenizer.ggml.model` = `t5`; XLM-RoBERTa, T5): splits a text into the tokens with the highest sum of
//! scores. Source of the algorithm: SentencePiece's unigram model (arXiv 1804.10959) and its normalizer.

use super::charsmap::CharsMap;
use super::spm::{SCORES, encode_words, read_scores};
use super::vocab::{Kind, SPACE, Vocab, reaches_across_words};
use crate::Result;
use crate::gguf::Metadata;
use crate::interrupt::Interrupt;

/// A character without a token gets a score this far below the lowest.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
pub(super) struct Unigram {
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f64,
    /// The bytes of the longest token.
    longest: usize,
    charsmap: Option<CharsMap>,
    /// True if spaces at the ends are dropped, and several spaces between words become one.
    merge_spaces: bool,
    /// True if words can be split one by one, because no token reaches from one word into the next.
    by_words: bool,
}

/// The best way to split a text up to some position: its sum of scores, and its last token with that token's start.
#[derive(Clone, Copy)]
struct Best {
    sum: f64,
    start: usize,
    id: u32,
}

impl Unigram {
    /// `unknown` is the file's unknown token.
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab, unknown: Option<u32>) -> Result<Self> {
        let scores = read_scores(metadata, vocab)?;
        let missing = || {
            let problem = "missing, and there is no token <unk>: it stands for characters that no token spells";
            metadata.error("tokenizer.ggml.unknown_token_id", problem)
        };
        let normal = || vocab.iter().filter(|(_, _, kind)| *kind == Kind::Normal);
        let lowest = normal().map(|(id, ..)| scores[id as usize]).min_by(f32::total_cmp);
        let lowest = lowest.ok_or_else(|| metadata.error(SCORES, "belong to no token that text becomes"))?;
        let across = normal().any(|(_, text, _)| reaches_across_words(text));
        Ok(Self {
            scores: scores.to_vec(),
            unknown: unknown.or_else(|| vocab.id("<unk>")).ok_or_else(missing)?,
            unknown_score: f64::from(lowest) - UNKNOWN_PENALTY,
            longest: vocab.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0),
            charsmap: CharsMap::new(metadata)?,
            merge_spaces: metadata.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
            by_words: !across && vocab.text_id("▁").is_some(),
        })
    }

    /// Appends the ids of `text`, preceded by a space if `space_before`.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        space_before: bool,
        stop: &Interrupt,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let text = self.normalize(text, space_before);
        let mut best = Vec::new();
        match self.by_words {
            true => encode_words(&text, out, |word, out| self.cut(vocab, word, stop, &mut best, out)),
            false => self.cut(vocab, &text, stop, &mut best, out),
        }
    }

    /// Returns the text with characters replaced by the file's map, and `▁` for spaces.
    fn normalize(&self, text: &str, space_before: bool) -> String {
        let mut out = String::with_capacity(text.len() + text.len() / 2 + SPACE.len_utf8());
        // True if a space is due before the next character that is not a space.
        let mut space = space_before && !text.is_empty();
        let mut push = |c: char| match (c, self.merge_spaces) {
            (' ', true) => space |= !out.is_empty(),
            (' ', false) => {
                out.extend(std::mem::take(&mut space).then_some(SPACE));
                out.push(SPACE);
            }
            (c, _) => {
                out.extend(std::mem::take(&mut space).then_some(SPACE));
                out.push(c);
            }
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let replaced = self.charsmap.as_ref().and_then(|map| map.longest(rest));
            let len = match replaced {
                Some((len, with)) => {
                    with.chars().for_each(&mut push);
                    len
                }
                None => {
                    push(first);
                    first.len_utf8()
                }
            };
            rest = &rest[len..];
        }
        out
    }

    /// Appends the tokens of a text. Of equal sums, the one with the longest last token wins. `best` is scratch.
    fn cut(&self, vocab: &Vocab, text: &str, stop: &Interrupt, best: &mut Vec<Best>, out: &mut Vec<u32>) -> Result<()> {
        const NONE: Best = Best { sum: f64::NEG_INFINITY, start: 0, id: 0 };
        best.clear();
        best.resize(text.len() + 1, NONE);
        best[0].sum = 0.0;
        for (start, first) in text.char_indices() {
            stop.check()?;
            let sum = best[start].sum;
            let single = start + first.len_utf8();
            let limit = text.floor_char_boundary(start + self.longest);
            let ends = text[start..limit].char_indices().map(|(at, c)| start + at + c.len_utf8());
            let mut has_single = false;
            for end in ends {
                let Some(id) = vocab.text_id(&text[start..end]) else { continue };
                has_single |= end == single;
                let sum = sum + f64::from(self.scores[id as usize]);
                if sum > best[end].sum {
                    best[end] = Best { sum, start, id };
                }
            }
            let sum = sum + self.unknown_score;
            if !has_single && sum > best[single].sum {
                best[single] = Best { sum, start, id: self.unknown };
            }
        }
        let (first, mut end) = (out.len(), text.len());
        while end > 0 {
            let Best { start, id, .. } = best[end];
            // A run of unknown characters is one unknown token.
            if id != self.unknown || out[first..].last() != Some(&id) {
                out.push(id);
            }
            end = start;
        }
        out[first..].reverse();
        Ok(())
    }
}
