//! Computes ahead in a text: the tokens that its grammar forces, and those that may follow them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::TokenParser;
use llguidance::api::StopReason;

use super::forced::{self, MAX_FORCED};
use super::source;
use crate::error::panic_message;
use crate::selection::TokenMask;

/// The tokens that the grammar forces, and the mask of the token after them.
#[derive(Debug)]
pub(super) struct Ahead {
    pub forced: Vec<u32>,
    pub mask: TokenMask,
}

/// The reason why a grammar allows no continuation.
pub(super) type Problem = String;

/// Computes what comes next, and moves the parser past the forced tokens.
///
/// # Errors
/// No text fits, the grammar is too large, or the work was cancelled.
pub(super) fn look_ahead(parser: &mut TokenParser) -> Result<Ahead, Problem> {
    guarded(|| {
        if parser.stopped() {
            return Ok(Ahead { forced: Vec::new(), mask: ends(parser) });
        }
        if !forced::is_bounded(parser)? {
            return Err(format!("it forces more than {MAX_FORCED} bytes of text at once"));
        }
        let forced = parser.consume_ff_tokens().map_err(|error| told(parser, &error))?;
        if !forced.is_empty() && parser.check_stop().map_err(|error| told(parser, &error))? {
            return Ok(Ahead { forced, mask: ends(parser) });
        }
        let mask = parser.compute_mask().map_err(|error| told(parser, &error))?;
        Ok(Ahead { forced, mask: TokenMask::from_words(mask.as_slice().to_vec()) })
    })
}

/// Takes the next token of the text; `true` if nothing can follow it.
///
/// # Errors
/// The token was not allowed, or the grammar is too large.
pub(super) fn advance(parser: &mut TokenParser, token: u32) -> Result<bool, Problem> {
    guarded(|| {
        parser.consume_token(token).map_err(|error| told(parser, &error))?;
        parser.check_stop().map_err(|error| told(parser, &error))
    })
}

/// Returns a mask of only the end tokens.
fn ends(parser: &TokenParser) -> TokenMask {
    TokenMask::from_words(parser.token_env.tok_trie().eos_token_set().as_slice().to_vec())
}

/// Turns a panic of the library into an error. The panic only breaks the lexer of this grammar.
fn guarded<T>(work: impl FnOnce() -> Result<T, Problem>) -> Result<T, Problem> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(format!("a panic in its library: {}", panic_message(payload.as_ref()))))
}

fn told(parser: &TokenParser, error: &impl ToString) -> Problem {
    match parser.stop_reason() {
        StopReason::NoExtensionBias => "no text fits; a rule or a schema may need itself without end".into(),
        _ => source::message(&error.to_string()).to_owned(),
    }
}
