//! The JSON schemas of a grammar in the syntax of Lark, as the library reads them rightly.

use std::sync::LazyLock;

use regex_automata::Input;
use regex_automata::meta::Regex;
use serde_json::{Deserializer, Value};

use super::schema;

/// The word before a schema, and what may hold that word without a schema behind it: texts, patterns, comments and
/// names of tokens, as the library divides a grammar.
const PIECES: &str = r#""(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|(?:#|//)[^\n]*|<[^<>\s]+>|%json"#;

/// Returns the grammar with its schemas in words that the library reads as the standard says. What is no JSON stays as
/// it is: the library says where it stands.
///
/// # Errors
/// The problem with a schema that the library would read in another way, or with too large an object.
pub(super) fn read_schemas(grammar: &str) -> Result<String, String> {
    static FINDER: LazyLock<Result<Regex, String>> =
        LazyLock::new(|| Regex::new(PIECES).map_err(|error| error.to_string()));
    let finder = FINDER.as_ref()?;
    let mut read = String::with_capacity(grammar.len());
    let mut at = 0;
    while let Some(piece) = finder.find(Input::new(grammar).range(at..)) {
        read.push_str(&grammar[at..piece.end()]);
        at = piece.end();
        if &grammar[piece.range()] != "%json" {
            continue;
        }
        let mut values = Deserializer::from_str(&grammar[at..]).into_iter::<Value>();
        if let Some(Ok(mut schema)) = values.next() {
            let settings = schema.as_object_mut().and_then(|schema| schema.remove(schema::SETTINGS));
            let settings = settings.and_then(|settings| settings.as_object().cloned()).unwrap_or_default();
            let schema = schema::read(schema, settings)?;
            read.push_str(&format!(" {schema}"));
            at += values.byte_offset();
        }
    }
    read.push_str(&grammar[at..]);
    Ok(read)
}
