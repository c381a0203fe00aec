//! Determines whether a template loops over the parts of a message's `content`, or takes it as one string.

use std::collections::{HashMap, HashSet};

use super::syntax::ast::{Arguments, Body, Expr, Macro, Post, Statement, Target};

/// True if a loop of the template iterates over `message.content`, directly, through a variable or through a macro's
/// parameter.
pub(super) fn loops_over_content(body: &Body) -> bool {
    let mut search = Search::default();
    search.body(body);
    search.calls();
    search.content_is_looped_over()
}

/// The origin of an expression's value, as far as needed here.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// `x.content`, `x['content']`
    Content,
    Name(&'a str),
    Other,
}

/// Visits the template once, in time proportional to its length, and then follows the names.
#[derive(Default)]
struct Search<'a> {
    /// Names that may hold a message's content.
    content: Vec<&'a str>,
    /// For each name, the names that get its value.
    gives: HashMap<&'a str, Vec<&'a str>>,
    /// Names that loops iterate over.
    looped: HashSet<&'a str>,
    loops_over_content: bool,
    macros: HashMap<&'a str, &'a Macro>,
    calls: Vec<(&'a str, &'a Arguments)>,
}

impl<'a> Search<'a> {
    fn content_is_looped_over(&self) -> bool {
        let mut waiting = self.content.clone();
        let mut seen: HashSet<&str> = waiting.iter().copied().collect();
        while let Some(name) = waiting.pop() {
            if self.looped.contains(name) {
                return true;
            }
            let given = self.gives.get(name).into_iter().flatten();
            waiting.extend(given.copied().filter(|name| seen.insert(name)));
        }
        self.loops_over_content
    }

    fn body(&mut self, body: &'a Body) {
        for node in body {
            match &node.statement {
                Statement::For(definition) => {
                    match source(&definition.iterable) {
                        Source::Content => self.loops_over_content = true,
                        Source::Name(name) => drop(self.looped.insert(name)),
                        Source::Other => {}
                    }
                    self.body(&definition.body);
                    self.body(&definition.otherwise);
                }
                Statement::If { branches, otherwise } => {
                    for (test, body) in branches {
                        self.expr(test);
                        self.body(body);
                    }
                    self.body(otherwise);
                }
                Statement::Set { target, value } => {
                    self.expr(value);
                    if let Target::Name(name) | Target::Attribute(_, name) = target {
                        self.given(name, value);
                    }
                }
                Statement::Macro(definition) => {
                    self.macros.entry(&definition.name).or_insert(definition);
                    self.body(&definition.body);
                }
                Statement::CallBlock { call, caller } => {
                    self.expr(call);
                    self.body(&caller.body);
                }
                Statement::SetBlock { body, .. } | Statement::FilterBlock { body, .. } | Statement::Scope(body) => {
                    self.body(body);
                }
                Statement::With { variables, body } => {
                    for (target, value) in variables {
                        if let Target::Name(name) = target {
                            self.given(name, value);
                        }
                    }
                    self.body(body);
                }
                Statement::Print(value) => self.expr(value),
                Statement::Text(_) | Statement::Break | Statement::Continue => {}
            }
        }
    }

    fn given(&mut self, name: &'a str, value: &'a Expr) {
        match source(value) {
            Source::Content => self.content.push(name),
            Source::Name(other) => self.gives.entry(other).or_default().push(name),
            Source::Other => {}
        }
    }

    /// Looks for calls that may pass a message's content to a macro.
    fn expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Postfix(base, posts) => {
                if let (Expr::Name(name), Some(Post::Call(arguments))) = (&**base, posts.first()) {
                    self.calls.push((name, arguments));
                }
                self.expr(base);
            }
            Expr::Arithmetic(first, rest) => {
                self.expr(first);
                rest.iter().for_each(|(_, operand)| self.expr(operand));
            }
            Expr::Compare(first, rest) => {
                self.expr(first);
                rest.iter().for_each(|(_, operand)| self.expr(operand));
            }
            Expr::Concat(parts) | Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|part| self.expr(part)),
            Expr::Not(value) => self.expr(value),
            Expr::Conditional { test, then, otherwise } => {
                self.expr(test);
                self.expr(then);
                if let Some(otherwise) = otherwise {
                    self.expr(otherwise);
                }
            }
            _ => {}
        }
    }

    /// Notes the values that calls pass to parameters. A macro may be defined after its call, so all macros must be
    /// known.
    fn calls(&mut self) {
        for (name, arguments) in std::mem::take(&mut self.calls) {
            let Some(callee) = self.macros.get(name).copied() else { continue };
            for (argument, (parameter, _)) in arguments.positional.iter().zip(&callee.parameters) {
                self.given(parameter, argument);
            }
            for (argument, value) in &arguments.named {
                self.given(argument, value);
            }
        }
    }
}

/// Returns the origin of an expression's value. Filters and slices keep it: `message.content | trim` is content.
fn source(expr: &Expr) -> Source<'_> {
    let (base, posts) = match expr {
        Expr::Name(name) => return Source::Name(name),
        Expr::Postfix(base, posts) => (base, posts),
        _ => return Source::Other,
    };
    let mut posts = posts.as_slice();
    while let [before @ .., Post::Filter(..) | Post::Slice { .. }] = posts {
        posts = before;
    }
    match posts.last() {
        Some(Post::Attribute(name)) if **name == *"content" => Source::Content,
        Some(Post::Attribute(name)) => Source::Name(name),
        Some(Post::Item(Expr::Str(name))) if **name == *"content" => Source::Content,
        Some(_) => Source::Other,
        None => source(base),
    }
}
