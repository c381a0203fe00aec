//! Values of a running template: Python's, as far as chat templates use them. Lists, namespaces, loops and macros
//! contain values again, so all of them are in this folder.

mod callable;
mod list;
mod loops;
mod names;
mod scope;

use std::cell::Cell;
use std::rc::Rc;

pub(super) use callable::Callable;
pub(super) use list::List;
pub(super) use loops::Loop;
pub(super) use names::Names;
pub(super) use scope::Scope;

use super::fault::{Fault, Res};
use super::meter::{self, Charge};
use super::text::{Origin, Text};

/// The deepest nesting of lists, so that walking and freeing them needs a bounded stack. Each list has room for values
/// that are inserted later (see `list`).
const MAX_DEPTH: usize = 500 + list::ROOM;
/// The bytes of a list or mapping besides its items.
const OVERHEAD: usize = 96;

/// Roles that may become part of a control token although the client provides them. Some templates write `'<|' +
/// message.role + '|>'`, and a client may choose a role among these words.
const ROLES: [&str; 9] =
    ["system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "observation"];

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// An undefined value, with its name for the error of its use.
    Undefined(Text),
    None,
    Bool(bool),
    Int(i128),
    /// The digits of an integer beyond 127 bits, which can be shown and compared.
    BigInt(Rc<str>),
    Float(f64),
    Str(Text),
    List(List),
    Tuple(List),
    Dict(Dict),
    Namespace(Rc<Names>),
    Loop(Rc<Loop>),
    Callable(Rc<Callable>),
}

/// Entries in insertion order. Lookups are linear, since chats have short mappings; the meter counts longer ones.
#[derive(Debug, Clone)]
pub(super) struct Dict(Rc<DictItems>);

#[derive(Debug)]
struct DictItems {
    entries: Vec<(Value, Value)>,
    depth: Cell<usize>,
    _charge: Charge,
}

