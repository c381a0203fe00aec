//! Properties over random texts, ids and vocabularies.

use std::sync::LazyLock;

use proptest::prelude::{prop, *};

use super::*;

static GPT2: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| tokenizer("tokenizers/gpt-2"));
static LLAMA: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| tokenizer("tokenizers/llama-spm"));
static PHI3: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| tokenizer("tokenizers/phi-3"));
static QWEN2: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| tokenizer("tokenizers/qwen2"));
/// One pre-tokenizer of each class with its name. Compiling them takes longer than splitting a text.
static SPLITTERS: LazyLock<Vec<(&str, pretokenizer::PreTokenizer)>> = LazyLock::new(|| {
    let names = pre_tokenizers().filter_map(<[_]>::first);
    names.map(|name| (*name, pretokenizer::Class::named(name).unwrap().compile().unwrap())).collect()
});

/// Random characters mixed with those that pre-tokenizers and SentencePiece treat specially.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<String>(),
        "[ a-zA-Z0-9'\r\n\t.,]{0,12}",
        Just("▁".to_owned()),
        Just("  \n ".to_owned()),
        Just("I'll世界é1234".to_owned()),
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// Merges over some letters: each pair of numbers joins two earlier tokens.
fn merges(letters: &'static str) -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..30).prop_map(move |pairs| {
        let mut tokens: Vec<String> = letters.chars().map(String::from).collect();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (left.get(&tokens).clone(), right.get(&tokens).clone());
            if !tokens.contains(&format!("{left}{right}")) && left.len() + right.len() <= 12 {
                tokens.push(format!("{left}{right}"));
                merges.push((left, right));
            }
        }
        merges
    })
}

/// Joins the neighbours of lowest cost first, leftmost first, by checking all of them every time.
fn join_naively(word: &str, cost: impl Fn(&str, &str) -> Option<i64>) -> Vec<String> {
    let mut parts: Vec<String> = word.chars().map(String::from).collect();
    loop {
        let costs = parts.windows(2).enumerate().filter_map(|(at, pair)| Some((cost(&pair[0], &pair[1])?, at)));
        let Some((_, at)) = costs.min() else { return parts };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
}

fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect()
}

