//! Any vocabulary, text and token ids. Ids are in the vocabulary, and user text never becomes a control token. A stream
//! of single tokens gives the text of all of them. A vocabulary with every byte gives back the text that it encoded.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use rocmforge::gguf::{Array, Metadata, Value};
use rocmforge::tokenizer::{StreamDecoder, Tokenizer, pre_tokenizers};

use super::allowed;

/// `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Pre-tokenizers for BPE on characters: spaces are spelled as the marker, and bytes have the tokens of SentencePiece.
const SPELLED_AS_SENTENCEPIECE: [&str; 2] = ["gemma4", "sarvam-moe"];

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// A pre-tokenizer for byte-level BPE; larger numbers mean a SentencePiece vocabulary.
    pre: u8,
    /// Text, type and score of tokens other than the bytes.
    tokens: Vec<(&'a str, u8, i8)>,
    /// Pairs of tokens that merge.
    merges: Vec<(u8, u8)>,
    lacks_a_byte: bool,
    add_space: bool,
    ids: Vec<u16>,
    text: &'a str,
}

/// The vocabulary as in a file.
struct Vocabulary {
    texts: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
    merges: Vec<String>,
}

pub fn check(bytes: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let pre =
        pre_tokenizers().filter_map(<[_]>::first).nth(input.pre as usize % (2 * pre_tokenizers().count())).copied();
    let is_byte_level = pre.is_some_and(|pre| !SPELLED_AS_SENTENCEPIECE.contains(&pre));
    let vocabulary = Vocabulary::new(&input, is_byte_level, pre.is_some());
    let has_user_defined = vocabulary.types.contains(&USER_DEFINED);
    let metadata = vocabulary.metadata(pre, input.add_space);
    let Some(tokenizer) = allowed(metadata.and_then(|metadata| Tokenizer::from_metadata(&metadata))) else { return };
    let tokenizer = Arc::new(tokenizer);

    let Some(ids) = allowed(tokenizer.encode(input.text, false, false)) else {
        assert!(input.lacks_a_byte, "a vocabulary with every byte cannot spell {:?}", input.text);
        return;
    };
    let size = tokenizer.vocab_size();
    assert!(ids.iter().all(|&id| (id as usize) < size), "{ids:?} in a vocabulary of {size}");
    if !input.lacks_a_byte {
        assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{:?} became a control token: {ids:?}", input.text);
        let decoded = decode(&tokenizer, &ids, false);
        if is_byte_level {
            assert_eq!(decoded, input.text);
        } else if !(pre.is_none() && has_user_defined && input.add_space) {
            // A token that matches literally is followed by another space, and the marker itself decodes as a space.
            assert_eq!(decoded.replace('▁', " "), input.text.replace('▁', " "));
        }
    }
    if !input.lacks_a_byte {
        only_trusted_text_is_special(&tokenizer, input.text, is_byte_level);
    }
    if let Some(parsed) = allowed(tokenizer.encode(input.text, true, true)) {
        assert!(parsed.iter().all(|&id| (id as usize) < size), "{parsed:?} in a vocabulary of {size}");
    }
    let ids: Vec<u32> = input.ids.iter().map(|&id| u32::from(id) % size as u32).collect();
    for skip_special in [false, true] {
        let mut stream = StreamDecoder::new(Arc::clone(&tokenizer), skip_special);
        let pieces = ids.iter().map(|&id| stream.push(id));
        let mut text: String = pieces.map(|piece| piece.unwrap_or_else(|e| panic!("{e}"))).collect();
        text.push_str(&stream.finish());
        assert_eq!(text, decode(&tokenizer, &ids, skip_special));
    }
}

