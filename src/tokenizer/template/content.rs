//! Whether a template goes through the parts of a message's `content`, or takes it as one string.

use super::ast::{Arguments, Body, Expr, Macro, Name, Post, Statement, Target};

/// Whether a loop of the template goes through `message.content`, under that name, a variable's, or a macro's
/// parameter.
pub(super) fn loops_over_content(body: &Body) -> bool {
    let mut search = Search { names: Vec::new(), macros: Vec::new(), found: false };
    // A name may be given content after the loop that goes through it, in a macro above its call for one.
    let mut known = usize::MAX;
    while !search.found && known != search.names.len() {
        known = search.names.len();
        search.body(body);
    }
    search.found
}

struct Search<'a> {
    /// Variables that hold a message's content.
    names: Vec<&'a Name>,
    macros: Vec<&'a Macro>,
    found: bool,
}

impl<'a> Search<'a> {
    fn body(&mut self, body: &'a Body) {
        for node in body {
            match &node.statement {
                Statement::For(definition) => {
                    self.found = self.found || self.is_content(&definition.iterable);
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
                    match target {
                        Target::Name(name) | Target::Attribute(_, name) if self.is_content(value) => self.know(name),
                        _ => {}
                    }
                }
                Statement::Macro(definition) => {
                    if !self.macros.iter().any(|known| std::ptr::eq(*known, &**definition)) {
                        self.macros.push(definition);
                    }
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
                        match target {
                            Target::Name(name) if self.is_content(value) => self.know(name),
                            _ => {}
                        }
                    }
                    self.body(body);
                }
                Statement::Print(value) => self.expr(value),
                Statement::Text(_) | Statement::Break | Statement::Continue => {}
            }
        }
    }

    fn know(&mut self, name: &'a Name) {
        if !self.names.contains(&name) {
            self.names.push(name);
        }
    }

    /// `x.content`, `x['content']`, a name for it, or one of these through filters and slices.
    fn is_content(&self, expr: &Expr) -> bool {
        let Expr::Postfix(base, posts) = expr else {
            return matches!(expr, Expr::Name(name) if self.names.contains(&name));
        };
        let mut posts = posts.as_slice();
        while let [before @ .., Post::Filter(..) | Post::Slice { .. }] = posts {
            posts = before;
        }
        match posts.last() {
            Some(Post::Attribute(name)) => &**name == "content" || self.names.contains(&name),
            Some(Post::Item(Expr::Str(name))) => &**name == "content",
            Some(_) => false,
            None => self.is_content(base),
        }
    }

    /// Looks for calls that give a macro a message's content.
    fn expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Postfix(base, posts) => {
                if let (Expr::Name(name), Some(Post::Call(arguments))) = (&**base, posts.first()) {
                    self.call(name, arguments);
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

    fn call(&mut self, name: &Name, arguments: &'a Arguments) {
        let Some(callee) = self.macros.iter().copied().find(|known| known.name == *name) else { return };
        for (argument, (parameter, _)) in arguments.positional.iter().zip(&callee.parameters) {
            if self.is_content(argument) {
                self.know(parameter);
            }
        }
        for (argument, value) in &arguments.named {
            if self.is_content(value) {
                self.know(argument);
            }
        }
    }
}
