//! Chat templates render as transformers' Jinja does, within bounds.

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Metadata, Path, entries, set, strings};
use crate::{Error, gguf, testdata};

fn render(source: &str, vars: Value) -> crate::Result<String> {
    let Value::Object(vars) = vars else { panic!("not an object") };
    ChatTemplate::new(source, "<s>", "</s>")?.render(&json!([]), &Value::Null, true, &vars)
}

fn problem(result: crate::Result<String>) -> String {
    match result {
        Err(Error::ChatTemplate { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn real_templates_render_exactly() {
    let golden = testdata::json("templates/renderings.json");
    let mut rendered = 0;
    for (name, cases) in golden.as_object().unwrap() {
        let source = String::from_utf8(testdata::bytes(&format!("templates/{name}.jinja"))).unwrap();
        for (case, golden) in cases.as_object().unwrap() {
            let variables = golden["variables"].as_object().unwrap();
            let token = |key: &str| variables[key].as_str().unwrap();
            let template = ChatTemplate::new(&source, token("bos_token"), token("eos_token")).unwrap();
            let prompt = golden["add_generation_prompt"].as_bool().unwrap();
            let result = template.render(&golden["messages"], &golden["tools"], prompt, variables);
            match golden.get("raises") {
                None => assert_eq!(result.unwrap(), golden["rendered"].as_str().unwrap(), "{name}: {case}"),
                Some(raises) => {
                    let message = raises.as_str().unwrap().strip_prefix("TemplateError: ").unwrap();
                    assert_eq!(self::problem(result), message, "{name}: {case}");
                }
            }
            rendered += 1;
        }
    }
    assert!(rendered > 70, "{rendered}");
}

/// Expected text by Python's `json.dumps(…, ensure_ascii=False)`.
#[test]
fn tojson_is_that_of_python() {
    let value = json!({
        "é": "ü\u{2028}<&'>\"\\\n\t\u{1}\u{7f}",
        "n": [1, -2.5, 1e16, 1e-5, 0.0001, 123456789012345680.0, true, null, [], {}],
        "o": {"b": 1, "a": 2},
    });
    let vars = json!({"v": value});
    let text = "\"ü\u{2028}<&'>\\\"\\\\\\n\\t\\u0001\u{7f}\"";
    let numbers = "[1, -2.5, 1e+16, 1e-05, 0.0001, 1.2345678901234568e+17, true, null, [], {}]";
    let plain = format!("{{\"é\": {text}, \"n\": {numbers}, \"o\": {{\"b\": 1, \"a\": 2}}}}");
    assert_eq!(render("{{ v|tojson }}", vars.clone()).unwrap(), plain);
    let compact = format!("{{\"é\":{text},\"n\":{},\"o\":{{\"b\":1,\"a\":2}}}}", numbers.replace(", ", ","));
    assert_eq!(render("{{ v|tojson(separators=(',', ':'), ensure_ascii=False) }}", vars.clone()).unwrap(), compact);
    let indented = format!(
        "{{\n  \"é\": {text},\n  \"n\": [\n    1,\n    -2.5,\n    1e+16,\n    1e-05,\n    0.0001,\n    \
         1.2345678901234568e+17,\n    true,\n    null,\n    [],\n    {{}}\n  ],\n  \"o\": {{\n    \"b\": 1,\n    \
         \"a\": 2\n  }}\n}}"
    );
    assert_eq!(render("{{ v|tojson(indent=2) }}", vars.clone()).unwrap(), indented);
    assert!(problem(render("{{ v|tojson(indent=1000000000000) }}", vars.clone())).contains("indent"));
    assert!(problem(render("{{ v|tojson(ensure_ascii=True) }}", vars)).contains("ensure_ascii"));
}

#[test]
fn templates_get_the_variables_and_functions_they_expect() {
    let none = json!({});
    let cases = [
        ("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}", "<s></s>TrueTrue"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{{ 'a,b'.split(',')[1].upper() }}{{ {'k': 1}.get('x', 2) }}", "B2"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, none.clone()).unwrap(), expected, "{source}");
    }
    let year: i32 = render("{{ strftime_now('%Y') }}", none.clone()).unwrap().parse().unwrap();
    assert!(year >= 2024);
    assert!(problem(render("{{ strftime_now('%') }}", none.clone())).contains("strftime_now"));
    assert_eq!(problem(render("{{ raise_exception('no ' ~ 'way') }}", none)), "no way");
    assert_eq!(render("{{ bos_token }}{{ own }}", json!({"bos_token": "B", "own": "x"})).unwrap(), "Bx");
}

#[test]
fn the_template_comes_from_the_file_and_a_default_is_not_invented() {
    let mut metadata = entries(&[("tokens", strings(&["<s>", "</s>"]))]);
    set(&mut metadata, "bos_token_id", gguf::Value::U32(0));
    set(&mut metadata, "eos_token_id", gguf::Value::U32(1));
    let read = |metadata: &Vec<_>| ChatTemplate::from_metadata(&Metadata::new(Path::new("m"), metadata.clone())?);
    assert!(read(&metadata).unwrap().is_none());
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    metadata.push(("tokenizer.chat_template".into(), gguf::Value::String(source.into())));
    let template = read(&metadata).unwrap().unwrap();
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(template.render(&messages, &Value::Null, false, &Map::new()).unwrap(), "<s>hi</s>");
    set(&mut metadata, "bos_token_id", gguf::Value::U32(2));
    assert!(matches!(read(&metadata), Err(Error::ModelFile { location, .. }) if location.ends_with("bos_token_id")));
}

/// Every one of these must end in an error: not in a hang, an overflow of the stack, or terabytes.
#[test]
fn hostile_templates_end_in_an_error() {
    let repeat = |text: &str, count: usize| text.repeat(count);
    let sources = [
        "{% for i in range(1000000000000) %}{{ i }}{% endfor %}".into(),
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{{ 'x' * 100000000000 }}".into(),
        "{% for i in range(1000) %}{{ 'x' * 1000000 }}{% endfor %}".into(),
        "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{{ 'x'|indent(1000000000000, true) }}".into(),
        "{{ 'x'|indent(width=1000000000000, first=true) }}".into(),
        "{{ '%1000000000000d'|format(1) }}".into(),
        "{{ '{:1000000000000}'.format(1) }}".into(),
        "{{ [1]|batch(1000000000000, 1)|list }}".into(),
        "{{ [1]|slice(1000000000000)|list }}".into(),
        "{{ nothing.here['x'][0] }}".into(),
        "{{ unclosed".into(),
        format!("{{{{ {}1{} }}}}", repeat("(", 20_000), repeat(")", 20_000)),
        format!("{{{{ {}1{} }}}}", repeat("[", 20_000), repeat("]", 20_000)),
        repeat("{% if true %}", 9_000),
        format!("{{{{ x{} }}}}", repeat(".x", 60_000)),
        repeat(" ", 200_000),
    ];
    for source in sources {
        let shown: String = source.chars().take(60).collect();
        assert!(!problem(render(&source, json!({}))).is_empty(), "{shown}");
    }
}

/// Trees as deep as a template can make them do not overflow the stack, whether or not they render.
#[test]
fn deep_trees_are_survived() {
    let chain = format!("{{{{ 1{} }}}}", "+1".repeat(60_000));
    assert_eq!(render(&chain, json!({})).unwrap(), "60001");
    let branches = format!("{{% if false %}}{}{{% endif %}}ok", "{% elif false %}".repeat(8_000));
    assert_eq!(render(&branches, json!({})).unwrap(), "ok");
    let negations = |sign: &str, count| render(&format!("{{{{ {}1 }}}}", sign.repeat(count)), json!({}));
    assert_eq!(negations("not ", 30_000).unwrap(), "True");
    assert!(matches!(negations("-", 100_000), Ok(_) | Err(Error::ChatTemplate { .. })));
    // Two loops, nearly as many rounds as the fuel allows.
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(2) %}{% for j in range(60000) %}{% set ns.x = [ns.x] %}\
                {% endfor %}{% endfor %}";
    for end in ["ok", "{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x == [] }}", "{{ ns.x|string|length }}"] {
        assert!(render(&format!("{nest}{end}"), json!({})).is_ok(), "{end}");
    }
}
