//! Limits of chat templates: every operation counts its memory and time.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::ChatTemplate;
use crate::Error;

/// Each of these templates takes milliseconds to some seconds. Without counting, it would take minutes to days.
const PATIENCE: Duration = Duration::from_secs(60);

fn render(source: &str, vars: Value) -> Result<String, String> {
    let Value::Object(vars) = vars else { panic!("not an object") };
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    let begin = Instant::now();
    let rendered = template.render(&json!([]), &Value::Null, true, &vars);
    assert!(begin.elapsed() < PATIENCE, "{source}: {:?}", begin.elapsed());
    match rendered {
        Ok(rendered) => Ok(rendered.text),
        Err(Error::ChatTemplate { problem }) => Err(problem),
        Err(error) => panic!("{source}: {error}"),
    }
}

/// The variable `big` is a string of 20 million bytes.
const BIG: &str = "{% set s = 'a' * 1000 %}{% set big = s * 20000 %}";

/// Every value that a template keeps counts as memory, wherever it is kept: 30 times 20 or more megabytes are rejected.
#[test]
fn everything_that_is_kept_counts_as_memory() {
    for (start, kept) in [
        ("", "{% set ns.l = ns.l + [namespace(**{big ~ i: 1})] %}"),
        ("{% set many = [0] * 2000000 %}", "{% set ns.l = ns.l + [loop] %}{% set same = loop.changed(*many) %}"),
        ("{% set many = [0] * 2000000 %}", "{% set ns.l = ns.l + [cycler(*many)] %}"),
    ] {
        // Each iteration has its own loop, so that each keeps its values.
        let source = format!(
            "{BIG}{start}{{% set ns = namespace(l=[]) %}}\
             {{% for i in range(30) %}}{{% for j in [1] %}}{kept}{{% endfor %}}{{% endfor %}}"
        );
        let problem = render(&source, json!({})).unwrap_err();
        assert!(problem.contains("bytes of memory"), "{kept}: {problem}");
    }
}

/// A list that changes has bounded memory and depth, and cannot contain itself.
#[test]
fn lists_that_change_are_bounded() {
    for (source, expected) in [
        ("{% set l = [] %}{% for i in range(100000) %}{% for j in range(100000) %}{% set _ = l.append(i) %}", "steps"),
        (
            "{% set big = 'a' * 20000000 %}{% set l = [] %}{% for i in range(30) %}{% set _ = l.append(big ~ i) %}",
            "bytes",
        ),
        ("{% set l = [1] * 2000000 %}{% for i in range(100000) %}{% set _ = l.insert(0, i) %}", "steps"),
        ("{% set l = [] %}{% set _ = l.append(l) %}", "contain itself"),
        ("{% set l = [] %}{% set _ = l.extend([0, [{'a': (1, [l])}]]) %}", "contain itself"),
        (
            "{% set a = [] %}{% set b = [a] %}{% set c = [] %}{% set _ = c.append(b) %}{% set _ = a.append(c) %}",
            "contain itself",
        ),
        (
            "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set l = [] %}{% set _ = l.append(n.l) %}{% set n.l = l %}",
            "too deep",
        ),
        ("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}", "deeper than"),
        ("{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}", "while a loop goes over it"),
    ] {
        let ends = "{% endfor %}".repeat(source.matches("{% for").count());
        let problem = render(&format!("{source}{ends}"), json!({})).unwrap_err();
        assert!(problem.contains(expected), "{source}: {problem}");
    }
    // These contain themselves by other values, which are freed.
    let source = "{% set l = [[]] %}{% set n = namespace(l=l) %}{% set _ = l.append(n) %}{% set _ = l.append(l.append) %}\
                  {% for i in [l] %}{% set _ = l.append(loop) %}{% endfor %}{{ l|length }}{{ l[1].l|length }}";
    assert_eq!(render(source, json!({})), Ok("44".into()));
    // A queue takes no more memory than its longest state.
    let source = "{% set l = [1] * 2000000 %}{% for i in range(100000) %}{% set _ = l.append(l.pop()) %}{% endfor %}";
    assert_eq!(render(source, json!({})), Ok(String::new()));
    let source = "{% set n = namespace() %}{% set l = [1, 2] %}{% for i in l %}{% set n.loop = loop %}{% endfor %}\
                  {% set _ = l.pop() %}{% set _ = l.pop() %}{{ n.loop.revindex0 }}";
    assert_eq!(render(source, json!({})), Ok("-2".into()));
}

/// A missing item keeps only the start of its name, for the error of its use.
#[test]
fn a_missing_item_keeps_the_beginning_of_its_name() {
    let source = format!(
        "{BIG}{{% set ns = namespace(l=[]) %}}{{% for i in range(40) %}}{{% set ns.l = ns.l + [''[big]] %}}{{% endfor %}}"
    );
    assert_eq!(render(&(source + "{{ ns.l|length }}"), json!({})), Ok("40".into()));
    let shown = "é".repeat(64);
    for missing in ["''[name]", "{}[name]", "[]|attr(name)", "namespace()[name]"] {
        let problem = render(&format!("{{{{ ({missing}).x }}}}"), json!({"name": "é".repeat(100_000)})).unwrap_err();
        assert!(problem.contains(&format!("'{shown}'")) && problem.len() < 300, "{missing}: {} bytes", problem.len());
    }
}

/// Work is counted by the bytes that it reads. Templates that read too many end in an error.
#[test]
fn work_is_counted_by_what_it_looks_at() {
    let many: Map<String, Value> = (0..50_000).map(|i| (format!("k{i}"), json!(0))).collect();
    let vars = json!({"many": many});
    for source in [
        format!("{BIG}{{{{ big.startswith((big,) * 1000000) }}}}"),
        format!("{BIG}{{{{ big.endswith((big,) * 1000000) }}}}"),
        format!("{BIG}{{% for i in range(1000) %}}{{{{ 'a'.find(big) }}}}{{{{ big in 'a' }}}}{{% endfor %}}"),
        format!("{BIG}{{% for i in range(1000) %}}{{{{ 'a'.strip(big) }}}}{{% endfor %}}"),
        "{% set ns = namespace(**many) %}".into(),
    ] {
        let problem = render(&source, vars.clone()).unwrap_err();
        assert!(problem.contains("steps"), "{source}: {problem}");
    }
}

/// The time of stripping is the sum of both strings' lengths, not their product.
#[test]
fn long_sets_of_characters_are_stripped_at_once() {
    let both = "{% set a = 'a' * 4000000 %}{% set set = 'b' * 4000000 ~ 'a' %}";
    for strip in ["a.strip(set)", "a|trim(set)", "(a ~ 'c').lstrip(set)", "('c' ~ a).rstrip(set)"] {
        let expected = usize::from(strip.contains('c')).to_string();
        assert_eq!(render(&format!("{both}{{{{ ({strip})|length }}}}"), json!({})), Ok(expected), "{strip}");
    }
}

/// Whether loops iterate over content is found in one pass, so that a file's template cannot make it take minutes.
#[test]
fn content_is_followed_through_thousands_of_names_at_once() {
    let names = 5_500;
    let sets: String = (0..names).map(|i| format!("{{%set a{i}=a{}%}}", i + 1)).collect();
    let begin = Instant::now();
    for (last, expected) in [("m.content", true), ("m.role", false)] {
        let source = format!("{sets}{{%set a{names}={last}%}}{{%for p in a0%}}{{%endfor%}}");
        let template = ChatTemplate::new(&source, "", "").unwrap();
        assert_eq!(template.loops_over_content(), expected, "{last}");
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}
