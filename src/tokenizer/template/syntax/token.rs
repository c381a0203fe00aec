//! Tokens of a template's source.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Source outside of tags.
    Text(Box<str>),
    /// `{{` and `}}`
    PrintBegin,
    PrintEnd,
    /// `{%` and `%}`
    TagBegin,
    TagEnd,
    Name(Arc<str>),
    Str(Box<str>),
    Int(i128),
    Float(f64),
    Symbol(&'static str),
    End,
}
