//! Parses a grammar in GBNF syntax, as llama.cpp documents it.

use std::collections::HashMap;

use super::chars::CharSet;

/// Index of a node in `Grammar::nodes`.
pub(super) type NodeId = usize;

/// The most nodes of a grammar; the work grows with the square of their number.
const MAX_NODES: usize = 20_000;
/// The deepest nesting of parentheses.
const MAX_DEPTH: usize = 200;
/// The largest number of repetitions, as in llama.cpp.
const MAX_REPEATS: u32 = 2000;

#[derive(Debug)]
pub(super) enum Node {
    Class(CharSet),
    Sequence(Vec<NodeId>),
    Choice(Vec<NodeId>),
    Repeat {
        of: NodeId,
        min: u32,
        max: Option<u32>,
    },
    /// Index of the rule.
    Rule(usize),
}

#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) nodes: Vec<Node>,
    /// The body of each rule.
    pub(super) rules: Vec<NodeId>,
    /// The rule that the whole text follows.
    pub(super) root: usize,
}

/// Parses a grammar.
///
/// # Errors
/// The problem, with the number of its line.
pub(super) fn parse(text: &str) -> Result<Grammar, String> {
    let mut parser = Parser { text, at: 0, nodes: Vec::new(), rules: HashMap::new() };
    parser.grammar().map_err(|problem| {
        let line = text[..parser.at].matches('\n').count() + 1;
        format!("line {line}: {problem}")
    })?;
    let Parser { nodes, rules, .. } = parser;
    let mut bodies = vec![0; rules.len()];
    for (name, (rule, body)) in &rules {
        bodies[*rule] = body.ok_or_else(|| format!("there is no rule {name}"))?;
    }
    let root = rules.get("root").ok_or("there is no rule root")?.0;
    Ok(Grammar { nodes, rules: bodies, root })
}

pub(super) fn begins_with_rule(text: &str) -> bool {
    let mut parser = Parser { text, at: 0, nodes: Vec::new(), rules: HashMap::new() };
    parser.skip(true);
    parser.name().is_ok_and(|_| {
        parser.skip(false);
        parser.take("::=")
    })
}

struct Parser<'a> {
    text: &'a str,
    /// The number of bytes that were read.
    at: usize,
    nodes: Vec<Node>,
    /// The index of each rule that was named, and its body once that was read.
    rules: HashMap<&'a str, (usize, Option<NodeId>)>,
}

