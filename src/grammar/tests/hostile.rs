//! Grammars that are designed to be expensive.

use super::*;

fn assert_refused(grammars: &Grammars, outputs: &StructuredOutputs, part: &str) {
    let text: String = format!("{outputs:?}").chars().take(80).collect();
    let problem = got(grammars.guide(outputs, true));
    assert!(problem.contains(part), "{text}: {problem}");
}

/// H11: a grammar that no text fits is rejected before the answer begins, with the reason.
#[test]
fn forms_that_no_text_fits_are_refused() {
    let grammars = grammars();
    let mutual = serde_json::json!({"$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}});
    for outputs in [
        compact(serde_json::json!({"$ref": "#"})),
        compact(mutual),
        lark("root ::= a\na ::= b\nb ::= a"),
        lark("start: %json {\"$ref\": \"#\"}"),
        lark("start: a\na: \"x\" a a"),
    ] {
        let text: String = format!("{outputs:?}").chars().take(80).collect();
        let problem = got(grammars.guide(&outputs, true));
        assert!(problem.contains("no text fits") || problem.contains("at once"), "{text}: {problem}");
    }
    assert!(got(grammars.guide(&regex("[^\\s\\S]"), true)).contains("refused"));
    assert_eq!(grammars.cache.lock().len(), 0);
}

/// Returns rules that each use the next one `fan` times, `rules` of them.
fn doubling(rules: usize, fan: usize) -> String {
    let rule = |i: usize| format!("r{i} ::={}\n", format!(" r{}", i + 1).repeat(fan));
    let all: String = (0..rules).map(rule).collect();
    format!("root ::= r0\n{all}r{rules} ::= \"a\"\n")
}

/// H2: forced text is bounded, whether it comes from rules, counts, long lexemes or control tokens.
#[test]
fn forced_text_is_bounded() {
    let grammars = grammars();
    let special: String = (0..20).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect();
    for outputs in [
        lark(&doubling(60, 2)),
        lark(&doubling(9, 300)),
        regex("((a{100}){100}){100}"),
        lark("start: \"a\" start"),
        lark(&format!("start: r0\n{special}r20: <[258]> /a{{1000}}/\n")),
        lark(&format!("start: r0\n{special}r20: /(ab){{1000}}/\n")),
        of(Constraint::Choice(vec!["a".repeat(100_000)])),
    ] {
        assert_refused(&grammars, &outputs, "bytes of text at once");
    }
    // After a choice the text itself ends, with advice.
    let mut late = grammars.guide(&lark(&doubling(60, 2).replace("root ::=", "root ::= [xy]")), true).unwrap();
    assert_eq!(allowed(&mut late), [u32::from(b'x'), u32::from(b'y')]);
    assert!(!late.accept(u32::from(b'x')).unwrap());
    let failed = mask(&mut late).unwrap_err();
    assert!(matches!(&failed, Error::GrammarFailed { .. }), "{failed}");
    assert!(failed.to_string().contains("at once; give the text a form that is smaller"), "{failed}");
}

/// Text that may end, or that is long but within the limit, is still forced.
#[test]
fn long_forced_texts_within_the_bound_stay() {
    let grammars = grammars();
    let text: String = (0..16_000u32).map(|i| char::from(b'a' + (i * i % 7) as u8)).collect();
    let mut guide = grammars.guide(&of(Constraint::Choice(vec![text.clone()])), true).unwrap();
    mask(&mut guide).unwrap();
    let forced: Vec<u8> = guide.forced().iter().flat_map(|&token| word(token)).collect();
    assert_eq!(String::from_utf8(forced).unwrap(), text);
    for endless in ["a{1,100000}", "(aa){1,100000}"] {
        let mut guide = grammars.guide(&regex(endless), true).unwrap();
        for _ in 0..20 {
            let choices = allowed(&mut guide);
            assert!(choices.contains(&u32::from(b'a')), "{endless}: {choices:?}");
            assert!(!guide.accept(u32::from(b'a')).unwrap());
        }
    }
    let marked = grammars.guide(&lark("start: \"ab\" <[258]> \"cd\" <[258]> /[xy]/"), true).unwrap();
    assert_eq!(marked.forced(), [&bytes("ab")[..], &[CONTROL], &bytes("cd"), &[CONTROL]].concat());
}

/// H10: the memory of a grammar is counted as it grows, and the cache evicts grammars by it.
#[test]
fn memory_is_counted_as_it_grows() {
    let grammars = grammars();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let outputs = |k: usize| regex(&format!("(.*[a-m].{{{k}}}){{3}}"));
    let mut guide = grammars.guide(&outputs(40), true).unwrap();
    let before = grammars.memory.bytes();
    for _ in 0..200 {
        let choices = allowed(&mut guide);
        let letters: Vec<u32> = choices.into_iter().filter(|token| (97..123).contains(token)).collect();
        guide.accept(letters[(random.next_u64() % letters.len() as u64) as usize]).unwrap();
    }
    let grown = grammars.memory.bytes();
    assert!(grown > 2 * before, "{before} bytes, then {grown}");
    drop(guide);
    assert_eq!(grammars.memory.bytes(), grown, "the cache has it");
    for i in 0..200 {
        grammars.guide(&regex(&format!("other {i}")), true).unwrap();
    }
    assert!(grammars.memory.bytes() < grown, "the cache has forgotten it");
}
