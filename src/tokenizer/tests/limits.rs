//! Long and repetitive text. Quadratic work would take hours instead of seconds.

use super::*;

const LONG: usize = 1 << 20;

fn round_trip(tokenizer: &Tokenizer, text: &str) -> usize {
    let ids = tokenizer.encode(text, false, false).unwrap();
    assert!(tokenizer.decode(&ids, false).unwrap() == text);
    ids.len()
}

#[test]
fn a_megabyte_without_a_break_is_encoded() {
    let bpe = build(byte_level_entries(&[("aa", 1), ("aaaa", 1)], &["a a", "aa aa"], "qwen2")).unwrap();
    assert_eq!(round_trip(&bpe, &"a".repeat(LONG)), LONG / 4);
    assert_eq!(round_trip(&bpe, &" ".repeat(LONG)), LONG);
    round_trip(&bpe, &" \n\t".repeat(LONG / 3));
    let bytes = byte_tokens();
    let mut tokens: Vec<(&str, f32, i32)> = bytes.iter().map(|text| (text.as_str(), 0.0, 6)).collect();
    tokens.extend([("▁", -1.0, 1), ("a", -1.0, 1), ("aa", -2.0, 1), ("▁▁", -2.0, 1), ("aaaa", -3.0, 1)]);
    let spm = build(spm_entries(&tokens)).unwrap();
    assert_eq!(round_trip(&spm, &"a".repeat(LONG)), LONG / 4 + 1);
    assert_eq!(round_trip(&spm, &" ".repeat(LONG)), LONG / 2 + 1);
    round_trip(&spm, &"é".repeat(LONG / 2));
}

#[test]
fn every_class_splits_long_text_in_one_pass() {
    for pre in pre_tokenizers().filter_map(<[_]>::first) {
        let tokenizer = build(spelled_entries(pre)).unwrap();
        for unit in [" ", "a", "aA", "1", "\n", " \n", "é", "'", "世", "  a"] {
            round_trip(&tokenizer, &unit.repeat((LONG / 32) / unit.len()));
        }
    }
}

/// Without a word boundary, a whole line is one word, whose merges are found by a heap and not by repeated search.
#[test]
fn a_line_without_words_is_merged_in_one_pass() {
    let bytes = byte_tokens();
    let mut tokens: Vec<(&str, f32, i32)> = bytes.iter().map(|text| (text.as_str(), 0.0, 6)).collect();
    tokens.push(("<bos>", 0.0, 3));
    tokens.extend(["▁", "a", "▁a", "▁a▁a", "▁a▁a▁a▁a"].map(|text| (text, 0.0, 1)));
    let mut entries = spm_entries(&tokens);
    set(&mut entries, "model", Value::String("gemma4".into()));
    set(&mut entries, "merges", strings(&["▁ a", "▁a ▁a", "▁a▁a ▁a▁a"]));
    set(&mut entries, "bos_token_id", Value::U32(256));
    let tokenizer = build(entries).unwrap();
    assert_eq!(round_trip(&tokenizer, &" a".repeat(LONG / 2)), LONG / 8);
    assert_eq!(round_trip(&tokenizer, &" ".repeat(LONG)), LONG);
    round_trip(&tokenizer, &"é\n".repeat(LONG / 4));
}

#[test]
fn many_special_tokens_are_found_in_long_text() {
    let names: Vec<String> = (0..2000).map(|i| format!("<|{i}|>")).collect();
    let more: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), 3)).collect();
    let tokenizer = build(byte_level_entries(&more, &[], "gpt-2")).unwrap();
    let text = "<|7|><|77|>x<|777|".repeat(LONG / 32);
    let ids = tokenizer.encode(&text, false, true).unwrap();
    assert_eq!(ids[..3], [256 + 7, 256 + 77, u32::from(b'x')]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
}