type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.at += char.len_utf8();
        Some(char)
    }

    /// Reads `token` if it comes next.
    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    /// Skips spaces and comments, and line ends if `over_lines`.
    fn skip(&mut self, over_lines: bool) {
        while let Some(char) = self.peek() {
            match char {
                '#' => self.at += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len()),
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if over_lines => self.at += 1,
                _ => break,
            }
        }
    }

    fn node(&mut self, node: Node) -> Parsed<NodeId> {
        if self.nodes.len() == MAX_NODES {
            return Err(format!("the grammar has more than {MAX_NODES} parts"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn grammar(&mut self) -> Parsed<()> {
        self.skip(true);
        while !self.rest().is_empty() {
            let name = self.name()?;
            self.skip(false);
            if !self.take("::=") {
                return Err(format!("::= is missing after the name {name}"));
            }
            self.skip(true);
            let body = self.choice(0)?;
            let rule = self.rule(name);
            if self.rules.insert(name, (rule, Some(body))).is_some_and(|(_, known)| known.is_some()) {
                return Err(format!("the rule {name} was given before"));
            }
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return Err(format!("{:?} where a rule continues or its line ends", self.rest().chars().next()));
            }
            self.skip(true);
        }
        Ok(())
    }

    fn name(&mut self) -> Parsed<&'a str> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
        let len = self.rest().find(|char| !is_part(char)).unwrap_or(self.rest().len());
        if len == 0 {
            return Err(format!("{:?} where the name of a rule begins", self.peek()));
        }
        let name = &self.rest()[..len];
        self.at += len;
        Ok(name)
    }

    fn rule(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        self.rules.entry(name).or_insert((next, None)).0
    }

    fn choice(&mut self, depth: usize) -> Parsed<NodeId> {
        let mut ways = vec![self.sequence(depth)?];
        loop {
            let before = self.at;
            self.skip(true);
            if !self.take("|") {
                self.at = before;
                break;
            }
            self.skip(true);
            ways.push(self.sequence(depth)?);
        }
        if ways.len() == 1 { Ok(ways[0]) } else { self.node(Node::Choice(ways)) }
    }

    fn sequence(&mut self, depth: usize) -> Parsed<NodeId> {
        let mut parts = Vec::new();
        loop {
            self.skip(depth > 0);
            let Some(part) = self.part(depth)? else { break };
            parts.push(self.repeated(part, depth)?);
        }
        if parts.len() == 1 { Ok(parts[0]) } else { self.node(Node::Sequence(parts)) }
    }

    /// Reads one part of a sequence; `None` at the sequence's end.
    fn part(&mut self, depth: usize) -> Parsed<Option<NodeId>> {
        match self.peek() {
            Some('"') => {
                self.next();
                let mut chars = Vec::new();
                while !self.take("\"") {
                    let char = self.char()?;
                    chars.push(self.node(Node::Class(CharSet::of(char)))?);
                }
                if chars.len() == 1 { Ok(Some(chars[0])) } else { self.node(Node::Sequence(chars)).map(Some) }
            }
            Some('[') => {
                let class = self.class()?;
                self.node(Node::Class(class)).map(Some)
            }
            Some('.') => {
                self.next();
                self.node(Node::Class(CharSet::any())).map(Some)
            }
            Some('(') => {
                if depth == MAX_DEPTH {
                    return Err(format!("parentheses nest deeper than {MAX_DEPTH} levels"));
                }
                self.next();
                let inner = self.choice(depth + 1)?;
                self.skip(true);
                if self.take(")") { Ok(Some(inner)) } else { Err(") is missing".into()) }
            }
            Some('<' | '!') => Err("tokens named by < > are not supported: write their text".into()),
            Some(char) if char.is_ascii_alphanumeric() || char == '_' => {
                let name = self.name()?;
                let rule = self.rule(name);
                self.node(Node::Rule(rule)).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn repeated(&mut self, mut part: NodeId, depth: usize) -> Parsed<NodeId> {
        loop {
            self.skip(depth > 0);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(part),
            };
            self.next();
            part = self.node(Node::Repeat { of: part, min, max })?;
        }
    }

    /// Reads numbers of repetitions in braces, including the closing one.
    fn bounds(&mut self) -> Parsed<(u32, Option<u32>)> {
        let rest = self.rest();
        let end = rest.find('}').ok_or("} is missing")?;
        let wrong = || format!("{} where {{m}}, {{m,}}, {{,n}} or {{m,n}} are expected", &rest[..=end]);
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (min, max) = match rest[1..end].split_once(',') {
            None => number(&rest[1..end]).map(|count| (count, Some(count)))?,
            Some((min, max)) => {
                let min = if min.trim().is_empty() && !max.trim().is_empty() { 0 } else { number(min)? };
                (min, if max.trim().is_empty() { None } else { Some(number(max)?) })
            }
        };
        if max.is_some_and(|max| max < min) || min.max(max.unwrap_or(0)) > MAX_REPEATS {
            return Err(format!("{} of which the largest number may be {MAX_REPEATS}", &rest[..=end]));
        }
        self.at += end;
        Ok((min, max))
    }

    fn class(&mut self) -> Parsed<CharSet> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.char()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.next();
                self.char()?
            } else {
                first
            };
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            ranges.push((first as u32, last as u32));
        }
        let set = CharSet::from_ranges(ranges);
        let set = if negated { set.complement() } else { set };
        if set.is_empty() { Err("a class of no characters".into()) } else { Ok(set) }
    }

    /// Reads a character of a string or of a class, which may be an escape.
    fn char(&mut self) -> Parsed<char> {
        match self.next() {
            Some('\\') => {}
            Some(char) if !matches!(char, '\n' | '\r') => return Ok(char),
            _ => return Err("a text or a class without an end".into()),
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(char @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(char),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => return Err(format!("the escape \\{}", other.map(String::from).unwrap_or_default())),
        };
        let code = self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let char = code.and_then(char::from_u32).ok_or(format!("an escape that is no character of {digits} digits"))?;
        self.at += digits;
        Ok(char)
    }
}
