use std::sync::Arc;

use proptest::prelude::*;

use super::fake::listed;
use super::support::*;
use crate::config::SamplingParams;
use crate::request::stop::{StopFound, StopMatcher, StopStrings};
use crate::{FinishReason, StopReason};

/// Runs a request whose model produces `tokens`, after a prompt of one token.
fn say(words: &[&str], tokens: Vec<u32>, params: SamplingParams) -> Ended {
    let tokenizer = tokenizer(words);
    let rig = Rig::with(config(), listed(tokenizer.vocab_size(), 1, tokens), Some(tokenizer));
    let done = rig.run(&[5], params)[&0].clone();
    assert_nothing_left(&rig.engine);
    done
}

/// S21: characters of several tokens arrive whole, and an incomplete one at the end is not lost.
#[test]
fn text_is_never_half_a_character() {
    let tokens = vec![byte(0xF0), byte(0x9F), byte(0x98), byte(0x80), letter('o'), byte(0xC3)];
    let done = say(&[], tokens, greedy(6));
    assert_eq!(done.text, "😀o\u{FFFD}");
}

/// Text that could be the start of a stop string is held back, and delivered if it is not.
#[test]
fn held_back_text_comes_at_the_end() {
    let params = SamplingParams { stop: vec!["abcd".into()], ..greedy(5) };
    let done = say(&[], "xxabc".chars().map(letter).collect(), params);
    assert_eq!((done.text.as_str(), done.reason), ("xxabc", Some(FinishReason::Length)));
    // The text was in no output but the last.
    let params = SamplingParams { stop: vec!["abcd".into()], ..greedy(7) };
    assert_eq!(say(&[], "abcabcx".chars().map(letter).collect(), params).text, "abcabcx");
}

/// A23: an incomplete character becomes U+FFFD at the very end, and a stop string that ends in it is found there,
/// whatever ended the tokens. Within `min_tokens` it is not.
#[test]
fn stop_strings_in_the_last_flush() {
    let tokens = vec![letter('a'), letter('b'), byte(0xC3)];
    let stop = |stop: &str, max_tokens| SamplingParams { stop: vec![stop.into()], ..greedy(max_tokens) };
    let found = |done: &Ended| (done.text.clone(), done.reason, done.stop.clone());
    let by = |stop: &str| (Some(FinishReason::Stop), Some(StopReason::String(stop.into())));
    for (string, include, text) in
        [("b\u{FFFD}", false, "a"), ("\u{FFFD}", false, "ab"), ("b\u{FFFD}", true, "ab\u{FFFD}")]
    {
        let params = SamplingParams { include_stop_str_in_output: include, ..stop(string, 3) };
        let (reason, which) = by(string);
        assert_eq!(found(&say(&[], tokens.clone(), params)), (text.into(), reason, which));
    }
    let with_end = [tokens.clone(), vec![EOS]].concat();
    let (reason, which) = by("b\u{FFFD}");
    assert_eq!(found(&say(&[], with_end, stop("b\u{FFFD}", 9))), ("a".into(), reason, which));
    let late = SamplingParams { min_tokens: 3, ..stop("b\u{FFFD}", 3) };
    let done = say(&[], tokens, late);
    assert_eq!((done.text.as_str(), done.reason), ("ab\u{FFFD}", Some(FinishReason::Length)));
}

#[test]
fn stop_strings_across_tokens() {
    let words = ["hello", "▁wor", "ld"];
    let tokens = vec![word(0), word(1), word(2), letter('z')];
    for (stop, include, text) in [
        ("o w", false, "hell"),
        ("o w", true, "hello w"),
        ("world", false, "hello "),
        ("world", true, "hello world"),
        ("h", false, ""),
        ("hello worldz", false, ""),
    ] {
        let params = SamplingParams {
            stop: vec!["never".into(), stop.into()],
            include_stop_str_in_output: include,
            ..greedy(20)
        };
        let done = say(&words, tokens.clone(), params);
        assert_eq!(done.text, text, "{stop}");
        assert_eq!(done.stop, Some(StopReason::String(stop.into())));
    }
}

