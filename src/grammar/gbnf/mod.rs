//! Converts grammars from GBNF, llama.cpp's syntax, to the library's syntax.
//!
//! GBNF defines which characters may follow each other. The library instead reads lexemes, defined by regular
//! expressions, and rules over lexemes. So parts of the grammar become lexemes, chosen such that the language stays the
//! same.

mod automaton;
mod chars;
mod lexemes;
mod parse;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use self::lexemes::Lexemes;
use self::parse::{Grammar, Node, NodeId};

/// True if a grammar is in this syntax: it begins with a rule, whose name is followed by `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    parse::begins_with_rule(text)
}

/// Returns the grammar in Lark syntax.
///
/// # Errors
/// The problem with the grammar, and its line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let grammar = parse::parse(text)?;
    let lexemes = lexemes::choose(&grammar)?;
    let (terminals, out) = (HashMap::new(), String::new());
    let mut writer = Writer { grammar: &grammar, lexemes: &lexemes, terminals, num_bytes: 0, out };
    writer.write()?;
    Ok(writer.out)
}

struct Writer<'a> {
    grammar: &'a Grammar,
    lexemes: &'a Lexemes,
    /// The number of each lexeme's terminal, by its regular expression; equal ones share a terminal.
    terminals: HashMap<String, usize>,
    /// The bytes of these expressions.
    num_bytes: usize,
    out: String,
}

/// Maximum bytes of all lexemes with their rules expanded.
const MAX_TERMINAL_BYTES: usize = 2 << 20;
/// The only reason why a write to a string could fail.
const NO_MEMORY: &str = "no memory for the grammar";

impl Writer<'_> {
    fn write(&mut self) -> Result<(), String> {
        let mut used = vec![self.grammar.root];
        let mut written = BTreeSet::new();
        while let Some(rule) = used.pop() {
            if written.insert(rule) {
                let body = self.rule(self.grammar.rules[rule], &mut used)?;
                writeln!(self.out, "r{rule}: {body}").map_err(|_| NO_MEMORY)?;
            }
        }
        writeln!(self.out, "start: r{}", self.grammar.root).map_err(|_| NO_MEMORY)?;
        let mut terminals: Vec<(&String, &usize)> = self.terminals.iter().collect();
        terminals.sort_unstable_by_key(|(_, number)| **number);
        for (regex, number) in terminals {
            // The library has no empty lexemes.
            writeln!(self.out, "T{number}: /{regex}/ & /[\\s\\S]+/").map_err(|_| NO_MEMORY)?;
        }
        Ok(())
    }

    /// Returns a node in rule syntax, and adds its rules to `used`.
    fn rule(&mut self, node: NodeId, used: &mut Vec<usize>) -> Result<String, String> {
        if self.lexemes.nodes.contains(&node) {
            return self.lexeme(node);
        }
        Ok(match &self.grammar.nodes[node] {
            Node::Class(_) => self.lexeme(node)?,
            Node::Rule(rule) => {
                used.push(*rule);
                format!("r{rule}")
            }
            Node::Sequence(parts) if parts.is_empty() => "\"\"".into(),
            Node::Sequence(parts) => self.all(parts, used)?.join(" "),
            Node::Choice(ways) => format!("({})", self.all(ways, used)?.join(" | ")),
            Node::Repeat { of, min, max } => {
                let of = self.rule(*of, used)?;
                format!("({of}){}", repeats(*min, *max))
            }
        })
    }

    fn all(&mut self, nodes: &[NodeId], used: &mut Vec<usize>) -> Result<Vec<String>, String> {
        nodes.iter().map(|&node| self.rule(node, used)).collect()
    }

    fn lexeme(&mut self, node: NodeId) -> Result<String, String> {
        let mut regex = String::new();
        self.regex(node, &mut regex)?;
        let next = self.terminals.len();
        let len = regex.len();
        let number = *self.terminals.entry(regex).or_insert(next);
        self.num_bytes += if number == next { len } else { 0 };
        if self.num_bytes > MAX_TERMINAL_BYTES {
            return Err(format!(
                "the grammar is too large: its rules repeat others in more than {MAX_TERMINAL_BYTES} bytes"
            ));
        }
        let optional = if self.lexemes.nullable[node] { "?" } else { "" };
        Ok(format!("T{number}{optional}"))
    }

    fn regex(&self, node: NodeId, out: &mut String) -> Result<(), String> {
        match &self.grammar.nodes[node] {
            Node::Class(class) => class.write_regex(out),
            Node::Rule(rule) => self.regex(self.grammar.rules[*rule], out)?,
            Node::Sequence(parts) => parts.iter().try_for_each(|&part| self.regex(part, out))?,
            Node::Choice(ways) => {
                for (i, &way) in ways.iter().enumerate() {
                    out.push_str(if i == 0 { "(?:" } else { "|" });
                    self.regex(way, out)?;
                }
                out.push(')');
            }
            Node::Repeat { of, min, max } => {
                out.push_str("(?:");
                self.regex(*of, out)?;
                write!(out, "){}", repeats(*min, *max)).map_err(|_| NO_MEMORY)?;
            }
        }
        Ok(())
    }
}

fn repeats(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (_, None) => format!("{{{min},}}"),
        (_, Some(max)) => format!("{{{min},{max}}}"),
    }
}
