//! Evaluates expressions.

use super::access;
use super::args::{Args, wrong};
use super::calls::checks;
use super::calls::filters;
use super::calls::functions;
use super::fault::{Fault, Res};
use super::lists;
use super::operators::{arithmetic, compare};
use super::run::Run;
use super::syntax::ast::{Arguments, Expr, Operator, Post};
use super::text::{Builder, Origin, Text};
use super::value::{Callable, Value};

impl Run {
    pub(super) fn eval(&mut self, expr: &Expr) -> Res<Value> {
        self.nested(|run| run.expression(expr))
    }

    fn all(&mut self, exprs: &[Expr]) -> Res<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    fn expression(&mut self, expr: &Expr) -> Res<Value> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Str(text) => Text::new(text, Origin::Template).map(Value::Str),
            Expr::Name(name) => self.named(name),
            Expr::List(items) => Value::list(self.all(items)?),
            Expr::Tuple(items) => Value::tuple(self.all(items)?),
            Expr::Dict(pairs) => {
                let pair = |(key, value): &(Expr, Expr)| Ok((self.eval(key)?, self.eval(value)?));
                Value::dict(pairs.iter().map(pair).collect::<Res<Vec<_>>>()?)
            }
            Expr::Postfix(base, posts) => {
                let base = self.eval(base)?;
                self.postfix(base, posts)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value)?.is_true())),
            Expr::Negative(value) => match self.eval(value)? {
                // Zero has a sign, which subtracting from zero would lose.
                Value::Float(value) => Ok(Value::Float(-value)),
                value => arithmetic(Operator::Subtract, &Value::Int(0), &value),
            },
            Expr::Positive(value) => arithmetic(Operator::Add, &Value::Int(0), &self.eval(value)?),
            Expr::Arithmetic(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, operand) in rest {
                    let operand = self.eval(operand)?;
                    value = arithmetic(*operator, &value, &operand)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => {
                let mut out = Builder::new();
                for part in parts {
                    self.eval(part)?.write(&mut out)?;
                }
                out.finish().map(Value::Str)
            }
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (comparison, operand) in rest {
                    let right = self.eval(operand)?;
                    if !compare(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::And(parts) => self.first_that(parts, |value| !value.is_true()),
            Expr::Or(parts) => self.first_that(parts, Value::is_true),
            Expr::Conditional { test, then, otherwise } => {
                if self.eval(test)?.is_true() {
                    return self.eval(then);
                }
                match otherwise {
                    Some(otherwise) => self.eval(otherwise),
                    None => Value::undefined("the inline if without else"),
                }
            }
        }
    }

    /// Returns the first value that decides the result, else the last.
    fn first_that(&mut self, parts: &[Expr], settles: impl Fn(&Value) -> bool) -> Res<Value> {
        let mut value = Value::None;
        for part in parts {
            value = self.eval(part)?;
            if settles(&value) {
                break;
            }
        }
        Ok(value)
    }

    fn named(&self, name: &str) -> Res<Value> {
        if let Some(value) = self.lookup(name)? {
            return Ok(value);
        }
        match functions::NAMES.iter().find(|known| **known == name) {
            Some(function) => Ok(Value::Callable(Callable::Function(function).into())),
            None => Value::undefined(&format!("'{name}'")),
        }
    }

    pub(super) fn postfix(&mut self, base: Value, posts: &[Post]) -> Res<Value> {
        let mut value = base;
        for post in posts {
            super::meter::spend(1)?;
            value = match post {
                Post::Attribute(name) => access::attribute(&value, name)?,
                Post::Item(key) => {
                    let key = self.eval(key)?;
                    access::item(&value, &key)?
                }
                Post::Slice { start, stop, step } => {
                    let mut bounds = [None; 3];
                    for (bound, expr) in bounds.iter_mut().zip([start, stop, step]) {
                        *bound = match expr.as_ref().map(|expr| self.eval(expr)).transpose()? {
                            None | Some(Value::None) => None,
                            Some(value) => Some(value.as_int().ok_or_else(|| wrong("a slice", &value, "an integer"))?),
                        };
                    }
                    access::slice(&value, bounds)?
                }
                Post::Call(arguments) => {
                    let args = self.arguments(arguments)?;
                    self.nested(|run| run.call(&value, args))?
                }
                Post::Filter(name, arguments) => {
                    let args = self.arguments(arguments)?;
                    filters::apply(self, name, &value, args)?
                }
                Post::Test { name, arguments, negated } => {
                    let args = self.arguments(arguments)?;
                    Value::Bool(checks::check(name, &value, args)? != *negated)
                }
            };
        }
        Ok(value)
    }

    pub(super) fn arguments(&mut self, arguments: &Arguments) -> Res<Args> {
        let mut args = Args::written(self.all(&arguments.positional)?);
        if let Some(values) = &arguments.unpacked {
            args.unpack(&self.eval(values)?.iterate()?.items())?;
        }
        for (name, value) in &arguments.named {
            let value = self.eval(value)?;
            args.named.push((name.clone(), value));
        }
        if let Some(mapping) = &arguments.unpacked_named {
            let Value::Dict(dict) = self.eval(mapping)? else { return Err(Fault::new("** needs a mapping")) };
            args.unpack_named(dict.entries())?;
        }
        Ok(args)
    }

    pub(super) fn call(&mut self, callee: &Value, args: Args) -> Res<Value> {
        let callable = match callee {
            Value::Callable(callable) => callable,
            Value::Loop(state) => return self.recurse(state, args),
            Value::Undefined(what) => return Err(Fault::new(format!("{what} is undefined, and was called"))),
            other => return Err(Fault::new(format!("a {} cannot be called", other.kind()))),
        };
        match &**callable {
            Callable::Function(name) => {
                let value = functions::call(name, args)?;
                if let Value::Namespace(namespace) = &value {
                    self.keep(namespace);
                }
                Ok(value)
            }
            Callable::Method { receiver, name } => {
                if let Value::List(list) = receiver
                    && lists::changes(name)
                {
                    self.keep_list(list);
                }
                functions::method(receiver, name, args)
            }
            Callable::Macro { definition, scopes, .. } => self.call_macro(definition, scopes, args),
            Callable::Joiner { separator, used } => {
                args.none("joiner")?;
                let text = if used.replace(true) { separator.clone() } else { separator.slice(0..0)? };
                Ok(Value::Str(text))
            }
            Callable::Cycler { .. } => Err(Fault::new("a cycler cannot be called; call its next()")),
        }
    }
}
