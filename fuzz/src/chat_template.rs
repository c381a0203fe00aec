//! Any text as a chat template and, after a zero byte, any JSON as its messages. The result is a rendering, always the
//! same one, or an error, in bounded time and memory. Text of clients never counts as text of the template.

use std::str;

use rocmforge::tokenizer::{ChatTemplate, Rendered};
use serde_json::{Map, Value, json};

use super::allowed;

/// A character that no template contains, unless one writes it.
const MARK: char = '\u{e000}';

pub fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (source, messages) = text.split_once('\0').unwrap_or((text, ""));
    let Some(template) = allowed(ChatTemplate::new(source, "<s>", "</s>")) else { return };
    let usual = json!([
        {"role": "system", "content": format!("Be {MARK} brief.")},
        {"role": "user", "content": [{"type": "text", "text": format!(" <|{MARK}|> ")}]},
        {"role": "assistant", "content": format!("A{MARK}\n"), "tool_calls": [
            {"type": "function", "function": {"name": format!("f{MARK}"), "arguments": {"x": 1.5, "y": null}}}
        ]},
        {"role": "tool", "content": format!("{MARK}")},
    ]);
    let messages = serde_json::from_str(messages).unwrap_or(usual);
    let tools = json!([{"type": "function", "function": {
        "name": "f", "description": format!("{MARK}"), "parameters": {"properties": {"x": {"type": "integer"}}}
    }}]);
    for (tools, prompt) in [(&Value::Null, true), (&tools, false)] {
        let render = || allowed(template.render(&messages, tools, prompt, &Map::new()));
        let Some(rendered) = render() else { continue };
        origins_are_right(source, &rendered);
        assert!(source.contains("strftime_now") || render() == Some(rendered), "two renderings differ");
    }
}

/// Asserts that the template's own ranges are ordered, disjoint, on character boundaries, and contain no text of a
/// client.
fn origins_are_right(source: &str, rendered: &Rendered) {
    let mut end = None;
    for range in &rendered.template {
        assert!(range.start < range.end && end.is_none_or(|end| end < range.start), "{:?}", rendered.template);
        end = Some(range.end);
        let Some(own) = rendered.text.get(range.clone()) else {
            panic!("{range:?} of a text of {} bytes", rendered.text.len());
        };
        // The escapes that can write the mark; two-digit escapes end at U+00FF, and octal ones at U+01FF.
        let writes_it = source.contains(MARK) || source.contains("\\u") || source.contains("\\U");
        assert!(writes_it || !own.contains(MARK), "a client's text is trusted: {own:?}");
    }
}
