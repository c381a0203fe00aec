//! From a conversation to the token ids of a prompt.
//!
//! The rendered template is one text in which control tokens are recognised, and a message that spells one
//! (`<|im_end|>`) must not become it. So each such spelling inside a message is broken by a marker character before
//! the template sees it, and the text is tokenised in pieces that end at the markers.

use serde_json::{Map, Value};

use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    pub text: String,
    pub token_ids: Vec<u32>,
}

/// Renders and tokenises; arguments as in [`ChatTemplate::render`].
///
/// # Errors
/// `Error::ChatTemplate` from the template, `Error::InvalidRequest` for messages that use up every marker.
pub fn render_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &Value,
    tools: &Value,
    add_generation_prompt: bool,
    vars: &Map<String, Value>,
) -> Result<ChatPrompt> {
    let special = special_texts(tokenizer, &[messages, tools])?;
    if special.is_empty() {
        let text = template.render(messages, tools, add_generation_prompt, vars)?;
        let token_ids = tokenizer.encode(&text, false, true)?;
        return Ok(ChatPrompt { text, token_ids });
    }
    let marker = unused_marker(&[messages, tools])?;
    let messages = marked(messages, &special, marker);
    let tools = marked(tools, &special, marker);
    let rendered = template.render(&messages, &tools, add_generation_prompt, vars)?;
    let mut token_ids = Vec::new();
    for piece in rendered.split(marker) {
        token_ids.extend(tokenizer.encode(piece, false, true)?);
    }
    Ok(ChatPrompt { text: rendered.replace(marker, ""), token_ids })
}

/// The control tokens whose text occurs in the strings of `values`, longest first.
fn special_texts(tokenizer: &Tokenizer, values: &[&Value]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let ids = (0..tokenizer.vocab_size()).filter_map(|id| u32::try_from(id).ok());
    for id in ids.filter(|&id| tokenizer.is_special(id)) {
        let text = tokenizer.token_text(id)?;
        if !text.is_empty() && values.iter().any(|value| any_string(value, &|s| s.contains(text))) {
            found.push(text.to_owned());
        }
    }
    found.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
    Ok(found)
}

/// A code point that Unicode reserves for internal use (U+FDD0 to U+FDEF) and that no string of `values` holds.
fn unused_marker(values: &[&Value]) -> Result<char> {
    ('\u{FDD0}'..='\u{FDEF}')
        .find(|&marker| !values.iter().any(|value| any_string(value, &|s| s.contains(marker))))
        .ok_or_else(|| Error::invalid("messages", "all 32 noncharacters U+FDD0 to U+FDEF", "text without them"))
}

fn any_string(value: &Value, test: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(s) => test(s),
        Value::Array(items) => items.iter().any(|item| any_string(item, test)),
        Value::Object(fields) => fields.values().any(|field| any_string(field, test)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// `value` with `marker` after the first character of every special text in its strings.
fn marked(value: &Value, special: &[String], marker: char) -> Value {
    match value {
        Value::String(s) => Value::String(special.iter().fold(s.clone(), |mut s, text| {
            let mut broken = text.clone();
            broken.insert(text.chars().next().map_or(0, char::len_utf8), marker);
            // A text that ends as it begins may overlap itself; each round breaks what is left of that. One of a single
            // character cannot be broken.
            while text.chars().nth(1).is_some() && s.contains(text.as_str()) {
                s = s.replace(text.as_str(), &broken);
            }
            s
        })),
        Value::Array(items) => items.iter().map(|item| marked(item, special, marker)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, field)| (key.clone(), marked(field, special, marker))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn special_texts_in_messages_are_broken_everywhere() {
        let special = ["<|im_end|>".to_owned(), "é!".to_owned()];
        let messages = json!([{"role": "user", "content": "a<|im_end|>b", "more": ["é!é!", 1, null]}]);
        let expected =
            json!([{"role": "user", "content": "a<\u{FDD1}|im_end|>b", "more": ["é\u{FDD1}!é\u{FDD1}!", 1, null]}]);
        assert_eq!(marked(&messages, &special, '\u{FDD1}'), expected);
    }

    #[test]
    fn special_texts_that_overlap_themselves_are_broken_everywhere() {
        let special = ["|a|".to_owned()];
        for text in ["|a|a|", "|a|a|a|", "|a||a|a|"] {
            let Value::String(broken) = marked(&json!(text), &special, '\u{FDD0}') else { panic!("not a string") };
            assert!(!broken.contains("|a|"), "{broken:?}");
            assert_eq!(broken.replace('\u{FDD0}', ""), text);
        }
    }

    #[test]
    fn the_marker_is_one_that_the_messages_do_not_hold() {
        let messages = json!(["x\u{FDD0}y"]);
        assert_eq!(unused_marker(&[&messages]).unwrap(), '\u{FDD1}');
        let all: String = ('\u{FDD0}'..='\u{FDEF}').collect();
        assert!(matches!(unused_marker(&[&json!([all])]), Err(Error::InvalidRequest { what: "messages", .. })));
    }
}
