//! Arithmetic and comparison, as Python does them.

use std::cmp::Ordering;

use super::fault::{Fault, Res};
use super::format::percent;
use super::meter::{self, Charge};
use super::syntax::ast::{Comparison, Operator};
use super::text::Builder;
use super::value::Value;

pub(super) fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Res<Value> {
    let unsupported = || {
        if let Some(Value::Undefined(name)) = [left, right].into_iter().find(|v| matches!(v, Value::Undefined(_))) {
            return Fault::new(format!("{name} is undefined"));
        }
        let (left, right) = (left.kind(), right.kind());
        Fault::new(format!("unsupported operand types for {}: {left} and {right}", symbol(operator)))
    };
    match (operator, left, right) {
        (Operator::Add, Value::Str(a), Value::Str(b)) => return a.joined(b).map(Value::Str),
        (Operator::Add, Value::List(a), Value::List(b)) => return Value::list(joined(&a.items(), &b.items())?),
        (Operator::Add, Value::Tuple(a), Value::Tuple(b)) => return Value::tuple(joined(&a.items(), &b.items())?),
        (Operator::Multiply, value, count) | (Operator::Multiply, count, value)
            if count.as_int().is_some() && matches!(value, Value::Str(_) | Value::List(_) | Value::Tuple(_)) =>
        {
            return repeated(value, count.as_int().unwrap_or(0));
        }
        (Operator::Modulo, Value::Str(format), arguments) => return percent::format(format, arguments),
        _ => {}
    }
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return integers(operator, a, b);
    }
    let (a, b) = left.as_float().zip(right.as_float()).ok_or_else(unsupported)?;
    floats(operator, a, b).map(Value::Float)
}

fn symbol(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "**",
    }
}

fn joined(a: &[Value], b: &[Value]) -> Res<Vec<Value>> {
    drop(Charge::new((a.len() + b.len()) * size_of::<Value>())?);
    Ok([a, b].concat())
}

fn repeated(value: &Value, count: i128) -> Res<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    match value {
        Value::Str(text) => {
            let mut out = Builder::new();
            out.push_repeated(text, count)?;
            out.finish().map(Value::Str)
        }
        Value::List(list) | Value::Tuple(list) => {
            let bytes = list.items().len().saturating_mul(count).saturating_mul(size_of::<Value>());
            drop(Charge::new(bytes)?);
            let times = if list.items().is_empty() { 0 } else { count };
            let items = list.items();
            let items = std::iter::repeat_n(&*items, times).flatten().cloned().collect();
            if matches!(value, Value::List(_)) { Value::list(items) } else { Value::tuple(items) }
        }
        other => Err(Fault::new(format!("a {} cannot be repeated", other.kind()))),
    }
}

fn integers(operator: Operator, a: i128, b: i128) -> Res<Value> {
    let by_zero = || Fault::new("division by zero");
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide if b == 0 => return Err(by_zero()),
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide | Operator::Modulo if b == 0 => return Err(by_zero()),
        // Rounds towards minus infinity; the remainder has the divisor's sign.
        Operator::FloorDivide => {
            let quotient = a.checked_div(b);
            quotient.map(|quotient| quotient - i128::from(a % b != 0 && (a < 0) != (b < 0)))
        }
        Operator::Modulo => {
            a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Operator::Power if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Int).ok_or_else(|| Fault::new("an integer is beyond 127 bits"))
}

fn floats(operator: Operator, a: f64, b: f64) -> Res<f64> {
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Modulo);
    if divides && b == 0.0 {
        return Err(Fault::new("division by zero"));
    }
    Ok(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        Operator::Modulo => a - b * (a / b).floor(),
        Operator::Power => a.powf(b),
    })
}

pub(super) fn compare(comparison: Comparison, left: &Value, right: &Value) -> Res<bool> {
    Ok(match comparison {
        Comparison::Equal => left.equals(right)?,
        Comparison::NotEqual => !left.equals(right)?,
        Comparison::In => contains(right, left)?,
        Comparison::NotIn => !contains(right, left)?,
        Comparison::Less => order(left, right)?.is_some_and(Ordering::is_lt),
        Comparison::LessEqual => order(left, right)?.is_some_and(Ordering::is_le),
        Comparison::Greater => order(left, right)?.is_some_and(Ordering::is_gt),
        Comparison::GreaterEqual => order(left, right)?.is_some_and(Ordering::is_ge),
    })
}

/// Returns `None` for NaN, which has no order.
pub(super) fn order(left: &Value, right: &Value) -> Res<Option<Ordering>> {
    meter::spend(1)?;
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            meter::work(a.as_str().len().min(b.as_str().len()))?;
            return Ok(Some(a.as_str().cmp(b.as_str())));
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items().iter().zip(b.items().iter()) {
                if !a.equals(b)? {
                    return order(a, b);
                }
            }
            return Ok(Some(a.items().len().cmp(&b.items().len())));
        }
        _ => {}
    }
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return Ok(Some(a.cmp(&b)));
    }
    match (left.as_float(), right.as_float()) {
        (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
        _ => Err(Fault::new(format!("a {} and a {} have no order", left.kind(), right.kind()))),
    }
}

fn contains(container: &Value, item: &Value) -> Res<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            meter::work(text.as_str().len().saturating_add(part.as_str().len()))?;
            Ok(text.as_str().contains(part.as_str()))
        }
        (Value::Str(_), other) => Err(Fault::new(format!("'in <string>' needs a string, got a {}", other.kind()))),
        (Value::List(list) | Value::Tuple(list), item) => {
            for other in list.items().iter() {
                if other.equals(item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Dict(dict), key) => Ok(dict.get(key)?.is_some()),
        (Value::Undefined(_), _) => Ok(false),
        (other, _) => Err(Fault::new(format!("a {} cannot be searched with 'in'", other.kind()))),
    }
}
