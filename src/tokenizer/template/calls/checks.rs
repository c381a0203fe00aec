//! The tests of `is`.

use super::filter_names;
use crate::template::args::{Args, required};
use crate::template::fault::{Fault, Res};
use crate::template::format::casing;
use crate::template::operators::{arithmetic, compare};
use crate::template::syntax::ast::{Comparison, Operator};
use crate::template::value::Value;

const NAMES: &[&str] = &[
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Integers that are single objects in Python.
const SMALL_INTS: std::ops::RangeInclusive<i128> = -5..=256;

pub(in crate::template) fn check(name: &str, value: &Value, args: Args) -> Res<bool> {
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::NotEqual),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let [other] = args.bind(name, ["other"])?;
        return compare(comparison, value, &required(other, name)?);
    }
    let remainder = |by: &Value| arithmetic(Operator::Modulo, value, by);
    if name == "divisibleby" {
        let [by] = args.bind(name, ["num"])?;
        return remainder(&required(by, name)?)?.equals(&Value::Int(0));
    }
    if name == "sameas" {
        let [other] = args.bind(name, ["other"])?;
        let other = required(other, name)?;
        // Python keeps one object of each of these. Two equal values of other kinds are usually different objects.
        let single = match value {
            Value::None | Value::Bool(_) | Value::Namespace(_) => true,
            Value::Int(number) => SMALL_INTS.contains(number),
            Value::Str(text) => text.is_of_template(),
            _ => false,
        };
        return Ok(single && value.kind() == other.kind() && value.equals(&other)?);
    }
    args.none(name)?;
    Ok(match name {
        "boolean" => matches!(value, Value::Bool(_)),
        // Jinja considers an undefined value callable, but calling it is an error.
        "callable" => matches!(value, Value::Callable(_) | Value::Loop(_) | Value::Undefined(_)),
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "escaped" => matches!(value, Value::Str(text) if text.is_markup()),
        "even" => remainder(&Value::Int(2))?.equals(&Value::Int(0))?,
        "odd" => remainder(&Value::Int(2))?.equals(&Value::Int(1))?,
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "none" => matches!(value, Value::None),
        "float" => matches!(value, Value::Float(_)),
        "integer" => matches!(value, Value::Int(_) | Value::BigInt(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_)),
        "iterable" | "sequence" => {
            matches!(value, Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_))
        }
        "mapping" => matches!(value, Value::Dict(_)),
        "string" => matches!(value, Value::Str(_)),
        "lower" => matches!(value, Value::Str(text) if casing::is_lower(text.as_str())),
        "upper" => matches!(value, Value::Str(text) if casing::is_upper(text.as_str())),
        "filter" => matches!(value, Value::Str(name) if filter_names::is_known(name.as_str())),
        "test" => matches!(value, Value::Str(name) if NAMES.contains(&name.as_str())),
        _ => return Err(Fault::new(format!("no test named '{name}'"))),
    })
}
