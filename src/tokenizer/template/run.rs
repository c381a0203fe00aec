//! Runs the statements of a template.

use std::rc::Rc;
use std::sync::Arc;

use super::args::Args;
use super::fault::{Fault, Res};
use super::meter::{self, Charge};
use super::syntax::ast::{Body, Expr, For, Macro, Name, Node, Post, Statement, Target};
use super::text::{Builder, Origin, Text};
use super::value::{Callable, List, Loop, Names, Scope, Value};

/// The deepest nesting of trees and macros. The stack of a rendering is large enough for it.
const MAX_DEPTH: usize = 5_000;

pub(super) struct Run {
    /// The scopes, outermost first.
    scopes: Vec<Scope>,
    out: Builder,
    depth: usize,
    /// Only these, the lists that were changed, and the scopes that macros share can contain themselves. They are
    /// emptied at the end, so that nothing leaks.
    namespaces: Vec<Rc<Names>>,
    lists: Vec<List>,
    shared: Vec<Scope>,
}

#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run {
    pub(super) fn new(context: Scope) -> Self {
        let scopes = vec![context, Scope::default()];
        Self { scopes, out: Builder::new(), depth: 0, namespaces: Vec::new(), lists: Vec::new(), shared: Vec::new() }
    }

    /// Returns the output, and the ranges of it (bytes) that the template wrote.
    pub(super) fn render(mut self, body: &Body, max_output: usize) -> Res<(String, Vec<std::ops::Range<usize>>)> {
        self.body(body)?;
        let out = std::mem::take(&mut self.out);
        if out.len() > max_output {
            return Err(Fault::new(format!("the output is longer than {max_output} bytes")));
        }
        Ok(out.into_parts())
    }

    pub(super) fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        meter::spend(1)?;
        if self.depth == MAX_DEPTH {
            return Err(Fault::new(format!("it nests deeper than {MAX_DEPTH} levels while it runs")));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn body(&mut self, body: &Body) -> Res<Flow> {
        for node in body {
            let flow = self.nested(|run| run.statement(node)).map_err(|fault| fault.at(node.line))?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn scoped<T>(&mut self, run: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        self.scopes.push(Scope::default());
        let result = run(self);
        self.scopes.pop();
        result
    }

    /// Runs `run`. Returns the text that it would have written, and how it ended.
    fn captured(&mut self, run: impl FnOnce(&mut Self) -> Res<Flow>) -> Res<(Text, Flow)> {
        let outer = std::mem::take(&mut self.out);
        let result = run(self);
        let inner = std::mem::replace(&mut self.out, outer);
        let flow = result?;
        Ok((inner.finish()?, flow))
    }

    fn statement(&mut self, node: &Node) -> Res<Flow> {
        match &node.statement {
            Statement::Text(text) => self.out.push(text, Origin::Template)?,
            Statement::Print(value) => self.eval(value)?.write(&mut self.out)?,
            Statement::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.eval(test)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            Statement::For(definition) => {
                let items = self.eval(&definition.iterable)?.iterate()?;
                return self.run_loop(definition, items, 0);
            }
            Statement::Set { target, value } => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            Statement::SetBlock { target, filters, body } => {
                let (text, flow) = self.captured(|run| run.scoped(|run| run.body(body)))?;
                if flow != Flow::On {
                    return Ok(flow);
                }
                let value = self.filtered(text, filters)?;
                self.assign(target, value)?;
            }
            Statement::Macro(definition) => {
                let callable = self.macro_here(definition)?;
                self.set(&definition.name, callable)?;
            }
            Statement::CallBlock { call, caller } => self.call_block(call, caller)?,
            Statement::FilterBlock { filters, body } => {
                let (text, flow) = self.captured(|run| run.scoped(|run| run.body(body)))?;
                if flow != Flow::On {
                    return Ok(flow);
                }
                self.filtered(text, filters)?.write(&mut self.out)?;
            }
            Statement::With { variables, body } => {
                let values = variables.iter().map(|(_, value)| self.eval(value)).collect::<Res<Vec<_>>>()?;
                return self.scoped(|run| {
                    for ((target, _), value) in variables.iter().zip(values) {
                        run.assign(target, value)?;
                    }
                    run.body(body)
                });
            }
            Statement::Scope(body) => return self.scoped(|run| run.body(body)),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// Runs a loop. `depth` counts recursive loops, from 0. A `break` or `continue` in the body belongs to this loop,
    /// and one in the `else` to an outer loop.
    fn run_loop(&mut self, definition: &Arc<For>, items: List, depth: usize) -> Res<Flow> {
        let items = match &definition.condition {
            None => items,
            Some(condition) => {
                let mut kept = Vec::new();
                for item in items.items().iter() {
                    let test = |run: &mut Self| {
                        run.assign(&definition.target, item.clone())?;
                        Ok(run.eval(condition)?.is_true())
                    };
                    if self.scoped(test)? {
                        kept.push(item.clone());
                    }
                }
                List::new(kept)?
            }
        };
        if items.items().is_empty() {
            return self.scoped(|run| run.body(&definition.otherwise));
        }
        let state = Rc::new(Loop::new(Arc::clone(definition), items, depth)?);
        for (index, item) in state.items.items().iter().enumerate() {
            state.index.set(index);
            let round = |run: &mut Self| {
                run.set(&"loop".into(), Value::Loop(Rc::clone(&state)))?;
                run.assign(&definition.target, item.clone())?;
                run.body(&definition.body)
            };
            if self.scoped(round)? == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    /// Runs `loop(items)` in a recursive loop.
    pub(super) fn recurse(&mut self, state: &Loop, args: Args) -> Res<Value> {
        if !state.definition.recursive {
            return Err(Fault::new("loop: the loop is not marked as recursive"));
        }
        let [items] = args.bind("loop", ["items"])?;
        let items = super::args::required(items, "loop")?.iterate()?;
        let (text, flow) = self.captured(|run| run.run_loop(&state.definition, items, state.depth + 1))?;
        match flow {
            Flow::On => Ok(Value::Str(text)),
            Flow::Break | Flow::Continue => Err(Fault::new("the else of a recursive loop cannot end an outer loop")),
        }
    }

    fn call_block(&mut self, call: &Expr, caller: &Arc<Macro>) -> Res<()> {
        let Expr::Postfix(base, posts) = call else { return Err(Fault::new("a call block needs a call")) };
        let Some((Post::Call(arguments), before)) = posts.split_last() else {
            return Err(Fault::new("a call block needs a call"));
        };
        let base = self.eval(base)?;
        let callee = self.postfix(base, before)?;
        let mut args = self.arguments(arguments)?;
        args.named.push(("caller".into(), self.macro_here(caller)?));
        self.call(&callee, args)?.write(&mut self.out)
    }

    fn filtered(&mut self, text: Text, filters: &[Post]) -> Res<Value> {
        self.postfix(Value::Str(text), filters)
    }

    pub(super) fn lookup(&self, name: &str) -> Res<Option<Value>> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.variables().get(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn set(&mut self, name: &Name, value: Value) -> Res<()> {
        self.scopes.last().map_or(Ok(()), |scope| scope.variables().set(name, value))
    }

    fn assign(&mut self, target: &Target, value: Value) -> Res<()> {
        match target {
            Target::Name(name) => self.set(name, value),
            Target::Attribute(name, attribute) => match self.lookup(name)? {
                Some(Value::Namespace(namespace)) => namespace.set(attribute, value),
                _ => Err(Fault::new(format!("'{name}' is not a namespace: its attributes cannot be set"))),
            },
            Target::Tuple(targets) => {
                let items = value.iterate()?;
                let items = &*items.items();
                if items.len() != targets.len() {
                    let (got, expected) = (items.len(), targets.len());
                    return Err(Fault::new(format!("cannot unpack: got {got} values, expected {expected}")));
                }
                targets.iter().zip(items).try_for_each(|(target, item)| self.assign(target, item.clone()))
            }
        }
    }

    pub(super) fn keep(&mut self, namespace: &Rc<Names>) {
        self.namespaces.push(Rc::clone(namespace));
    }

    pub(super) fn keep_list(&mut self, list: &List) {
        if list.keep() {
            self.lists.push(list.clone());
        }
    }

    /// Returns a macro that sees the scopes of this place.
    fn macro_here(&mut self, definition: &Arc<Macro>) -> Res<Value> {
        let charge = Charge::new(size_of_val(&*self.scopes))?;
        self.shared.extend(self.scopes.iter().filter(|scope| scope.share()).cloned());
        let definition = Arc::clone(definition);
        Ok(Value::Callable(Rc::new(Callable::Macro { definition, scopes: self.scopes.clone(), _charge: charge })))
    }

    /// Runs a macro with the scopes of its definition.
    pub(super) fn call_macro(&mut self, definition: &Macro, scopes: &[Scope], args: Args) -> Res<Value> {
        let _charge = Charge::new(size_of_val(scopes))?;
        let hidden = std::mem::replace(&mut self.scopes, scopes.to_vec());
        let result = self.macro_body(definition, args);
        self.scopes = hidden;
        result
    }

    fn macro_body(&mut self, definition: &Macro, args: Args) -> Res<Value> {
        self.scoped(|run| {
            run.bind_parameters(definition, args)?;
            // The parser only lets a `break` reach the loops of its own macro.
            let (text, _) = run.captured(|run| run.body(&definition.body))?;
            Ok(Value::Str(text))
        })
    }

    fn bind_parameters(&mut self, definition: &Macro, args: Args) -> Res<()> {
        let name = &definition.name;
        let mut positional = args.positional.into_iter();
        let mut named = args.named;
        for (parameter, default) in &definition.parameters {
            meter::spend(named.len() / 16)?;
            let by_name = named.iter().position(|(other, _)| other == parameter);
            let value = match (positional.next(), by_name) {
                (Some(value), None) => value,
                (None, Some(at)) => named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default)?,
                    None => Value::undefined(&format!("parameter '{parameter}'"))?,
                },
                (Some(_), Some(_)) => return Err(Fault::new(format!("{name}: '{parameter}' is given twice"))),
            };
            self.set(parameter, value)?;
        }
        if let Some(at) = named.iter().position(|(other, _)| **other == *"caller") {
            let caller = named.swap_remove(at).1;
            self.set(&"caller".into(), caller)?;
        } else {
            self.set(&"caller".into(), Value::undefined("'caller'")?)?;
        }
        let rest: Vec<Value> = positional.collect();
        if !rest.is_empty() && !definition.takes_varargs {
            let expected = definition.parameters.len();
            return Err(Fault::new(format!("{name}: got more than its {expected} arguments")));
        }
        self.set(&"varargs".into(), Value::tuple(rest)?)?;
        if let Some((other, _)) = named.first().filter(|_| !definition.takes_kwargs) {
            return Err(Fault::new(format!("{name}: unknown argument '{other}'")));
        }
        let entry = |(name, value): (Name, Value)| Ok((Value::made(&name)?, value));
        let rest = named.into_iter().map(entry).collect::<Res<Vec<_>>>()?;
        self.set(&"kwargs".into(), Value::dict(rest)?)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.namespaces.iter().for_each(|namespace| namespace.clear());
        self.lists.iter().for_each(List::clear);
        self.shared.iter().for_each(|scope| scope.variables().clear());
    }
}
