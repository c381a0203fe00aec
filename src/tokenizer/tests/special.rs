//! Tokens that end a generation, begin a prompt or swallow white space, by family. The expected values are llama.cpp's.

use super::*;

/// The first of `tokens` that is not a byte.
const FIRST: u32 = 256;

/// Returns a vocabulary of `tokens` of type `kind`, with keys `tokenizer.ggml.<name>_token_id` for some of them.
fn vocabulary(tokens: &[&str], kind: i32, keys: &[(&str, u32)]) -> Tokenizer {
    let tokens: Vec<(&str, i32)> = tokens.iter().map(|text| (*text, kind)).collect();
    let mut entries = byte_level_entries(&tokens, &[], "gpt-2");
    for (name, index) in keys {
        set(&mut entries, &format!("{name}_token_id"), Value::U32(FIRST + index));
    }
    build(entries).unwrap()
}

#[test]
fn each_family_ends_where_its_tokens_say() {
    type Family<'a> = (&'a [&'a str], &'a [(&'a str, u32)], &'a [u32]);
    let families: &[Family] = &[
        // In gpt-oss `<|end|>` ends a message and not the turn, even if the file calls it an end of turn.
        (
            &["<|start|>", "<|end|>", "<|message|>", "<|return|>", "<|call|>", "<|endoftext|>"],
            &[("eos", 3)],
            &[3, 4, 5],
        ),
        (&["<|start|>", "<|end|>", "<|return|>", "<|call|>"], &[("eos", 2), ("eot", 1)], &[2, 3]),
        // phi-3, phi-4
        (&["<|end|>", "<|user|>", "<|endoftext|>"], &[("eos", 2)], &[0, 2]),
        // solar
        (&["<|end|>", "<|calls|>", "<|flush|>", "<|endoftext|>"], &[("eos", 0)], &[1, 2, 3]),
        // gemma 2 and 3, gemma 4
        (&["<eos>", "<start_of_turn>", "<end_of_turn>"], &[("eos", 0)], &[0, 2]),
        (&["<eos>", "<turn|>", "<|turn>", "<|tool_response>", "</s>"], &[("eos", 0)], &[0, 1, 3]),
        // glm 4
        (
            &["<|endoftext|>", "<|user|>", "<|observation|>", "<|system|>"],
            &[("eos", 0), ("eot", 1), ("eom", 2)],
            &[0, 1, 2],
        ),
        // minimax-m2
        (&["[e~[", "]~b]", "]~!b[", "<fim_pad>", "<reponame>"], &[("eos", 0)], &[0, 3, 4]),
        // llama 3
        (&["<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], &[("eos", 3)], &[1, 2, 3]),
        // In hyperclova and exaone the file's key decides.
        (&["<|endofturn|>", "<|stop|>", "<|im_end|>", "<|endoftext|>"], &[("eos", 0)], &[0, 2, 3]),
        (&["[|endofturn|]", "[|user|]"], &[("eos", 0)], &[0]),
        // kimi
        (&["[EOS]", "[EOT]", "[PAD]", "[BOS]"], &[("eos", 0)], &[0, 1, 2]),
        // granite, qwen
        (&["<|end_of_text|>", "<fim_prefix>", "<fim_pad>", "<reponame>"], &[("eos", 0)], &[0, 2, 3]),
        (
            &["<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_middle|>", "<|endoftext|>"],
            &[("eos", 0)],
            &[0, 1, 2, 3, 5],
        ),
        // deepseek
        (&["<｜end▁of▁sentence｜>", "<｜User｜>"], &[("eos", 0)], &[0]),
    ];
    for (tokens, keys, expected) in families {
        let expected: Vec<u32> = expected.iter().map(|index| FIRST + index).collect();
        // Files type such tokens as control, user-defined or text tokens.
        for kind in [3, 4, 1] {
            let tokenizer = vocabulary(tokens, kind, keys);
            assert_eq!(tokenizer.eos_token_ids(), expected, "{tokens:?} of type {kind}");
            for &id in &expected {
                assert!(tokenizer.is_special(id), "{} of type {kind}", tokens[(id - FIRST) as usize]);
            }
        }
    }
}

#[test]
fn a_tag_of_html_is_text_where_another_token_ends_the_turn() {
    let gemma4 = vocabulary(&["<eos>", "<turn|>", "<|tool_response>", "</s>"], 1, &[("eos", 0)]);
    assert!(!gemma4.is_special(FIRST + 3));
    assert_eq!(gemma4.decode(&[FIRST + 3], true).unwrap(), "</s>");
    let mistral = vocabulary(&["<s>", "</s>"], 1, &[("eos", 1)]);
    assert!(mistral.is_special(FIRST + 1));
    assert_eq!(mistral.decode(&[FIRST + 1], true).unwrap(), "");
}

#[test]
fn the_pre_tokenizer_says_whether_a_prompt_begins_with_bos() {
    // BOS by default, if the file says yes, and if it says no.
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
            assert_eq!(ids.first() == Some(&FIRST), expected, "{pre}, add_bos_token {said:?}");
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
        // White space stays after these two, and after text that only spells a token.
        assert_eq!(tokenizer.encode("<s> a<|endoftext|> a", false, true).unwrap(), [256, 260, 259, 258, 260, 259]);
        assert_eq!(tokenizer.encode("<s> a", false, false).unwrap().last_chunk(), Some(&[260, 259]));
    }
}
