//! Tokens that swallow white space. The expected values are llama.cpp's.

use super::*;

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
