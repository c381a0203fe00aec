//! Random conversations: a client's text never becomes a control token.

use proptest::prelude::{prop, *};

use super::injection::harmless_twin;
use super::*;

/// Pieces of control tokens, whole and broken. Tokens with which templates compare content are excluded, since they
/// rightly change the output.
fn hostile() -> impl Strategy<Value = String> {
    let tokens: Vec<&str> = CONTROL.into_iter().filter(|t| !t.contains("think") && !t.contains("response")).collect();
    let token = prop::sample::select(tokens);
    let cut = (token.clone(), any::<prop::sample::Index>(), any::<bool>()).prop_map(|(token, at, front)| {
        let places: Vec<usize> = token.char_indices().map(|(at, _)| at).collect();
        let at = *at.get(&places);
        if front { token[..at].to_owned() } else { token[at..].to_owned() }
    });
    let word = prop::sample::select(vec!["a", " ", "\n", "é", "user", "im_end", "\"", "\\", "'", "{", "\u{fdd0}"]);
    let piece = prop_oneof![3 => token.prop_map(String::from), 3 => cut, 2 => word.prop_map(String::from)];
    prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat())
}

fn content() -> impl Strategy<Value = Value> {
    let many = prop::collection::vec(hostile(), 1..4);
    prop_oneof![
        3 => hostile().prop_map(Value::String),
        1 => many.prop_map(|texts| parts(&texts.iter().map(String::as_str).collect::<Vec<_>>())),
    ]
}

/// Returns a turn of a user with its answer, and maybe a tool call between them.
fn turns() -> impl Strategy<Value = Vec<Value>> {
    let role = prop_oneof![5 => Just("user".to_owned()), 1 => hostile()];
    let call = prop::option::of((hostile(), hostile(), hostile(), hostile(), any::<bool>()));
    (role, content(), content(), call).prop_map(|(role, question, answer, call)| {
        let mut turns = vec![json!({"role": role, "content": question})];
        if let Some((name, key, value, result, as_text)) = call {
            let mut arguments = json!({key: value, "n": 1});
            if as_text {
                arguments = Value::String(arguments.to_string());
            }
            let call =
                json!({"type": "function", "id": "123456789", "function": {"name": name, "arguments": arguments}});
            turns.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
            turns.push(json!({"role": "tool", "content": result, "name": name, "tool_call_id": "123456789"}));
        }
        turns.push(json!({"role": "assistant", "content": answer}));
        turns
    })
}

fn tool() -> impl Strategy<Value = Value> {
    (hostile(), hostile(), hostile(), hostile()).prop_map(|(name, description, key, kind)| {
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object",
            "properties": {key: {"type": kind, "description": description}, "b": {"type": "string", "description": ""}},
        }}})
    })
}

fn conversation() -> impl Strategy<Value = Conversation> {
    let tools = prop::option::of(prop::collection::vec(tool(), 1..3));
    let documents = prop::option::of(prop::collection::vec((hostile(), hostile(), hostile()), 1..3));
    let vars = prop::option::of((hostile(), hostile()));
    let turns = prop::collection::vec(turns(), 1..3);
    (prop::option::of(hostile()), turns, content(), tools, documents, vars, any::<bool>()).prop_map(
        |(system, turns, last, tools, documents, vars, add_generation_prompt)| {
            let system = system.map(|text| json!({"role": "system", "content": text}));
            let last = json!({"role": "user", "content": last});
            let messages = system.into_iter().chain(turns.into_iter().flatten()).chain([last]).collect();
            let mut conversation = Conversation { add_generation_prompt, ..Conversation::new(messages) };
            conversation.tools = tools.map_or(Value::Null, Value::Array);
            if let Some(documents) = documents {
                let document = |(key, title, text): (String, _, _)| json!({key: text, "title": title, "doc_id": 1});
                conversation.vars.insert("documents".into(), documents.into_iter().map(document).collect());
            }
            if let Some((date, tool)) = vars {
                conversation.vars.insert("date_string".into(), Value::String(date));
                conversation.vars.insert("builtin_tools".into(), json!([tool]));
            }
            conversation
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A1: conversations, tools, documents and variables may spell control tokens, whole or spread over neighbours.
    /// With every real template, they give the control tokens of the same conversation in harmless letters.
    #[test]
    fn clients_cannot_write_control_tokens(conversation in conversation()) {
        let tokenizer = tokenizer();
        let twin = harmless_twin(&conversation);
        for (name, ..) in TEMPLATES {
            let template = real(name);
            match (controls(&tokenizer, template, &conversation), controls(&tokenizer, template, &twin)) {
                (Ok(hostile), Ok(harmless)) => prop_assert_eq!(hostile, harmless, "{}", name),
                (Err(_), Err(_)) => {}
                (hostile, harmless) => prop_assert!(false, "{}: {:?} and {:?}", name, hostile, harmless),
            }
        }
    }
}
