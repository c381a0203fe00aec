//! The forms of content, final messages that are continued, and SentencePiece.

use super::*;
use crate::gguf::GgufFile;

fn text(template: &ChatTemplate, conversation: &Conversation) -> String {
    render_text(template, conversation).unwrap().text
}

fn asked(content: Value, content_format: ContentFormat) -> Conversation {
    Conversation { content_format, ..Conversation::new(json!([{"role": "user", "content": content}])) }
}

const FLAT: &str = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
const LOOP: &str = "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}";

#[test]
fn parts_become_one_string_for_templates_that_take_one() {
    let parts = parts(&["a", "b"]);
    assert_eq!(text(&own(FLAT), &asked(parts.clone(), ContentFormat::Auto)), "[a\nb]");
    assert_eq!(text(&own(LOOP), &asked(parts.clone(), ContentFormat::Auto)), "<a><b>");
    assert_eq!(text(&own(FLAT), &asked(parts.clone(), ContentFormat::String)), "[a\nb]");
    assert_eq!(text(&own(LOOP), &asked(json!("a"), ContentFormat::OpenAi)), "<a>");
    assert_eq!(text(&own(FLAT), &asked(json!("a"), ContentFormat::Auto)), "[a]");
    assert_eq!(text(&own(FLAT), &asked(json!([1, 2]), ContentFormat::Auto)), "[[1, 2]]");
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    match render_text(&own(FLAT), &asked(image, ContentFormat::Auto)) {
        Err(Error::InvalidRequest { what: "messages", got, .. }) => assert!(got.contains("image_url"), "{got}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(ContentFormat::named("xml"), Err(Error::InvalidRequest { .. })));
}

/// Gemma's template only begins an image. A client that writes the same text begins none.
#[test]
fn images_of_gemma_are_ended() {
    let controls = ["<start_of_image>", "<end_of_image>"];
    let letters = ["a", "b", "<", ">", "_", "Ċ"].into_iter().chain("startofimgend".split("").filter(|c| !c.is_empty()));
    let mut tokens: Vec<String> = letters.map(str::to_owned).collect();
    tokens.sort();
    tokens.dedup();
    let types = [vec![1; tokens.len()], vec![3; 2]].concat();
    tokens.extend(controls.map(str::to_owned));
    let tokenizer = byte_level(tokens, types, &[]);
    let source = "{% for p in messages[0].content %}{% if p.type == 'image' %}<start_of_image>{% else %}{{ p.text }}\
                  {% endif %}{% endfor %}";
    let content =
        json!([{"type": "text", "text": "a<start_of_image>"}, {"type": "image"}, {"type": "text", "text": "b"}]);
    let prompt = render_chat(&tokenizer, &own(source), &asked(content, ContentFormat::Auto)).unwrap();
    assert_eq!(prompt.text, "a<start_of_image>\n\n<start_of_image><end_of_image>\n\nb");
    let special = prompt.token_ids.iter().filter(|&&id| tokenizer.is_special(id));
    let special: Vec<&str> = special.map(|&id| tokenizer.token_text(id).unwrap()).collect();
    assert_eq!(special, controls);
    assert_eq!(tokenizer.decode(&prompt.token_ids, false).unwrap(), prompt.text);
}

#[test]
fn loops_over_content_are_found() {
    let m = "{% for m in messages %}";
    for (source, expected) in [
        (FLAT.to_owned(), false),
        (LOOP.to_owned(), true),
        (
            format!("{m}{{% set c = m['content'] %}}{{% for p in c %}}{{{{ p.text }}}}{{% endfor %}}{{% endfor %}}"),
            true,
        ),
        (
            format!("{m}{{% for p in m['content'] | selectattr('type', 'eq', 'text') %}}{{% endfor %}}{{% endfor %}}"),
            true,
        ),
        ("{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ f(messages[0].content) }}".to_owned(), true),
        (format!("{m}{{% for c in m.tool_calls %}}{{{{ c }}}}{{% endfor %}}{{{{ m.content }}}}{{% endfor %}}"), false),
        ("{% for line in messages[0].content.split('x') %}{{ line }}{% endfor %}".to_owned(), false),
    ] {
        assert_eq!(own(&source).loops_over_content(), expected, "{source}");
    }
    let names = TEMPLATES.iter().map(|(name, ..)| *name);
    let looping: Vec<&str> = names.filter(|name| real(name).loops_over_content()).collect();
    assert_eq!(looping, ["ibm-granite-granite-4.0"]);
}

/// Some templates loop over the content of results only, and add texts to that of a question.
#[test]
fn parts_of_a_question_are_joined_where_it_has_to_be_a_text() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{% for part in m.content %}{{ part.text }}{% endfor %}\
                  {% elif m.tool_calls is defined %}{% set calls = m.content %}{% for c in calls %}{% endfor %}\
                  {% else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}{% endfor %}";
    assert!(!own(source).loops_over_content());
    assert_eq!(text(&own(source), &asked(parts(&["a", "b"]), ContentFormat::Auto)), "[INST] a\nb[/INST]");
    let shown =
        "{% for m in messages %}{{ m.content }}{% for part in m.content if part is mapping %}{% endfor %}{% endfor %}";
    assert_eq!(text(&own(shown), &asked(parts(&["a", "b"]), ContentFormat::Auto)), "a\nb");
}

/// Only the placeholders that the caller names become texts of the template. A client's same texts stay texts.
#[test]
fn placeholders_become_control_tokens() {
    let tokenizer = tokenizer();
    let source = "{% for m in messages %}<|im_start|>{{ m.content | trim }}{% endfor %}";
    let control_texts = vec![("1f3a:0".to_owned(), "<|im_end|>".to_owned()), ("1f3a:1".into(), "</s>".into())];
    let content = "<|im_end|>1f3a:0f(x)1f3a:11f3a:0 <|im_end|> 1f3a:2";
    let conversation = Conversation { control_texts, ..asked(json!(content), ContentFormat::Auto) };
    let prompt = render_chat(&tokenizer, &own(source), &conversation).unwrap();
    assert_eq!(prompt.text, "<|im_start|><|im_end|><|im_end|>f(x)</s><|im_end|> <|im_end|> 1f3a:2");
    assert_eq!(
        controls(&tokenizer, &own(source), &conversation).unwrap(),
        ["<|im_start|>", "<|im_end|>", "</s>", "<|im_end|>"]
    );
}

fn continued(content: &str, source: &str) -> Result<Rendered> {
    let messages = json!([{"role": "user", "content": "n"}, {"role": "assistant", "content": content}]);
    let conversation =
        Conversation { add_generation_prompt: false, continue_final_message: true, ..Conversation::new(messages) };
    render_text(&own(source), &conversation)
}

/// The prompt is cut where transformers cuts it, and text of the template that looks like the message is not mistaken
/// for it.
#[test]
fn a_final_message_is_continued() {
    let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let start = "<|im_start|>user\nn<|im_end|>\n<|im_start|>assistant\n";
    for content in ["The rivers are", "n", "im_end", " spaced ", "two\nlines\n", "<|im_end|>"] {
        let Rendered { text, template } = continued(content, plain).unwrap();
        assert_eq!(text, format!("{start}{content}"));
        assert!(template.iter().all(|own| own.end <= start.len()), "{template:?}");
    }
    let trimming = plain.replace("m.content", "m.content|trim");
    assert_eq!(continued(" a b \n", &trimming).unwrap().text, format!("{start}a b"));
    for (content, source) in [("", plain), (" \n", plain), ("a", "{{ messages[0].content }}")] {
        assert!(matches!(
            continued(content, source),
            Err(Error::InvalidRequest { what: "continue_final_message", .. })
        ));
    }
    let messages = json!([{"role": "user", "content": "x"}]);
    let both = Conversation { continue_final_message: true, ..Conversation::new(messages) };
    match render_text(&own(plain), &both) {
        Err(Error::InvalidRequest { what: "continue_final_message", got, .. }) => {
            assert!(got.contains("add_generation_prompt"), "{got}");
        }
        other => panic!("{other:?}"),
    }
}

/// A18: text that spells a control token is tokenized like any other, without an added space.
#[test]
fn text_that_spells_a_control_token_gets_no_space() {
    for name in ["mistral", "llama_tied"] {
        let file = testdata::file(&format!("arch/{name}.gguf"));
        let tokenizer = Tokenizer::from_metadata(GgufFile::open(&file.0).unwrap().metadata()).unwrap();
        let eos = tokenizer.encode("</s>", false, true).unwrap();
        assert!(eos.len() == 1 && tokenizer.is_special(eos[0]), "{name}");
        let prompt = |content: &str, source: &str| {
            let conversation = Conversation::new(json!([{"role": "user", "content": content}]));
            render_chat(&tokenizer, &own(source), &conversation).unwrap().token_ids
        };
        let plain = tokenizer.encode("a</s>b", false, false).unwrap();
        assert!(!plain.iter().any(|&id| tokenizer.is_special(id)), "{name}");
        assert_eq!(prompt("a</s>b", "{{ messages[0].content }}"), plain, "{name}");
        // After the template's own token a new text begins, as in llama.cpp and Hugging Face.
        let expected: Vec<u32> = [&eos, &plain, &eos].into_iter().flatten().copied().collect();
        assert_eq!(prompt("a</s>b", "</s>{{ messages[0].content }}</s>"), expected, "{name}");
    }
}
