//! Chat templates render as in transformers' Jinja, within limits.

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Metadata, Path, Tokenizer, byte_level_entries, entries, set, strings};
use crate::{Error, gguf, testdata};

fn render(source: &str, vars: Value) -> crate::Result<String> {
    let Value::Object(vars) = vars else { panic!("not an object") };
    Ok(ChatTemplate::new(source, "<s>", "</s>")?.render(&json!([]), &Value::Null, true, &vars)?.text)
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
                None => assert_eq!(result.unwrap().text, golden["rendered"].as_str().unwrap(), "{name}: {case}"),
                Some(raises) => {
                    let message = raises.as_str().unwrap().strip_prefix("TemplateError: ").unwrap();
                    assert_eq!(self::problem(result.map(|rendered| rendered.text)), message, "{name}: {case}");
                }
            }
            rendered += 1;
        }
    }
    assert!(rendered > 70, "{rendered}");
}

/// A2, F7: operators, filters, tests, methods and white space match Jinja's, and its errors are errors. The expected
/// texts are Jinja's own, from `tests/templates/jinja_golden.py`.
#[test]
fn the_language_is_that_of_jinja() {
    let golden = testdata::json("templates/jinja.json");
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "yy"}]);
    let cases = golden.as_array().unwrap();
    assert!(cases.len() > 300, "{}", cases.len());
    let mut differ = Vec::new();
    for case in cases {
        let source = case[0].as_str().unwrap();
        let rendered = ChatTemplate::new(source, "<s>", "</s>")
            .and_then(|template| template.render(&messages, &Value::Null, true, &Map::new()));
        let text = match rendered {
            Ok(rendered) => Some(rendered.text),
            Err(Error::ChatTemplate { .. }) => None,
            Err(error) => panic!("{source}: {error}"),
        };
        if text.as_deref() != case[1].as_str() {
            differ.push((source, text, &case[1]));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// The expected text comes from Python's `json.dumps(…, ensure_ascii=False)`.
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
    let ascii = render("{{ v['é']|tojson(ensure_ascii=True) }}", vars).unwrap();
    assert_eq!(ascii, "\"\\u00fc\\u2028<&'>\\\"\\\\\\n\\t\\u0001\u{7f}\"");
}

#[test]
fn templates_get_the_variables_and_functions_they_expect() {
    let none = json!({});
    let cases = [
        ("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}", "<s></s>TrueTrue"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{{ 'a,b'.split(',')[1].upper() }}{{ {'k': 1}.get('x', 2) }}", "B2"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ strftime_now('%%') }}{{ strftime_now('%') }}", "%%"),
        ("{{ strftime_now('%f')|length }}{{ strftime_now('%z%Z') }}", "6"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, none.clone()).unwrap(), expected, "{source}");
    }
    let year: i32 = render("{{ strftime_now('%Y') }}", none.clone()).unwrap().parse().unwrap();
    assert!(year >= 2024);
    assert!(problem(render("{{ strftime_now('%!') }}", none.clone())).contains("strftime_now"));
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
    assert_eq!(template.render(&messages, &Value::Null, false, &Map::new()).unwrap().text, "<s>hi</s>");
    set(&mut metadata, "bos_token_id", gguf::Value::U32(2));
    assert!(matches!(read(&metadata), Err(Error::ModelFile { location, .. }) if location.ends_with("bos_token_id")));
}

/// A template that replaces the file's writes the same BOS and EOS. Of several end tokens it uses the file's EOS, not
/// the first one in the vocabulary.
#[test]
fn a_template_in_place_of_the_files_gets_the_same_tokens() {
    let source = "{{ bos_token }}|{{ eos_token }}";
    let mut entries = byte_level_entries(&[("<|endoftext|>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3)], &[], "gpt-2");
    set(&mut entries, "bos_token_id", gguf::Value::U32(257));
    set(&mut entries, "eos_token_id", gguf::Value::U32(258));
    entries.push(("tokenizer.chat_template".into(), gguf::Value::String(source.into())));
    let metadata = Metadata::new(Path::new("m"), entries).unwrap();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.eos_token_ids(), [256, 258]);
    let of_file = ChatTemplate::from_metadata(&metadata).unwrap().unwrap();
    for template in [of_file, ChatTemplate::for_tokenizer(source, &tokenizer).unwrap()] {
        let rendered = template.render(&json!([]), &Value::Null, false, &Map::new()).unwrap();
        assert_eq!(rendered.text, "<|im_start|>|<|im_end|>");
    }
}

/// Each of these must end in an error, and not in a hang, a stack overflow, or terabytes.
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
        "{{ 'x'|center(1000000000000) }}".into(),
        "{{ [1]|tojson(indent=1000000000000) }}".into(),
        "{{ nothing.here['x'][0] }}".into(),
        "{{ unclosed".into(),
        format!("{{{{ {}1{} }}}}", repeat("(", 20_000), repeat(")", 20_000)),
        format!("{{{{ {}1{} }}}}", repeat("[", 20_000), repeat("]", 20_000)),
        format!("{{{{ {}1 }}}}", repeat("not ", 30_000)),
        format!("{{{{ {}1 }}}}", repeat("-", 100_000)),
        repeat("{% if true %}", 9_000),
        format!("{{{{ x{} }}}}", repeat(".x", 60_000)),
        repeat(" ", 200_000),
    ];
    for source in sources {
        let shown: String = source.chars().take(60).collect();
        assert!(!problem(render(&source, json!({}))).is_empty(), "{shown}");
    }
}