impl Dict {
    /// A later entry replaces an earlier one with the same key.
    pub(super) fn new(entries: Vec<(Value, Value)>) -> Res<Self> {
        let mut unique: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            match position(&unique, &key)? {
                Some(at) => unique[at].1 = value,
                None => unique.push((key, value)),
            }
        }
        Self::of_unique(unique)
    }

    fn of_unique(entries: Vec<(Value, Value)>) -> Res<Self> {
        let depth = Cell::new(depth_above(entries.iter().flat_map(|(key, value)| [key, value]))?);
        let charge = Charge::new(OVERHEAD + entries.len() * size_of::<(Value, Value)>())?;
        Ok(Self(Rc::new(DictItems { entries, depth, _charge: charge })))
    }

    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.0.entries
    }

    pub(super) fn get(&self, key: &Value) -> Res<Option<&Value>> {
        Ok(position(&self.0.entries, key)?.map(|at| &self.0.entries[at].1))
    }

    pub(super) fn get_str(&self, key: &str) -> Res<Option<&Value>> {
        meter::spend(self.0.entries.len() / 16)?;
        for (other, value) in &self.0.entries {
            let Value::Str(text) = other else { continue };
            if text.as_str().len() == key.len() {
                meter::work(key.len())?;
                if text.as_str() == key {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}

fn position(entries: &[(Value, Value)], key: &Value) -> Res<Option<usize>> {
    if !key.is_hashable() {
        return Err(Fault::new(format!("a {} cannot be a key of a dict", key.kind())));
    }
    meter::spend(entries.len() / 16)?;
    for (at, (other, _)) in entries.iter().enumerate() {
        if other.equals(key)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn depth_above<'a>(mut items: impl Iterator<Item = &'a Value>) -> Res<usize> {
    let depth = items.try_fold(0, |depth, item| Ok::<_, Fault>(depth.max(item.depth())))?;
    if depth == MAX_DEPTH {
        return Err(Fault::new(format!("its values nest deeper than {MAX_DEPTH} levels")));
    }
    Ok(depth + 1)
}

impl Value {
    pub(super) fn undefined(what: &str) -> Res<Self> {
        Text::new(what, Origin::Client).map(Self::Undefined)
    }

    /// Returns text that the language generates.
    pub(super) fn made(text: &str) -> Res<Self> {
        Text::new(text, Origin::Client).map(Self::Str)
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(list) | Self::Tuple(list) => list.depth(),
            Self::Dict(dict) => dict.0.depth.get(),
            _ => 0,
        }
    }

    /// Lets the value count with at most `depth`, so that `list` can take it.
    fn fit(&self, depth: usize, list: &List) -> Res<()> {
        if self.depth() <= depth {
            return Ok(());
        }
        meter::spend(1)?;
        if matches!(self, Self::List(other) | Self::Tuple(other) if other.is(list)) {
            return Err(Fault::new("a list cannot contain itself"));
        }
        let inner = depth.checked_sub(1);
        let inner = inner.ok_or_else(|| Fault::new("the value nests too deep to be inserted into a list"))?;
        match self {
            Self::List(items) | Self::Tuple(items) => {
                meter::work(size_of_val(&*items.items()))?;
                items.items().iter().try_for_each(|item| item.fit(inner, list))?;
                items.set_depth(depth);
            }
            Self::Dict(dict) => {
                meter::work(size_of_val(dict.entries()))?;
                for (key, value) in dict.entries() {
                    key.fit(inner, list)?;
                    value.fit(inner, list)?;
                }
                dict.0.depth.set(depth);
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn list(items: Vec<Self>) -> Res<Self> {
        List::new(items).map(Self::List)
    }

    pub(super) fn tuple(items: Vec<Self>) -> Res<Self> {
        List::new(items).map(Self::Tuple)
    }

    pub(super) fn dict(entries: Vec<(Self, Self)>) -> Res<Self> {
        Dict::new(entries).map(Self::Dict)
    }

    /// Converts a client's JSON. All of its strings, including keys, are marked as the client's.
    pub(super) fn from_client(json: &serde_json::Value) -> Res<Self> {
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(number) => number_of(&number.to_string())?,
            serde_json::Value::String(text) => Self::Str(Text::new(text, Origin::Client)?),
            serde_json::Value::Array(items) => {
                Self::list(items.iter().map(Self::from_client).collect::<Res<Vec<_>>>()?)?
            }
            serde_json::Value::Object(fields) => {
                let entry = |(key, value): (&String, _)| {
                    Ok((Self::Str(Text::new(key, Origin::Client)?), Self::from_client(value)?))
                };
                Self::Dict(Dict::of_unique(fields.iter().map(entry).collect::<Res<Vec<_>>>()?)?)
            }
        })
    }

    /// Converts a client's list of messages. Their well-known roles count as the template's own words.
    pub(super) fn from_messages(json: &serde_json::Value) -> Res<Self> {
        let Self::List(messages) = Self::from_client(json)? else { return Self::from_client(json) };
        let message = |message: &Self| match message {
            Self::Dict(dict) => {
                let entry = |(key, value): &(Self, Self)| match (key, value) {
                    (Self::Str(name), Self::Str(role)) if name.as_str() == "role" && ROLES.contains(&role.as_str()) => {
                        Ok((key.clone(), Self::Str(Text::new(role.as_str(), Origin::Template)?)))
                    }
                    _ => Ok((key.clone(), value.clone())),
                };
                Ok(Self::Dict(Dict::of_unique(dict.entries().iter().map(entry).collect::<Res<Vec<_>>>()?)?))
            }
            other => Ok(other.clone()),
        };
        Self::list(messages.items().iter().map(message).collect::<Res<Vec<_>>>()?)
    }

    /// Returns the type's name in Python's errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "undefined value",
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::BigInt(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Namespace(_) => "namespace",
            Self::Loop(_) => "loop",
            Self::Callable(_) => "function",
        }
    }

    /// True if the value can be a key of a dict. An undefined value can, as in Jinja.
    pub(super) fn is_hashable(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Dict(_) | Self::Namespace(_) | Self::Loop(_) | Self::Callable(_))
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.as_str().is_empty(),
            Self::List(list) | Self::Tuple(list) => !list.items().is_empty(),
            Self::Dict(dict) => !dict.entries().is_empty(),
            Self::BigInt(_) | Self::Namespace(_) | Self::Loop(_) | Self::Callable(_) => true,
        }
    }

    /// Returns the value as an integer; in Python booleans are integers, too.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    pub(super) fn equals(&self, other: &Self) -> Res<bool> {
        meter::spend(1)?;
        Ok(match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                meter::work(a.as_str().len().min(b.as_str().len()))?;
                a.as_str() == b.as_str()
            }
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::BigInt(a), Self::BigInt(b)) => a == b,
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                if a.items().len() != b.items().len() {
                    return Ok(false);
                }
                for (a, b) in a.items().iter().zip(b.items().iter()) {
                    if !a.equals(b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries().len() != b.entries().len() {
                    return Ok(false);
                }
                for (key, value) in a.entries() {
                    match b.get(key)? {
                        Some(other) if value.equals(other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Namespace(a), Self::Namespace(b)) => Rc::ptr_eq(a, b),
            (Self::Callable(a), Self::Callable(b)) => Rc::ptr_eq(a, b),
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((self.as_float(), other.as_float()), (Some(a), Some(b)) if a == b),
            },
        })
    }

    /// Returns the items that a loop over the value iterates over.
    pub(super) fn iterate(&self) -> Res<List> {
        match self {
            Self::List(list) | Self::Tuple(list) => Ok(list.clone()),
            Self::Dict(dict) => {
                let entries = dict.entries();
                drop(Charge::new(entries.len() * size_of::<Self>())?);
                List::new(entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Self::Str(text) => {
                let mut buffer = [0; 4];
                let one = |(c, origin): (char, _)| Text::new(c.encode_utf8(&mut buffer), origin).map(Self::Str);
                List::new(text.chars().map(one).collect::<Res<Vec<_>>>()?)
            }
            Self::Undefined(_) => List::new(Vec::new()),
            other => Err(Fault::new(format!("a {} cannot be iterated over", other.kind()))),
        }
    }
}

/// Converts a number of JSON. Integers stay exact at any length.
fn number_of(digits: &str) -> Res<Value> {
    if digits.contains(['.', 'e', 'E']) {
        let bad = |_| Fault::new(format!("'{digits}' is not a number"));
        return digits.parse().map(Value::Float).map_err(bad);
    }
    Ok(digits.parse().map_or_else(|_| Value::BigInt(digits.into()), Value::Int))
}
