use serde_json::{Value, json};

use super::*;
use crate::Result;

const LIMITS: Limits = Limits { values: 20, fields: 10, containers: 10, escapes: 8 };

/// Builds values of another implementation, to compare with its own reader. Sinks get a shared reference to a list or
/// an object, so that its place here stands for it.
struct Tree(Vec<Value>);

impl Sink for Tree {
    type Value = usize;
    type Error = Error;

    fn scalar(&mut self, scalar: Scalar<'_>) -> Result<usize> {
        let value = match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Integer(digits) => Value::Number(serde_json::from_str(digits).map_err(Error::internal)?),
            Scalar::Real(value) => serde_json::Number::from_f64(value).map_or(json!("no number"), Value::Number),
            Scalar::Text(text) => match text.decode() {
                Ok(text) => Value::String(text.into_owned()),
                Err(LoneSurrogates(bytes)) => json!({ "bytes": bytes }),
            },
        };
        Ok(self.add(value))
    }

    fn list(&mut self) -> Result<usize> {
        Ok(self.add(json!([])))
    }

    fn push(&mut self, list: &usize, item: usize) -> Result<()> {
        let item = self.0[item].take();
        self.0[*list].as_array_mut().unwrap().push(item);
        Ok(())
    }

    fn object(&mut self) -> Result<usize> {
        Ok(self.add(json!({})))
    }

    fn insert(&mut self, object: &usize, name: Text<'_>, item: usize) -> Result<()> {
        let item = self.0[item].take();
        self.0[*object].as_object_mut().unwrap().insert(name.decode().unwrap().into_owned(), item);
        Ok(())
    }
}

impl Tree {
    fn add(&mut self, value: Value) -> usize {
        self.0.push(value);
        self.0.len() - 1
    }
}

fn tree(text: &str) -> Result<Value> {
    let mut tree = Tree(Vec::new());
    let root = read(text, &mut tree)?;
    Ok(tree.0[root].take())
}

/// Digits as floats, whose spelling the other reader keeps.
fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) if !number.to_string().bytes().all(|b| b == b'-' || b.is_ascii_digit()) => {
            json!(number.as_f64().unwrap().to_string())
        }
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, item)| (name, plain(item))).collect(),
        other => other,
    }
}

#[test]
fn values_are_those_of_another_reader() {
    for text in [
        "null",
        " [true , false,\n null ]\t",
        "[]",
        "{}",
        r#"{"a": {"b": [1, -2, 0, -0, 12345678901234567890123]}, "a b": [[], {}]}"#,
        r#"{"a": 1, "b": 2, "a": 3}"#,
        "[0.5, -1.25e3, 1E+2, 1e-2, 0e0, 123456789.125]",
        r#"["", "a", "ä€😀", "\"\\\/\b\f\n\r\t", "\u00e4\u20AC\ud83d\ude00x", "\u0000"]"#,
        r#"["0123456789012345678901234567890", "01234567890123456789012345678901", "0123456789012345678901234567890\n!"]"#,
    ] {
        assert_eq!(plain(tree(text).unwrap()), plain(serde_json::from_str(text).unwrap()), "{text}");
        check(text.as_bytes().to_vec(), Limits { values: 99, fields: 99, containers: 99, escapes: 99 }).unwrap();
    }
}

