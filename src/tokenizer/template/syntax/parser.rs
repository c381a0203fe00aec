//! Parses statements, from tokens to the tree. Expressions are in `expression.rs`.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Macro, Name, Node, Post, Statement, Target};
use super::lexer;
use super::token::Token;
use crate::template::fault::{Fault, Res};

/// The deepest nesting of blocks and parentheses; real templates have some tens.
const MAX_DEPTH: usize = 200;

pub(in crate::template) struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
    loops: usize,
}

/// Returns the tree of a template's source.
pub(in crate::template) fn parse(source: &str) -> Res<Body> {
    let mut parser = Parser { tokens: lexer::tokens(source)?, at: 0, depth: 0, loops: 0 };
    parser.body(&[]).map_err(|fault| fault.at(parser.line()))
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn peek_second(&self) -> &Token {
        self.tokens.get(self.at + 1).map_or(&Token::End, |(token, _)| token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    pub(super) fn at_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(found) if *found == symbol)
    }

    pub(super) fn at_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if **found == *name)
    }

    pub(super) fn skip_symbol(&mut self, symbol: &str) -> bool {
        let found = self.at_symbol(symbol);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.at_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_symbol(&mut self, symbol: &str) -> Res<()> {
        if self.skip_symbol(symbol) { Ok(()) } else { Err(self.unexpected(&format!("'{symbol}'"))) }
    }

    pub(in crate::template) fn name(&mut self) -> Res<Name> {
        let Token::Name(name) = self.peek() else { return Err(self.unexpected("a name")) };
        let name = Arc::clone(name);
        self.at += 1;
        Ok(name)
    }

    pub(super) fn unexpected(&self, expected: &str) -> Fault {
        let got = match self.peek() {
            Token::Text(_) => "text".into(),
            Token::PrintBegin => "'{{'".into(),
            Token::PrintEnd => "'}}'".into(),
            Token::TagBegin => "'{%'".into(),
            Token::TagEnd => "'%}'".into(),
            Token::Name(name) => format!("'{name}'"),
            Token::Str(text) => format!("the string {text:?}"),
            Token::Int(number) => number.to_string(),
            Token::Float(number) => number.to_string(),
            Token::Symbol(symbol) => format!("'{symbol}'"),
            Token::End => "the end".into(),
        };
        Fault::new(format!("syntax error: got {got}, expected {expected}")).at(self.line())
    }

    /// Runs `parse` one level deeper.
    pub(in crate::template) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::new(format!("it nests deeper than {MAX_DEPTH} levels")).at(self.line()));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Parses statements up to a tag that is named in `ends`, whose name is then next. Without `ends`, parses to the
    /// end.
    fn body(&mut self, ends: &[&str]) -> Res<Body> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let statement = match self.next() {
                Token::Text(text) => Statement::Text(text),
                Token::PrintBegin => {
                    let value = self.tuple(true)?;
                    if self.next() != Token::PrintEnd {
                        self.at -= 1;
                        return Err(self.unexpected("'}}'"));
                    }
                    Statement::Print(value)
                }
                Token::TagBegin if matches!(self.peek(), Token::Name(name) if ends.contains(&&**name)) => {
                    return Ok(body);
                }
                Token::TagBegin => self.nested(Self::statement)?,
                _ if ends.is_empty() => return Ok(body),
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected(&format!("{{% {} %}}", ends.join(" %} or {% "))));
                }
            };
            body.push(Node { line, statement });
        }
    }

    /// Parses the rest of a tag, then statements up to one of `ends`.
    fn block(&mut self, ends: &[&str]) -> Res<Body> {
        self.tag_end()?;
        self.body(ends)
    }

    /// Reads a block with one end tag, including that tag.
    fn closed_block(&mut self, end: &str) -> Res<Body> {
        let body = self.block(&[end])?;
        self.at += 1;
        self.tag_end()?;
        Ok(body)
    }

    fn tag_end(&mut self) -> Res<()> {
        self.skip_symbol(":");
        if *self.peek() != Token::TagEnd {
            return Err(self.unexpected("'%}'"));
        }
        self.at += 1;
        Ok(())
    }

    fn statement(&mut self) -> Res<Statement> {
        let name = self.name()?;
        match &*name {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => {
                let name = self.name()?;
                self.expect_symbol("(")?;
                let parameters = self.parameters()?;
                Ok(Statement::Macro(Arc::new(self.macro_body(name, parameters, "endmacro")?)))
            }
            "call" => self.call_statement(),
            "filter" => {
                let mut filters = vec![self.filter()?];
                filters.extend(self.filters()?);
                Ok(Statement::FilterBlock { filters, body: self.closed_block("endfilter")? })
            }
            "with" => self.with_statement(),
            // Marks the assistant's text, for training. Rendering it renders its body.
            "generation" => Ok(Statement::Scope(self.closed_block("endgeneration")?)),
            // Chats are rendered without escaping, so only turning it off has no effect.
            "autoescape" if self.skip_name("false") || self.skip_name("False") => {
                Ok(Statement::Scope(self.closed_block("endautoescape")?))
            }
            "block" => self.block_statement(),
            "break" | "continue" if self.loops > 0 => {
                self.tag_end()?;
                Ok(if &*name == "break" { Statement::Break } else { Statement::Continue })
            }
            _ => {
                self.at -= 1;
                Err(self.unexpected("a statement of Jinja that chat templates may use"))
            }
        }
    }

    fn if_statement(&mut self) -> Res<Statement> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false)?;
            branches.push((test, self.block(&["elif", "else", "endif"])?));
            match self.next() {
                Token::Name(name) if &*name == "elif" => {}
                Token::Name(name) if &*name == "else" => {
                    return Ok(Statement::If { branches, otherwise: self.closed_block("endif")? });
                }
                _ => {
                    self.tag_end()?;
                    return Ok(Statement::If { branches, otherwise: Vec::new() });
                }
            }
        }
    }

    fn for_statement(&mut self) -> Res<Statement> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return Err(self.unexpected("'in'"));
        }
        let iterable = self.tuple(false)?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let body = self.block(&["endfor", "else"])?;
        self.loops -= 1;
        let has_else = self.at_name("else");
        self.at += 1;
        let otherwise = if has_else { self.closed_block("endfor")? } else { Vec::new() };
        if !has_else {
            self.tag_end()?;
        }
        Ok(Statement::For(Arc::new(For { target, iterable, condition, recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Res<Statement> {
        let target = self.target(true)?;
        if self.skip_symbol("=") {
            let value = self.tuple(true)?;
            self.tag_end()?;
            return Ok(Statement::Set { target, value });
        }
        let filters = self.filters()?;
        Ok(Statement::SetBlock { target, filters, body: self.closed_block("endset")? })
    }

    fn call_statement(&mut self) -> Res<Statement> {
        let parameters = if self.skip_symbol("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Postfix(_, posts) if matches!(posts.last(), Some(Post::Call(_)))) {
            return Err(self.unexpected("a call"));
        }
        let caller = Arc::new(self.macro_body("caller".into(), parameters, "endcall")?);
        Ok(Statement::CallBlock { call, caller })
    }

    fn with_statement(&mut self) -> Res<Statement> {
        let mut variables = Vec::new();
        while *self.peek() != Token::TagEnd {
            if !variables.is_empty() {
                self.expect_symbol(",")?;
            }
            let target = self.target(false)?;
            self.expect_symbol("=")?;
            variables.push((target, self.expression()?));
        }
        Ok(Statement::With { variables, body: self.closed_block("endwith")? })
    }

    fn block_statement(&mut self) -> Res<Statement> {
        let name = self.name()?;
        while self.skip_name("scoped") || self.skip_name("required") {}
        let body = self.block(&["endblock"])?;
        self.at += 1;
        self.skip_name(&name);
        self.tag_end()?;
        Ok(Statement::Scope(body))
    }

    fn macro_body(&mut self, name: Name, parameters: Vec<(Name, Option<Expr>)>, end: &str) -> Res<Macro> {
        let start = self.at;
        // A loop around the macro does not count within it.
        let loops = std::mem::take(&mut self.loops);
        let body = self.closed_block(end)?;
        self.loops = loops;
        let names = |name: &str| {
            self.tokens[start..self.at].iter().any(|(token, _)| matches!(token, Token::Name(found) if **found == *name))
        };
        Ok(Macro { name, parameters, body, takes_varargs: names("varargs"), takes_kwargs: names("kwargs") })
    }

    /// Parses the parameters of a macro, including the closing parenthesis.
    fn parameters(&mut self) -> Res<Vec<(Name, Option<Expr>)>> {
        let mut parameters: Vec<(Name, Option<Expr>)> = Vec::new();
        while !self.skip_symbol(")") {
            if !parameters.is_empty() {
                self.expect_symbol(",")?;
            }
            let name = self.name()?;
            let default = if self.skip_symbol("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(Fault::new(format!("parameter '{name}' without a default follows one that has one")));
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    /// Parses the target of an assignment: a name, names with commas, or (`attributes`) a namespace's attribute.
    fn target(&mut self, attributes: bool) -> Res<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            targets.push(if self.skip_symbol("(") {
                let inner = self.nested(|parser| parser.target(attributes))?;
                self.expect_symbol(")")?;
                inner
            } else {
                let name = self.name()?;
                let attribute = if attributes && self.skip_symbol(".") { Some(self.name()?) } else { None };
                attribute.map_or(Target::Name(Arc::clone(&name)), |attribute| Target::Attribute(name, attribute))
            });
            if !self.skip_symbol(",") {
                break;
            }
            is_tuple = true;
            if !(matches!(self.peek(), Token::Name(_)) || self.at_symbol("(")) || self.at_name("in") {
                break;
            }
        }
        Ok(match targets.pop() {
            Some(only) if !is_tuple => only,
            last => Target::Tuple(targets.into_iter().chain(last).collect()),
        })
    }
}