/// A2: a value that grows with each of a few instructions is rejected before its memory is allocated.
#[test]
fn values_that_double_end_in_an_error() {
    let grow = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(40) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
        )
    };
    for source in [
        grow("'x'", "ns.x ~ ns.x", "{{ ns.x|length }}"),
        grow("'x'", "ns.x + ns.x", "{{ ns.x|length }}"),
        grow("'xx'", "ns.x * 9", "{{ ns.x|length }}"),
        grow("'xx'", "ns.x|replace('x', 'xx')", "{{ ns.x|length }}"),
        grow("'xx'", "ns.x.join([ns.x, ns.x, ns.x])", "{{ ns.x|length }}"),
        grow("'xx'", "'%s%s' % (ns.x, ns.x)", "{{ ns.x|length }}"),
        grow("'xx'", "'{0}{0}'.format(ns.x)", "{{ ns.x|length }}"),
        grow("'\\n'", "ns.x|indent(9, true, true) ~ ns.x", "{{ ns.x|length }}"),
        grow("['x']", "ns.x + ns.x", "{{ ns.x|length }}"),
        grow("['x']", "ns.x * 9", "{{ ns.x|length }}"),
        // Trees with shared branches are small until they are written, compared or joined.
        grow("['x']", "[ns.x, ns.x]", "{{ ns.x }}"),
        grow("['x']", "[ns.x, ns.x]", "{{ ns.x|tojson }}"),
        grow("['x']", "[ns.x, ns.x]", "{{ ns.x|string|length }}"),
        grow("['x']", "[ns.x, ns.x]", "{{ ns.x|join }}"),
        grow("['x']", "[ns.x, ns.x]", "{{ [ns.x] == [ns.x + []] }}"),
        grow("{'k': 'x'}", "{'k': ns.x, 'l': ns.x}", "{{ ns.x }}"),
        "{% macro m(x, n) %}{% if n %}{{ m(x ~ x, n - 1) }}{% endif %}{{ x|length }}{% endmacro %}{{ m('x', 60) }}"
            .into(),
    ] {
        let problem = problem(render(&source, json!({})));
        let refused = ["bytes of memory", "steps", "longer than"].iter().any(|reason| problem.contains(reason));
        assert!(refused, "{source}: {problem}");
    }
}

/// The longest chains and the deepest values of a template do not overflow the stack.
#[test]
fn long_chains_are_survived() {
    let chain = format!("{{{{ 1{} }}}}", "+1".repeat(60_000));
    assert_eq!(render(&chain, json!({})).unwrap(), "60001");
    let branches = format!("{{% if false %}}{}{{% endif %}}ok", "{% elif false %}".repeat(8_000));
    assert_eq!(render(&branches, json!({})).unwrap(), "ok");
    let nest = "{% set ns = namespace(x=[]) %}{% for i in range(60000) %}{% set ns.x = [ns.x] %}{% endfor %}ok";
    assert!(problem(render(nest, json!({}))).contains("nest"));
    let depth = 150;
    let parentheses = format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(render(&parentheses, json!({})).unwrap(), "1");
}

/// NaN has no order. Sorting values with NaN terminates and loses nothing.
#[test]
fn lists_that_hold_nan_are_sorted() {
    for length in [21, 50, 173, 500] {
        // The numbers are permuted, with NaN at every seventh place.
        let numbers = (0..length).map(|i| if i % 7 == 3 { Value::Null } else { json!(i * 389 % 503) });
        let vars = json!({"numbers": numbers.collect::<Vec<_>>()});
        for sorted in ["l|sort", "l|sort(reverse=true)"] {
            let source = "{% set l = numbers|map('float', 'nan'|float)|list %}";
            let rendered = render(&format!("{source}{{{{ ({sorted})|length }}}}"), vars.clone());
            assert_eq!(rendered.unwrap(), length.to_string(), "{sorted}");
        }
    }
}

/// A failing comparison is the error of the sort, and not a panic.
#[test]
fn sorting_what_has_no_order_is_an_error() {
    let items: Vec<Value> = (0..100).map(|i| if i % 3 == 0 { json!({"k": i}) } else { json!(i) }).collect();
    assert!(problem(render("{{ items|sort }}", json!({"items": items}))).contains("no order"));
}

/// A namespace that contains itself is freed after the rendering.
#[test]
fn a_namespace_may_hold_itself() {
    assert_eq!(render("{% set ns = namespace() %}{% set ns.me = [ns] %}ok", json!({})).unwrap(), "ok");
}

/// A20: integers beyond 64 bits are written as they were sent, as in Python.
#[test]
fn long_integers_are_exact() {
    let long = "123456789012345678901234567890123456789012345678901234567890";
    for digits in ["12345678901234567890123", "-170141183460469231731687303715884105728", long] {
        let vars: Value = serde_json::from_str(&format!("{{\"n\": {digits}, \"l\": [{digits}]}}")).unwrap();
        let expected = format!("{digits} {digits} [{digits}] True");
        assert_eq!(render("{{ n }} {{ n|tojson }} {{ l }} {{ n in l }}", vars).unwrap(), expected);
    }
    assert_eq!(
        render("{{ n }} {{ n|tojson }}", json!({"n": 12345678901234567890.0f64})).unwrap().split(' ').count(),
        2
    );
}
