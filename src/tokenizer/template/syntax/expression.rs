//! Parses expressions, from tokens to the tree, with Jinja's operator precedence.

use super::ast::{Arguments, Comparison, Expr, Operator, Post};
use super::parser::Parser;
use super::token::Token;
use crate::template::fault::Res;

impl Parser {
    pub(in crate::template) fn expression(&mut self) -> Res<Expr> {
        self.nested(Self::conditional)
    }

    /// Parses expressions separated by commas as a tuple.
    pub(in crate::template) fn tuple(&mut self, with_conditional: bool) -> Res<Expr> {
        let mut items = Vec::new();
        loop {
            items.push(self.nested(if with_conditional { Self::conditional } else { Self::or })?);
            if !self.skip_symbol(",") {
                return Ok(match items.pop() {
                    Some(only) if items.is_empty() => only,
                    last => Expr::Tuple(items.into_iter().chain(last).collect()),
                });
            }
            if self.ends_tuple() {
                return Ok(Expr::Tuple(items));
            }
        }
    }

    fn ends_tuple(&self) -> bool {
        matches!(self.peek(), Token::PrintEnd | Token::TagEnd | Token::End | Token::Symbol(")"))
            || self.at_name("recursive")
    }

    fn conditional(&mut self) -> Res<Expr> {
        let value = self.or()?;
        if !self.skip_name("if") {
            return Ok(value);
        }
        let test = Box::new(self.or()?);
        let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
        Ok(Expr::Conditional { test, then: Box::new(value), otherwise })
    }

    fn or(&mut self) -> Res<Expr> {
        self.list_of(Self::and, Expr::Or, |parser| parser.skip_name("or"))
    }

    fn and(&mut self) -> Res<Expr> {
        self.list_of(Self::not, Expr::And, |parser| parser.skip_name("and"))
    }

    fn concat(&mut self) -> Res<Expr> {
        self.list_of(Self::product, Expr::Concat, |parser| parser.skip_symbol("~"))
    }

    fn list_of(
        &mut self,
        item: fn(&mut Self) -> Res<Expr>,
        node: fn(Vec<Expr>) -> Expr,
        separator: fn(&mut Self) -> bool,
    ) -> Res<Expr> {
        let first = item(self)?;
        if !separator(self) {
            return Ok(first);
        }
        let mut items = vec![first, item(self)?];
        while separator(self) {
            items.push(item(self)?);
        }
        Ok(node(items))
    }

    fn not(&mut self) -> Res<Expr> {
        if self.skip_name("not") { Ok(Expr::Not(Box::new(self.nested(Self::not)?))) } else { self.compare() }
    }