proptest! {
    #[test]
    fn byte_level_text_survives_encoding(text in text()) {
        for tokenizer in [&GPT2, &QWEN2] {
            let ids = tokenizer.encode(&text, false, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.as_str());
        }
    }

    #[test]
    fn sentencepiece_text_survives_encoding(text in text()) {
        // The marker itself decodes to a space, which is the only ambiguity of the format.
        let ids = LLAMA.encode(&text, false, false).unwrap();
        prop_assert_eq!(LLAMA.decode(&ids, false).unwrap(), text.replace('▁', " "));
    }

    #[test]
    fn pre_tokenizers_lose_nothing(text in text()) {
        for (name, splitter) in &*SPLITTERS {
            let mut joined = String::new();
            splitter.split(&text, &mut |word| {
                assert!(!word.is_empty(), "{name}");
                joined.push_str(word);
                Ok::<_, ()>(())
            }).unwrap();
            prop_assert_eq!(&joined, &text, "{}", name);
        }
    }

    /// S21: streaming equals decoding the whole, for any ids (often invalid UTF-8).
    #[test]
    fn streaming_equals_decoding_the_whole(raw in prop::collection::vec(any::<u32>(), 0..40), skip: bool) {
        for tokenizer in [&GPT2, &LLAMA, &PHI3] {
            // Half of the ids are bytes, so that every kind of broken character occurs.
            let bytes = if Arc::ptr_eq(tokenizer, &GPT2) { 0 } else { 3 };
            let size = tokenizer.vocab_size() as u32;
            let ids: Vec<u32> = raw.iter().map(|&r| if r % 2 == 0 { bytes + r / 2 % 256 } else { r / 2 % size }).collect();
            prop_assert_eq!(streamed(tokenizer, &ids, skip), tokenizer.decode(&ids, skip).unwrap());
            let bytes = tokenizer.decode_bytes(&ids, skip).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, skip).unwrap(), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn decoders_that_continue_keep_the_first_space(text in "[a-z]{1,5}") {
        let ids = LLAMA.encode(&text, false, false).unwrap();
        let mut decoder = StreamDecoder::continuing(LLAMA.clone(), true);
        let pieces: String = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        prop_assert_eq!(pieces, format!(" {text}"));
    }

    /// User text never becomes a control token, whatever it spells, unless requested.
    #[test]
    fn control_tokens_are_not_injected(parts in prop::collection::vec((text(), any::<prop::sample::Index>()), 1..5)) {
        for tokenizer in [&GPT2, &QWEN2, &LLAMA, &PHI3] {
            let control: Vec<u32> =
                (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id)).collect();
            let text: String = parts
                .iter()
                .flat_map(|(text, at)| [text.as_str(), tokenizer.token_text(*at.get(&control)).unwrap()])
                .collect();
            let ids = tokenizer.encode(&text, false, false).unwrap();
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{:?}: {:?}", text, ids);
            let parsed = tokenizer.encode(&text, false, true).unwrap();
            prop_assert!(parsed.iter().filter(|&&id| tokenizer.is_special(id)).count() >= parts.len());
        }
    }

    #[test]
    fn merges_are_applied_by_rank(merges in merges("abcd"), words in prop::collection::vec("[a-d]{1,40}", 1..4)) {
        let joined: Vec<String> = merges.iter().map(|(left, right)| format!("{left}{right}")).collect();
        let more: Vec<(&str, i32)> = joined.iter().map(|text| (text.as_str(), 1)).collect();
        let lines: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let tokenizer = build(byte_level_entries(&more, &lines, "gpt-2")).unwrap();
        for word in words {
            let expected = join_naively(&word, |l, r| merges.iter().position(|m| m.0 == l && m.1 == r).map(|i| i as i64));
            let ids = tokenizer.encode(&word, false, false).unwrap();
            prop_assert_eq!(spelled(&tokenizer, &ids), expected);
        }
    }

    /// With `words`, no token reaches from one word into the next, as in real vocabularies.
    #[test]
    fn pieces_are_joined_by_score(
        merges in merges("▁abc"),
        scores in prop::collection::vec(-4i32..0, 34),
        text in "[ abc]{1,60}",
        words: bool,
    ) {
        let joined = merges.iter().map(|(left, right)| format!("{left}{right}"));
        let kept = joined.filter(|token| !words || !token.trim_start_matches('▁').contains('▁'));
        let tokens: Vec<String> = "▁abc".chars().map(String::from).chain(kept).collect();
        let mut all: Vec<(&str, f32, i32)> =
            tokens.iter().zip(&scores).map(|(text, &score)| (text.as_str(), score as f32, 1)).collect();
        all.push(("<unk>", 0.0, 2));
        let mut entries = spm_entries(&all);
        set(&mut entries, "unknown_token_id", Value::U32(tokens.len() as u32));
        let tokenizer = build(entries).unwrap();
        let expected = join_naively(&format!("▁{}", text.replace(' ', "▁")), |l, r| {
            let at = tokens.iter().position(|token| *token == format!("{l}{r}"))?;
            Some(-i64::from(scores[at]))
        });
        let ids = tokenizer.encode(&text, false, false).unwrap();
        prop_assert_eq!(spelled(&tokenizer, &ids), expected);
    }
}

/// A merge or a whole word with the type of a control token stays text.
#[test]
fn merges_do_not_build_control_tokens() {
    let plain = build(byte_level_entries(&[("ab", 3)], &["a b"], "gpt-2")).unwrap();
    assert_eq!(plain.encode("ab", false, false).unwrap(), [97, 98]);
    let mut whole_words = byte_level_entries(&[("ab", 3), ("cd", 1)], &["a b"], "llama-bpe");
    set(&mut whole_words, "bos_token_id", Value::U32(256));
    let whole_words = build(whole_words).unwrap();
    assert_eq!(whole_words.encode("ab", false, false).unwrap(), [97, 98]);
    assert_eq!(whole_words.encode("cd", true, false).unwrap(), [256, 257]);
    assert_eq!(whole_words.encode("ab", false, true).unwrap(), [256]);
}

/// Tokens added as ordinary text are found first, and the longer of two with the same start.
#[test]
fn user_defined_tokens_are_always_found() {
    let tokenizer = build(byte_level_entries(&[("<a>", 4), ("<a><b>", 4), ("<c>", 3)], &[], "gpt-2")).unwrap();
    assert_eq!(tokenizer.encode("<a><b><a>", false, false).unwrap(), [257, 256]);
    assert_eq!(tokenizer.encode("<c>", false, false).unwrap(), [60, 99, 62]);
    assert_eq!(tokenizer.decode(&[257, 258], true).unwrap(), "<a><b>");
}
