//! Compares every class with another implementation of the models' own patterns.

use super::*;
use crate::testdata;

/// Returns the words of `text`, as their lengths in bytes.
fn lengths(splitter: &PreTokenizer, text: &str) -> Vec<u64> {
    let mut lengths = Vec::new();
    let mut emit = |word: &str| {
        lengths.push(word.len() as u64);
        Ok::<_, ()>(())
    };
    splitter.split(text, &mut emit).unwrap();
    lengths
}

/// The splits are Oniguruma's (from the `tokenizers` library), for the patterns of the models' `tokenizer.json`.
#[test]
fn every_class_splits_as_the_models_patterns_do() {
    let golden = testdata::json("tokenizers/splits.json");
    let texts = golden["texts"].as_array().unwrap();
    let splits = golden["splits"].as_object().unwrap();
    for (name, expected) in splits {
        let splitter = Class::named(name).unwrap().compile().unwrap();
        for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let expected: Vec<u64> = expected.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert_eq!(lengths(&splitter, text), expected, "{name}: {text:?}");
        }
        assert_eq!(expected.as_array().unwrap().len(), texts.len(), "{name}");
    }
    for (class, names) in CLASSES {
        let tested = splits.keys().any(|name| Class::named(name).unwrap().passes == class.passes);
        assert!(tested, "{names:?}");
    }
}

#[test]
fn no_name_stands_for_two_classes() {
    let mut names: Vec<&str> = pre_tokenizers().flatten().copied().collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn spaces_and_digits_are_cut_as_the_look_aheads_say() {
    let words = |name, text: &str| lengths(&Class::named(name).unwrap().compile().unwrap(), text);
    // If a word follows 7 spaces, it gets the last one.
    assert_eq!(words("jais-2", "       a"), [4, 2, 2]);
    assert_eq!(words("jais-2", &" ".repeat(1030)), [512, 512, 4, 2]);
    assert_eq!(words("tiny_aya", "1234567 12 1234a"), [1, 3, 3, 1, 2, 1, 3, 1, 1]);
}
