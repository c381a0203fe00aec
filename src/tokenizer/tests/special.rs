//! Tokens that begin a prompt or swallow white space. The expected values are llama.cpp's.

use super::*;

#[test]
fn the_pre_tokenizer_says_whether_a_prompt_begins_with_bos() {
    // By default, where the file says yes, where it says no.
    for (pre, expected) in [
        ("gpt-2", [false, true, false]),
        ("qwen2", [false, true, false]),
        ("glm4", [false, true, false]),
        ("gpt-4o", [false, true, false]),
        ("llama-bpe", [true, true, false]),
        ("tekken", [true, true, false]),
        ("gemma4", [true, true, true]),
    ] {
        for (said, expected) in [None, Some(true), Some(false)].into_iter().zip(expected) {
            let mut entries = spelled_entries(pre);
            if let Some(said) = said {
                set(&mut entries, "add_bos_token", Value::Bool(said));
            }
            let ids = build(entries).unwrap().encode("a", true, false).unwrap();
            assert_eq!(ids.first() == Some(&256), expected, "{pre}, add_bos_token {said:?}");
        }
    }
}

#[test]
fn white_space_behind_control_tokens_of_phi_3_is_dropped() {
    let bytes = byte_tokens();
    let mut tokens: Vec<(&str, f32, i32)> = bytes.iter().map(|text| (text.as_str(), 0.0, 6)).collect();
    tokens.extend([("<s>", 0.0, 3), ("<|user|>", 0.0, 3), ("<|endoftext|>", 0.0, 3), ("a", 0.0, 1), ("▁", 0.0, 1)]);
    let mut entries = spm_entries(&tokens);
    set(&mut entries, "add_space_prefix", Value::Bool(false));
    for (architecture, expected) in [("phi3", &[257, 259][..]), ("llama", &[257, 10, 260, 259])] {
        entries.retain(|(key, _)| key != "general.architecture");
        entries.push(("general.architecture".into(), Value::String(architecture.into())));
        let tokenizer = build(entries.clone()).unwrap();
        assert_eq!(tokenizer.encode("<|user|>\n a", false, true).unwrap(), expected, "{architecture}");
        // Neither behind these two, nor behind text that only spells a token.
        assert_eq!(tokenizer.encode("<s> a<|endoftext|> a", false, true).unwrap(), [256, 260, 259, 258, 260, 259]);
        assert_eq!(tokenizer.encode("<s> a", false, false).unwrap().last_chunk(), Some(&[260, 259]));
    }
}
