//! Methods of lists and tuples.

use super::args::{Args, int_or, required};
use super::fault::{Fault, Res};
use super::meter::Charge;
use super::value::{List, Value};

pub(super) const LIST: &[&str] = &["append", "copy", "count", "extend", "index", "insert", "pop"];
pub(super) const TUPLE: &[&str] = &["count", "index"];

/// True for a method that changes the list.
pub(super) fn changes(name: &str) -> bool {
    matches!(name, "append" | "extend" | "insert" | "pop")
}

/// Calls one of the methods of `LIST`.
pub(super) fn call(list: &List, name: &str, args: Args) -> Res<Value> {
    let length = list.items().len();
    match name {
        "append" => {
            let [item] = args.bind(name, ["object"])?;
            list.insert(length, vec![required(item, name)?])?;
            Ok(Value::None)
        }
        "extend" => {
            let [items] = args.bind(name, ["iterable"])?;
            let items = copied(&required(items, name)?.iterate()?)?;
            list.insert(length, items)?;
            Ok(Value::None)
        }
        "insert" => {
            let [at, item] = args.bind(name, ["index", "object"])?;
            let at = int_or(Some(&required(at, name)?), name, 0)?;
            let at = if at < 0 { at.saturating_add(length as i128).max(0) } else { at.min(length as i128) };
            list.insert(at as usize, vec![required(item, name)?])?;
            Ok(Value::None)
        }
        "pop" => {
            let [at] = args.bind(name, ["index"])?;
            let at = int_or(at.as_ref(), name, -1)?;
            let at = if at < 0 { at.saturating_add(length as i128) } else { at };
            let at = usize::try_from(at).ok().filter(|at| *at < length);
            list.remove(at.ok_or_else(|| Fault::new(format!("pop: no such item in a list of {length}")))?)
        }
        "copy" => args.none(name).and_then(|()| Value::list(copied(list)?)),
        _ => {
            let [item] = args.bind(name, ["value"])?;
            let item = required(item, name)?;
            let mut places = Vec::new();
            for (at, other) in list.items().iter().enumerate() {
                if other.equals(&item)? {
                    places.push(at);
                }
            }
            match (name, places.first()) {
                ("count", _) => Ok(Value::Int(places.len() as i128)),
                (_, Some(&at)) => Ok(Value::Int(at as i128)),
                (_, None) => Err(Fault::new("index: the value is not in the list")),
            }
        }
    }
}

/// Returns the items for another list.
pub(super) fn copied(list: &List) -> Res<Vec<Value>> {
    drop(Charge::new(size_of_val(&*list.items()))?);
    Ok(list.items().to_vec())
}
