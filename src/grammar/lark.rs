//! Rewrites the JSON schemas within a Lark grammar, so that the library reads them correctly.

use std::sync::LazyLock;

use regex_automata::Input;
use regex_automata::meta::Regex;
use serde_json::{Deserializer, Value};

use super::schema;

/// Matches the word before a schema, and everything else that may contain that word: strings, patterns, comments and
/// token names, as the library splits a grammar.
const PIECES: &str = r#""(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|(?:#|//)[^\n]*|<[^<>\s]+>|%json"#;

/// Returns the grammar with its schemas rewritten so that the library follows the standard. Text that is not JSON
/// stays, and the library reports its place.
///
/// # Errors
/// The problem with a schema that the library would misread, or with too large an object.
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