#[test]
fn python_s_numbers_and_half_surrogate_pairs_are_read() {
    assert_eq!(tree("[NaN, Infinity, -Infinity, 1e999]").unwrap(), json!(vec!["no number"; 4]));
    assert_eq!(tree(r#""\ud800""#).unwrap(), json!({"bytes": [0xED, 0xA0, 0x80]}));
    assert_eq!(tree(r#""\udc00\ud800""#).unwrap(), json!({"bytes": [0xED, 0xB0, 0x80, 0xED, 0xA0, 0x80]}));
    assert_eq!(tree(r#""\ud800\n""#).unwrap(), json!({"bytes": [0xED, 0xA0, 0x80, 10]}));
}

/// Each is an error of the other reader as well, at every place at which it is cut or a byte is changed.
#[test]
fn what_is_not_json_is_refused() {
    let text =
        r#"{"a": [1, -2.5e+3, "b\n\u00e4", true, null], "c": {"d": "0123456789012345678901234567890123456789"}}"#;
    for at in 0..text.len() {
        for replaced in ["", "\"", "\\", ",", "]", "}", "0", "-", "e", "\n", "\u{1}", "u"] {
            let mut changed = text.to_owned();
            changed.replace_range(at..=at, replaced);
            for text in [&changed, &text[..at]] {
                let wanted = serde_json::from_str::<Value>(text);
                match tree(text) {
                    Ok(value) => assert_eq!(plain(value), plain(wanted.unwrap()), "{text}"),
                    Err(error) => assert!(wanted.is_err(), "{text}: {error}"),
                }
            }
        }
    }
}

#[test]
fn an_error_names_the_place() {
    for (text, place) in [
        (r#"{"a": "b",}"#, "body: got '}' at line 1 column 11, expected a name in quotes"),
        ("{\"a\":\n \"b\" \"c\"}", "body: got '\"' at line 2 column 6, expected `,` or `}`"),
        ("[01]", "got '1' at line 1 column 3"),
        ("[1, ", "got its end at line 1 column 5, expected a value"),
        ("[\"\\x\"]", "got 'x' at line 1 column 4"),
        ("nul", "got 'n' at line 1 column 1, expected a value"),
        ("1 ä", "got 'ä' at line 1 column 3, expected the end of the body"),
    ] {
        let error = tree(text).unwrap_err().to_string();
        assert!(error.contains(place), "{text}: {error}");
    }
    let error = check(b"\"a\n\xff\"".to_vec(), LIMITS).unwrap_err().to_string();
    assert!(error.contains("line 2 column 1, expected UTF-8"), "{error}");
    assert!(tree(&"9".repeat(MAX_DIGITS)).is_ok());
    assert!(tree(&"9".repeat(MAX_DIGITS + 1)).unwrap_err().to_string().contains("column 1, expected an integer of"));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(tree(&nested(MAX_DEPTH)).is_ok());
    let error = tree(&nested(MAX_DEPTH + 1)).unwrap_err().to_string();
    assert!(error.contains(&format!("column {}, expected at most {MAX_DEPTH} levels", MAX_DEPTH + 1)), "{error}");
}

#[test]
fn what_a_text_has_is_counted() {
    let list = |count: usize, item: &str| format!("[{}]", vec![item; count].join(","));
    let object = |count: usize| format!("{{{}}}", vec![r#""a":1"#; count].join(","));
    for (within, beyond, name) in [
        (list(20, "1"), list(21, "1"), "values"),
        (object(10), object(11), "fields of objects"),
        (list(9, "[]"), list(10, "[]"), "objects and lists"),
        (list(9, "{}"), list(10, "{}"), "objects and lists"),
        (list(4, r#""\n\t""#), list(5, r#""\n\t""#), "escapes in texts"),
        (r#"{"\n\n\n\n\n\n\n\n":1}"#.into(), r#"{"\n\n\n\n\n\n\n\n\n":1}"#.into(), "escapes in texts"),
        // Marks in strings are no values.
        (list(4, r#""[[[{{{,,,:::""#), list(21, r#""[{,:""#), "values"),
    ] {
        assert_eq!(check(within.clone().into_bytes(), LIMITS).unwrap(), within);
        // The reader stops at the excess, before the wrong mark.
        let error = check([beyond.as_bytes(), b"!"].concat(), LIMITS).unwrap_err().to_string();
        assert!(error.starts_with(&format!("body: got more {name}, expected at most ")), "{error}");
    }
    assert_eq!(check(b"\xef\xbb\xbf[]".to_vec(), LIMITS).unwrap(), "[]");
}
