//! Attributes, items and slices.

use std::rc::Rc;

use super::fault::{Fault, Res};
use super::lists;
use super::method_names;
use super::text::Builder;
use super::value::{Callable, Loop, Value};

/// The most characters of a missing item's name in an error, since a template can create names of many megabytes.
const SHOWN: usize = 64;

const DICT: &[&str] = &["copy", "get", "items", "keys", "values"];
const CYCLER: &[&str] = &["next", "reset"];

/// `value.name`: attributes of the type take precedence over items of the value, as in Jinja.
pub(super) fn attribute(value: &Value, name: &str) -> Res<Value> {
    if let Some(name) = method(value, name) {
        return Ok(Value::Callable(Rc::new(Callable::Method { receiver: value.clone(), name })));
    }
    let held = match value {
        Value::Dict(dict) => dict.get_str(name)?.cloned(),
        Value::Namespace(namespace) => namespace.get(name)?,
        Value::Tuple(list) => list.attribute(name),
        Value::Loop(state) => state.attribute(name)?,
        Value::Callable(callable) => match (&**callable, name) {
            (Callable::Macro { definition, .. }, "name") => Some(Value::made(&definition.name)?),
            (Callable::Cycler { items, at }, "current") => items.items().get(at.get()).cloned(),
            _ => None,
        },
        Value::Undefined(what) => return Err(Fault::new(format!("{what} is undefined"))),
        _ => None,
    };
    match held {
        Some(held) => Ok(held),
        None => {
            let shown = name.char_indices().nth(SHOWN).map_or(name, |(end, _)| &name[..end]);
            Value::undefined(&format!("attribute '{shown}' of a {}", value.kind()))
        }
    }
}

/// Returns the name as in the type's list of methods.
fn method(value: &Value, name: &str) -> Option<&'static str> {
    let methods = match value {
        Value::Str(_) => method_names::STR,
        Value::Dict(_) => DICT,
        Value::List(_) => lists::LIST,
        Value::Tuple(_) => lists::TUPLE,
        Value::Loop(_) => Loop::METHODS,
        Value::Callable(callable) if matches!(**callable, Callable::Cycler { .. }) => CYCLER,
        _ => return None,
    };
    methods.iter().find(|method| **method == name).copied()
}

/// `value[key]`: items of the value take precedence over attributes of its type.
pub(super) fn item(value: &Value, key: &Value) -> Res<Value> {
    let held = match (value, key) {
        (Value::Dict(dict), key) if key.is_hashable() => dict.get(key)?.cloned(),
        (Value::List(list) | Value::Tuple(list), key) if key.as_int().is_some() => {
            place(key, list.items().len()).map(|at| list.items()[at].clone())
        }
        (Value::Str(text), key) if key.as_int().is_some() => {
            let s = text.as_str();
            super::meter::work(s.len())?;
            let char_at = |at| s.char_indices().nth(at).map(|(at, c)| text.slice(at..at + c.len_utf8()));
            place(key, s.chars().count()).and_then(char_at).transpose()?.map(Value::Str)
        }
        (Value::Undefined(what), _) => return Err(Fault::new(format!("{what} is undefined"))),
        _ => None,
    };
    match (held, key) {
        (Some(value), _) => Ok(value),
        (None, Value::Str(name)) => attribute(value, name.as_str()),
        (None, _) => Value::undefined(&format!("an item of a {}", value.kind())),
    }
}

/// Returns the index of a key in a sequence of `length` items; negative keys count from the end.
fn place(key: &Value, length: usize) -> Option<usize> {
    let key = key.as_int()?;
    let at = if key < 0 { key.checked_add(length as i128)? } else { key };
    usize::try_from(at).ok().filter(|&at| at < length)
}

/// `value[start:stop:step]`
pub(super) fn slice(value: &Value, bounds: [Option<i128>; 3]) -> Res<Value> {
    match value {
        Value::List(list) => Value::list(picked(&list.items(), bounds)?),
        Value::Tuple(list) => Value::tuple(picked(&list.items(), bounds)?),
        Value::Str(text) if matches!(bounds[2], None | Some(1)) => {
            let s = text.as_str();
            super::meter::work(s.len())?;
            let length = s.chars().count() as i128;
            let [start, stop, _] = bounds;
            let (start, stop) = (clamped(start.unwrap_or(0), length, 0), clamped(stop.unwrap_or(length), length, 0));
            let byte = |at: i128| s.char_indices().nth(at as usize).map_or(s.len(), |(byte, _)| byte);
            let start = byte(start);
            text.slice(start..byte(stop).max(start)).map(Value::Str)
        }
        Value::Str(text) => {
            let chars = Value::Str(text.clone()).iterate()?;
            let mut out = Builder::new();
            for c in picked(&chars.items(), bounds)? {
                c.write(&mut out)?;
            }
            out.finish().map(Value::Str)
        }
        Value::Undefined(what) => Err(Fault::new(format!("{what} is undefined"))),
        other => Err(Fault::new(format!("a {} cannot be sliced", other.kind()))),
    }
}

/// Returns a bound within `least..=length`; negative bounds count from the end.
fn clamped(bound: i128, length: i128, least: i128) -> i128 {
    let bound = if bound < 0 { bound.saturating_add(length) } else { bound };
    bound.clamp(least, length)
}

fn picked(items: &[Value], [start, stop, step]: [Option<i128>; 3]) -> Res<Vec<Value>> {
    let step = step.unwrap_or(1);
    let length = items.len() as i128;
    super::meter::spend(items.len() / 16)?;
    drop(super::meter::Charge::new(size_of_val(items))?);
    let mut picked = Vec::new();
    if step == 0 {
        return Err(Fault::new("the step of a slice cannot be zero"));
    }
    if step > 0 {
        let (mut at, stop) = (clamped(start.unwrap_or(0), length, 0), clamped(stop.unwrap_or(length), length, 0));
        while at < stop {
            picked.push(items[at as usize].clone());
            at = at.saturating_add(step);
        }
    } else {
        let last = |bound: i128| clamped(bound, length, -1).min(length - 1);
        let (mut at, stop) = (start.map_or(length - 1, last), stop.map_or(-1, last));
        while at > stop {
            picked.push(items[at as usize].clone());
            at = at.saturating_add(step);
        }
    }
    Ok(picked)
}