/// Asserts that control tokens come only from trusted parts of a text: from the middle if that is trusted, and from
/// nowhere if nothing is trusted.
fn only_trusted_text_is_special(tokenizer: &Tokenizer, text: &str, spells_exactly: bool) {
    let trusting = |trusted: &[Range<usize>]| {
        allowed(tokenizer.encode_trusting(text, trusted)).unwrap_or_else(|| panic!("cannot spell {text:?}"))
    };
    let ids = trusting(&[]);
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{text:?} became a control token: {ids:?}");
    let border = |at: usize| (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    let middle = border(text.len() / 4)..border(text.len() / 4 * 3);
    let mut at = 0;
    for id in trusting(std::slice::from_ref(&middle)) {
        let bytes = tokenizer.token_bytes(id).unwrap_or_else(|e| panic!("{e}"));
        let end = at + bytes.len();
        let (special, inside) = (tokenizer.is_special(id), middle.start <= at && end <= middle.end);
        // SentencePiece adds spaces, so the position of its tokens in the text is unknown.
        assert!(!special || inside || !spells_exactly, "{text:?}, trusted {middle:?}: {id} at {at}");
        at = end;
    }
}

fn decode(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    tokenizer.decode(ids, skip_special).unwrap_or_else(|e| panic!("{e}"))
}

impl Vocabulary {
    fn new(input: &Input<'_>, byte_level: bool, has_merges: bool) -> Self {
        let spell = |byte: u8| if byte_level { printable(byte).to_string() } else { format!("<0x{byte:02X}>") };
        let mut texts: Vec<String> = (0..=255).map(spell).collect();
        if input.lacks_a_byte {
            texts.pop();
        }
        let mut types = vec![if byte_level { NORMAL } else { BYTE }; texts.len()];
        let mut scores = vec![0.0; texts.len()];
        let mut add = |text: &str, kind: i32, score: i8| {
            texts.push(text.to_owned());
            types.push(kind);
            scores.push(f32::from(score));
        };
        // A SentencePiece vocabulary needs the marker for a space.
        for (text, kind) in [("▁", NORMAL), ("<unknown>", UNKNOWN)] {
            add(text, kind, -1);
        }
        let mut known: HashSet<String> = texts.iter().cloned().collect();
        for &(text, kind, score) in &input.tokens {
            // A byte token is one of those above.
            if known.insert(text.to_owned()) && !text.is_empty() {
                texts.push(text.to_owned());
                types.push(1 + i32::from(kind) % 5);
                scores.push(f32::from(score));
            }
        }
        let mut merges = Vec::new();
        for &(left, right) in &input.merges {
            // Merges join some of the last tokens; merges of bytes would hide the interesting ones.
            let pick = |place: u8| texts[texts.len() - 1 - place as usize % texts.len().min(64 + 192)].clone();
            let (left, right) = (pick(left), pick(right));
            let joined = format!("{left}{right}");
            if has_merges && joined.len() <= 24 && known.insert(joined.clone()) {
                merges.push(format!("{left} {right}"));
                texts.push(joined);
                types.push(NORMAL);
                scores.push(0.0);
            }
        }
        Self { texts, types, scores, merges }
    }

    fn metadata(self, pre: Option<&str>, add_space: bool) -> rocmforge::Result<Metadata> {
        let unknown = self.types.iter().position(|&kind| kind == UNKNOWN).unwrap_or_default() as u32;
        let mut entries = vec![
            ("tokens", Value::Array(Array::String(self.texts))),
            ("token_type", Value::Array(Array::I32(self.types))),
            ("unknown_token_id", Value::U32(unknown)),
            ("bos_token_id", Value::U32(unknown)),
        ];
        entries.extend(match pre {
            Some(pre) => vec![
                ("model", Value::String("gpt2".to_owned())),
                ("pre", Value::String(pre.to_owned())),
                ("merges", Value::Array(Array::String(self.merges))),
            ],
            None => vec![
                ("model", Value::String("llama".to_owned())),
                ("scores", Value::Array(Array::F32(self.scores))),
                ("add_space_prefix", Value::Bool(add_space)),
            ],
        });
        let entries = entries.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
        Metadata::new(Path::new("fuzz.gguf"), entries)
    }
}

/// Returns the character that byte-level vocabularies use for a byte: itself if it is visible, else the next one from
/// U+0100 on (GPT-2's table).
fn printable(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !visible(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}
