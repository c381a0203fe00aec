//! Measures the text that a grammar forces at one place, before the library writes it.
//!
//! The library writes forced text byte by byte without a length limit. A few rules or counts can force more text than
//! fits in memory, so the text is measured first.

use llguidance::TokenParser;
use llguidance::earley::regexvec::NextByte;
use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};
use parking_lot::Mutex;

/// Maximum bytes of forced text, some 4,000 tokens.
pub(super) const MAX_FORCED: usize = 16 << 10;
/// Bytes that are checked without a copy of the parser. Most forced texts are shorter.
const PIECE: usize = 64;

/// True if the grammar forces at most `MAX_FORCED` bytes here.
///
/// # Errors
/// The library's message if the parser rejects a byte that it allowed.
pub(super) fn is_bounded(parser: &mut TokenParser) -> Result<bool, String> {
    // No continuation is forced where the text may end.
    if parser.is_accepting() {
        return Ok(true);
    }
    let vocabulary = parser.token_env.clone();
    let mut piece = Piece::of(&mut parser.parser, &vocabulary);
    if !piece.goes_on() {
        return Ok(true);
    }
    // The copy shares the lexer's states. It advances as the library would advance the original.
    let mut copy = parser.parser.clone();
    let any_token = vocabulary.tok_trie().eos_token();
    let mut length = 0;
    while length <= MAX_FORCED {
        for byte in &piece.bytes {
            copy.apply_token(std::slice::from_ref(byte), any_token).map_err(|error| error.to_string())?;
            length += 1;
            if copy.is_accepting() {
                return Ok(true);
            }
        }
        if piece.marker {
            let tokens = copy.compute_bias(&*parser.bias_computer, &[]);
            let mut tokens = tokens.iter();
            let (Some(token), None) = (tokens.next(), tokens.next()) else { return Ok(true) };
            let written = vocabulary.tok_trie().decode_raw(&[token]);
            length += written.len();
            copy.apply_token(&written, token).map_err(|error| error.to_string())?;
            if copy.is_accepting() {
                return Ok(true);
            }
        } else if !piece.goes_on() {
            return Ok(true);
        }
        piece = Piece::of(&mut copy, &vocabulary);
    }
    Ok(false)
}

/// Bytes that are each the only one allowed, whether or not the text may end before it.
#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    /// True if a token that never results from text must follow.
    marker: bool,
}

impl Piece {
    fn of(parser: &mut Parser, vocabulary: &TokEnv) -> Self {
        let reader = PieceReader { vocabulary: vocabulary.clone(), found: Mutex::default() };
        // The library caches the mask of a place if there is no start, so a start is given.
        parser.compute_bias(&reader, &[TokTrie::SPECIAL_TOKEN_MARKER]);
        reader.found.into_inner()
    }

    /// True if more may be forced after it.
    fn goes_on(&self) -> bool {
        self.marker || self.bytes.len() == PIECE
    }
}

/// Reads a piece through the library's interface for masks, within its work limits.
struct PieceReader {
    vocabulary: TokEnv,
    found: Mutex<Piece>,
}

impl BiasComputer for PieceReader {
    fn compute_bias(&self, place: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        let mut found = self.found.lock();
        place.trie_started("forced text");
        while found.bytes.len() < PIECE {
            match only_byte(place) {
                Some(TokTrie::SPECIAL_TOKEN_MARKER) => {
                    found.marker = true;
                    break;
                }
                Some(byte) if place.try_push_byte(byte) => found.bytes.push(byte),
                _ => break,
            }
        }
        place.trie_finished();
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.vocabulary.tok_trie()
    }
}

/// Returns the next byte if only one is allowed.
fn only_byte(place: &mut ParserRecognizer<'_>) -> Option<u8> {
    let state = place.lexer_state();
    let hint = place.lexer_mut().next_byte(state);
    if let NextByte::ForcedByte(byte) = hint {
        return Some(byte);
    }
    // The lexer's examples come first: usually two of them are allowed, and that settles it.
    let examples = hint.some_bytes().to_vec();
    let rest = (0..=u8::MAX).filter(|byte| !examples.contains(byte));
    let mut only = None;
    for byte in examples.iter().copied().chain(rest) {
        if place.byte_allowed(byte) && only.replace(byte).is_some() {
            return None;
        }
    }
    only
}