    fn compare(&mut self) -> Res<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let (found, tokens) = match self.peek() {
            Token::Symbol("==") => (Comparison::Equal, 1),
            Token::Symbol("!=") => (Comparison::NotEqual, 1),
            Token::Symbol("<") => (Comparison::Less, 1),
            Token::Symbol("<=") => (Comparison::LessEqual, 1),
            Token::Symbol(">") => (Comparison::Greater, 1),
            Token::Symbol(">=") => (Comparison::GreaterEqual, 1),
            Token::Name(name) if &**name == "in" => (Comparison::In, 1),
            Token::Name(name) if &**name == "not" => match self.peek_second() {
                Token::Name(name) if &**name == "in" => (Comparison::NotIn, 2),
                _ => return None,
            },
            _ => return None,
        };
        (0..tokens).for_each(|_| drop(self.next()));
        Some(found)
    }

    fn sum(&mut self) -> Res<Expr> {
        self.chain(Self::concat, &[("+", Operator::Add), ("-", Operator::Subtract)])
    }

    fn product(&mut self) -> Res<Expr> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.chain(Self::power, &operators)
    }

    fn power(&mut self) -> Res<Expr> {
        self.chain(|parser| parser.unary(true), &[("**", Operator::Power)])
    }

    fn chain(&mut self, item: fn(&mut Self) -> Res<Expr>, operators: &[(&str, Operator)]) -> Res<Expr> {
        let first = item(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(symbol, _)| self.skip_symbol(symbol)) {
            rest.push((*operator, item(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Arithmetic(Box::new(first), rest) })
    }

    fn unary(&mut self, with_filters: bool) -> Res<Expr> {
        let value = if self.skip_symbol("-") {
            Expr::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip_symbol("+") {
            Expr::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut posts = Vec::new();
        self.subscripts(&mut posts)?;
        if with_filters {
            self.filters_and_tests(&mut posts)?;
        }
        Ok(if posts.is_empty() { value } else { Expr::Postfix(Box::new(value), posts) })
    }

    fn filters_and_tests(&mut self, posts: &mut Vec<Post>) -> Res<()> {
        loop {
            if self.at_symbol("|") {
                posts.extend(self.filters()?);
            } else if self.skip_name("is") {
                posts.push(self.test()?);
            } else if self.at_symbol("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Res<Expr> {
        let found = match self.peek() {
            Token::Name(name) => match &**name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(name.clone()),
            },
            Token::Int(number) => Expr::Int(*number),
            Token::Float(number) => Expr::Float(*number),
            Token::Str(text) => {
                let mut text = text.to_string();
                while let Token::Str(more) = self.peek_second() {
                    text.push_str(more);
                    self.next();
                }
                Expr::Str(text.into())
            }
            Token::Symbol("(") => {
                self.next();
                let inner = if self.at_symbol(")") { Expr::Tuple(Vec::new()) } else { self.tuple(true)? };
                self.expect_symbol(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => {
                self.next();
                return Ok(Expr::List(self.items("]", Self::expression)?));
            }
            Token::Symbol("{") => {
                self.next();
                let pairs = self.items("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_symbol(":")?;
                    Ok((key, parser.expression()?))
                });
                return Ok(Expr::Dict(pairs?));
            }
            _ => return Err(self.unexpected("an expression")),
        };
        self.next();
        Ok(found)
    }

    /// Reads items separated by commas, up to `close`.
    fn items<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_symbol(close) {
            if !items.is_empty() {
                self.expect_symbol(",")?;
                if self.skip_symbol(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Reads the attributes, items and calls after a primary.
    fn subscripts(&mut self, posts: &mut Vec<Post>) -> Res<()> {
        loop {
            if self.skip_symbol(".") {
                posts.push(match self.peek() {
                    Token::Int(index) => {
                        let index = Expr::Int(*index);
                        self.next();
                        Post::Item(index)
                    }
                    _ => Post::Attribute(self.name()?),
                });
            } else if self.skip_symbol("[") {
                posts.push(self.subscript()?);
                self.expect_symbol("]")?;
            } else if self.at_symbol("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Res<Post> {
        let bound = |parser: &mut Self| {
            let absent = parser.at_symbol(":") || parser.at_symbol("]");
            if absent { Ok(None) } else { parser.expression().map(Some) }
        };
        let start = bound(self)?;
        if !self.skip_symbol(":") {
            return start.map(Post::Item).ok_or_else(|| self.unexpected("an index"));
        }
        let stop = bound(self)?;
        let step = if self.skip_symbol(":") { bound(self)? } else { None };
        Ok(Post::Slice { start, stop, step })
    }

    pub(in crate::template) fn filters(&mut self) -> Res<Vec<Post>> {
        let mut filters = Vec::new();
        while self.skip_symbol("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    pub(in crate::template) fn filter(&mut self) -> Res<Post> {
        let name = self.name()?;
        let arguments = if self.at_symbol("(") { self.arguments()? } else { Arguments::default() };
        Ok(Post::Filter(name, arguments))
    }

    fn test(&mut self) -> Res<Post> {
        let negated = self.skip_name("not");
        let name = self.name()?;
        let mut arguments = Arguments::default();
        let operand = match self.peek() {
            Token::Name(name) => !matches!(&**name, "else" | "or" | "and" | "is" | "if"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Symbol("[" | "{") => true,
            _ => false,
        };
        if self.at_symbol("(") {
            arguments = self.arguments()?;
        } else if operand {
            let value = self.primary()?;
            let mut posts = Vec::new();
            self.subscripts(&mut posts)?;
            let value = if posts.is_empty() { value } else { Expr::Postfix(Box::new(value), posts) };
            arguments.positional.push(value);
        }
        Ok(Post::Test { name, arguments, negated })
    }

    fn arguments(&mut self) -> Res<Arguments> {
        self.expect_symbol("(")?;
        let mut arguments = Arguments::default();
        self.items(")", |parser| {
            if arguments.unpacked_named.is_some() {
                return Err(parser.unexpected("no argument after **"));
            }
            if parser.skip_symbol("*") {
                arguments.unpacked = Some(Box::new(parser.expression()?));
            } else if parser.skip_symbol("**") {
                arguments.unpacked_named = Some(Box::new(parser.expression()?));
            } else if matches!(parser.peek_second(), Token::Symbol("=")) {
                let name = parser.name()?;
                parser.next();
                arguments.named.push((name, parser.expression()?));
            } else if arguments.named.is_empty() && arguments.unpacked.is_none() {
                arguments.positional.push(parser.expression()?);
            } else {
                return Err(parser.unexpected("a named argument"));
            }
            Ok(())
        })?;
        Ok(arguments)
    }
}
