//! From the text of a template to its syntax tree.

pub(super) mod ast;
mod expression;
pub(super) mod lexer;
mod literals;
pub(super) mod parser;
mod token;