/// No sequence ends before `min_tokens`, and earlier text does not count later.
#[test]
fn min_tokens_comes_first() {
    let tokens = || vec![letter('a'), letter('b'), letter('a'), letter('b'), letter('c')];
    let params = SamplingParams { stop: vec!["ab".into()], min_tokens: 1, ..greedy(20) };
    let done = say(&[], tokens(), params);
    assert_eq!((done.text.as_str(), done.tokens.len()), ("ab", 4));
    let params = SamplingParams { stop_token_ids: vec![letter('b')], min_tokens: 3, ..greedy(20) };
    let done = say(&[], tokens(), params);
    // While the stop token is forbidden, the next best is sampled, which is token 0.
    assert_eq!(done.tokens, [letter('a'), 0, letter('a'), letter('b')]);
}

/// The token that ends a text is among the ids, but not in the text unless requested.
#[test]
fn stop_tokens_and_text() {
    let tokens = vec![letter('a'), letter('q')];
    let stop = SamplingParams { stop_token_ids: vec![letter('q')], ..greedy(9) };
    assert_eq!(say(&[], tokens.clone(), stop.clone()).text, "a");
    let including = SamplingParams { include_stop_str_in_output: true, ..stop };
    assert_eq!(say(&[], tokens, including).text, "aq");
}

#[test]
fn prompts_of_text() {
    let tokenizer = tokenizer(&[]);
    let rig = Rig::with(config(), listed(tokenizer.vocab_size(), 4, vec![letter('y')]), Some(Arc::clone(&tokenizer)));
    let draft = Draft { prompt: crate::Prompt::Text("abc".into()), ..request(&[], greedy(2)) };
    let client = submit(&rig.engine, draft).unwrap();
    assert_eq!(*client.accepted.prompt_token_ids, tokenizer.encode("abc", true, false).unwrap());
    client.wait();
    // Text that spells a control token stays text.
    let draft = Draft { prompt: crate::Prompt::Text("</s>".into()), ..request(&[], greedy(2)) };
    assert!(!submit(&rig.engine, draft).unwrap().accepted.prompt_token_ids.contains(&EOS));
}

/// The slow way: searches for the stop strings after every character.
fn reference(text: &str, stops: &[String], include: bool) -> (String, Option<String>) {
    for (end, character) in text.char_indices().map(|(at, c)| (at + c.len_utf8(), c)) {
        let _ = character;
        let mut found: Vec<&String> = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).collect();
        found.sort_by_key(|stop| stop.len());
        if let Some(stop) = found.pop() {
            let cut = if include { end } else { end - stop.len() };
            return (text[..cut].into(), Some(stop.clone()));
        }
    }
    (text.into(), None)
}

proptest! {
    /// With any stop strings and any text in any pieces, the result equals a search after every character. Only text
    /// that could be the start of a stop string is held back.
    #[test]
    fn stop_matcher_follows_the_reference(
        pieces in prop::collection::vec("[abé😀]{0,4}", 0..12),
        stops in prop::collection::vec("[abé😀]{1,5}", 0..4),
        include in any::<bool>(),
    ) {
        let mut matcher = StopMatcher::new(StopStrings::new(&stops));
        let (mut given, mut seen, mut stopped) = (String::new(), String::new(), None);
        for piece in &pieces {
            seen.push_str(piece);
            match matcher.push(piece.clone(), include) {
                Ok(text) => given.push_str(&text),
                Err(StopFound { stop, text }) => {
                    given.push_str(&text);
                    stopped = Some(stop);
                    break;
                }
            }
            let held = &seen[given.len()..];
            let starts = |stop: &String| stop.starts_with(held) && stop.len() > held.len();
            prop_assert!(held.is_empty() || stops.iter().any(starts), "held back {held:?}");
        }
        if stopped.is_none() {
            given.push_str(&matcher.finish());
        }
        prop_assert_eq!((given, stopped), reference(&pieces.concat(), &stops, include));
    }
}
