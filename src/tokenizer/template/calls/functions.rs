//! Global functions, and methods of lists, mappings and the other values that are not strings.

use std::cell::Cell;
use std::fmt::Write;
use std::rc::Rc;

use super::methods;
use crate::template::args::{Args, int_or, optional_text, required, text};
use crate::template::fault::{Fault, Res};
use crate::template::lists;
use crate::template::meter::Charge;
use crate::template::text::{Origin, Text};
use crate::template::value::{Callable, List, Names, Value};

/// The longest `range`, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

pub(in crate::template) const NAMES: &[&str] =
    &["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"];

pub(in crate::template) fn call(name: &str, args: Args) -> Res<Value> {
    match name {
        "raise_exception" => {
            let [message] = args.bind(name, ["message"])?;
            Err(Fault::raised(required(message, name)?.to_text()?.as_str().to_owned()))
        }
        "strftime_now" => {
            let [format] = args.bind(name, ["format"])?;
            strftime_now(text(format.as_ref(), name)?.as_str())
        }
        "range" => range(args),
        "dict" => Value::dict(entries(args, name)?),
        "namespace" => {
            let namespace = Names::new()?;
            for (key, value) in entries(args, name)? {
                if let Value::Str(key) = key {
                    namespace.set(&key.as_str().into(), value)?;
                }
            }
            Ok(Value::Namespace(Rc::new(namespace)))
        }
        "cycler" => {
            if args.positional.is_empty() {
                return Err(Fault::new("cycler: at least one item has to be provided"));
            }
            let items = List::new(args.positional)?;
            Ok(Value::Callable(Rc::new(Callable::Cycler { items, at: Cell::new(0) })))
        }
        "joiner" => {
            let [separator] = args.bind(name, ["sep"])?;
            let separator =
                optional_text(separator.as_ref(), name)?.map_or_else(|| Text::new(", ", Origin::Client), Ok)?;
            Ok(Value::Callable(Rc::new(Callable::Joiner { separator, used: Cell::new(false) })))
        }
        _ => Err(Fault::new(format!("'{name}' is undefined"))),
    }
}

/// Returns the entries of Python's `dict(mapping, **named)`.
fn entries(args: Args, what: &str) -> Res<Vec<(Value, Value)>> {
    let Args { positional, named, .. } = args;
    let mut entries = match positional.as_slice() {
        [] => Vec::new(),
        [Value::Dict(dict)] => {
            drop(Charge::new(size_of_val(dict.entries()))?);
            dict.entries().to_vec()
        }
        [Value::List(pairs) | Value::Tuple(pairs)] => pairs.items().iter().map(entry).collect::<Res<_>>()?,
        [other, ..] => {
            return Err(crate::template::args::wrong(what, other, "a mapping, a list of pairs, or named arguments"));
        }
    };
    for (name, value) in named {
        entries.push((Value::made(&name)?, value));
    }
    Ok(entries)
}

/// Returns one pair of `dict`'s argument.
fn entry(pair: &Value) -> Res<(Value, Value)> {
    match &*pair.iterate()?.items() {
        [key, value] => Ok((key.clone(), value.clone())),
        items => Err(Fault::new(format!("dict: got {} items, expected a key and a value", items.len()))),
    }
}

fn range(args: Args) -> Res<Value> {
    let [first, second, step] = args.bind("range", ["start", "stop", "step"])?;
    let first = int_or(Some(&required(first, "range")?), "range", 0)?;
    let (start, stop) = match second {
        Some(stop) => (first, int_or(Some(&stop), "range", 0)?),
        None => (0, first),
    };
    let step = int_or(step.as_ref(), "range", 1)?;
    if step == 0 {
        return Err(Fault::new("range: the step must not be zero"));
    }
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = (distance.max(0) as u128).div_ceil(step.unsigned_abs());
    if count > MAX_RANGE as u128 {
        return Err(Fault::new(format!("range: {count} numbers, expected at most {MAX_RANGE}")));
    }
    Value::list((0..count as i128).map(|index| Value::Int(start + index * step)).collect())
}

fn strftime_now(format: &str) -> Res<Value> {
    let mut text = String::new();
    // `to_string` would panic on a directive that chrono does not know.
    write!(text, "{}", chrono::Local::now().format(&as_chrono(format)))
        .map_err(|_| Fault::new(format!("strftime_now: bad format {format:?}")))?;
    Value::made(&text)
}

/// Converts Python's directives for a time without a zone where chrono's differ.
fn as_chrono(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('f') => out.push_str("%6f"),
            // A time without a zone has neither its name nor its offset.
            Some('z' | 'Z') => {}
            Some(other) => out.extend(['%', other]),
            None => out.push_str("%%"),
        }
    }
    out
}

/// Calls a method that `access` has found.
pub(in crate::template) fn method(receiver: &Value, name: &str, args: Args) -> Res<Value> {
    match receiver {
        Value::Str(text) => methods::call(text, name, args),
        Value::Dict(dict) => {
            let entries = dict.entries();
            drop(Charge::new(size_of_val(entries))?);
            match name {
                "get" => {
                    let [key, default] = args.bind(name, ["key", "default"])?;
                    let found = dict.get(&required(key, name)?)?.cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "copy" => args.none(name).map(|()| receiver.clone()),
                "keys" => args.none(name).and_then(|()| Value::list(entries.iter().map(|(k, _)| k.clone()).collect())),
                "values" => {
                    args.none(name).and_then(|()| Value::list(entries.iter().map(|(_, v)| v.clone()).collect()))
                }
                _ => args.none(name).and_then(|()| pairs(entries)),
            }
        }
        Value::List(list) | Value::Tuple(list) => lists::call(list, name, args),
        Value::Loop(state) if name == "cycle" => state.cycle(&args.positional),
        Value::Loop(state) => state.changed(args.positional),
        Value::Callable(callable) => match &**callable {
            Callable::Cycler { items, at } => {
                args.none(name)?;
                let current = at.get();
                at.set(if name == "reset" { 0 } else { (current + 1) % items.items().len() });
                Ok(if name == "reset" { Value::None } else { items.items()[current].clone() })
            }
            _ => Err(Fault::new(format!("a function has no method '{name}'"))),
        },
        other => Err(Fault::new(format!("a {} has no method '{name}'", other.kind()))),
    }
}

pub(in crate::template) fn pairs(entries: &[(Value, Value)]) -> Res<Value> {
    Value::list(entries.iter().map(|(k, v)| Value::tuple(vec![k.clone(), v.clone()])).collect::<Res<Vec<_>>>()?)
}
