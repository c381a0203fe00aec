//! The filters of `|`.

mod order;
mod sequences;
mod strings;

use super::checks;
use super::{filter_names, functions, json};
use crate::template::access;
use crate::template::args::{Args, bool_or, int_or, required};
use crate::template::fault::{Fault, Res};
use crate::template::run::Run;
use crate::template::syntax::ast::Name;
use crate::template::value::Value;

const SIZE_UNITS: &[u8] = b"KMGTPEZY";

pub(in crate::template) fn apply(run: &mut Run, name: &str, value: &Value, args: Args) -> Res<Value> {
    run.nested(|run| match name {
        "map" => map(run, value, args),
        "select" => select(value, args, false, true),
        "reject" => select(value, args, false, false),
        "selectattr" => select(value, args, true, true),
        "rejectattr" => select(value, args, true, false),
        "default" | "d" => default(value, args),
        "attr" => {
            let [attribute] = args.bind(name, ["name"])?;
            let attribute = crate::template::args::text(attribute.as_ref(), name)?;
            access::attribute(value, attribute.as_str())
        }
        "tojson" => json::tojson(value, args),
        "items" => {
            args.none(name)?;
            match value {
                Value::Dict(dict) => functions::pairs(dict.entries()),
                Value::Undefined(_) => Value::list(Vec::new()),
                other => Err(crate::template::args::wrong(name, other, "a mapping")),
            }
        }
        "abs" | "int" | "float" | "round" => number(name, value, args),
        "safe" => args.none(name).and_then(|()| value.to_text()?.into_markup()).map(Value::Str),
        "string" => args.none(name).and_then(|()| value.to_text()).map(Value::Str),
        "filesizeformat" => file_size(value, args),
        name if filter_names::STRINGS.contains(&name) => strings::apply(name, value, args),
        name if filter_names::SEQUENCES.contains(&name) => sequences::apply(name, value, args),
        _ => Err(Fault::new(format!("no filter named '{name}'"))),
    })
}

fn default(value: &Value, args: Args) -> Res<Value> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let absent = matches!(value, Value::Undefined(_)) || (bool_or(boolean.as_ref(), false) && !value.is_true());
    match default {
        _ if !absent => Ok(value.clone()),
        Some(default) => Ok(default),
        None => Value::made(""),
    }
}

fn map(run: &mut Run, value: &Value, mut args: Args) -> Res<Value> {
    // Jinja treats every false value as empty, and then ignores the arguments.
    if !value.is_true() {
        return Value::list(Vec::new());
    }
    let items = value.iterate()?;
    let mut mapped = Vec::new();
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let path = Path::new(&required(attribute, "map")?)?;
        for item in items.items().iter() {
            mapped.push(path.get(item, default.as_ref())?);
        }
        return Value::list(mapped);
    }
    let Value::Str(filter) = args.positional.remove(0) else { return Err(Fault::new("map: needs a filter's name")) };
    for item in items.items().iter() {
        mapped.push(apply(run, filter.as_str(), item, args.copy()?)?);
    }
    Value::list(mapped)
}

/// Keeps the items whose test returns `wanted`. With `by_attribute`, the first argument names an attribute of the item
/// that is tested instead.
fn select(value: &Value, mut args: Args, by_attribute: bool, wanted: bool) -> Res<Value> {
    if !value.is_true() {
        return Value::list(Vec::new());
    }
    let path = match by_attribute {
        true if args.positional.is_empty() => return Err(Fault::new("missing parameter for the attribute's name")),
        true => Some(Path::new(&args.positional.remove(0))?),
        false => None,
    };
    let test: Option<Name> = match args.positional.is_empty() {
        true => None,
        false => Some(crate::template::args::text(Some(&args.positional.remove(0)), "select")?.as_str().into()),
    };
    let mut selected = Vec::new();
    for item in value.iterate()?.items().iter() {
        crate::template::meter::spend(1)?;
        let tested = path.as_ref().map_or_else(|| Ok(item.clone()), |path| path.get(item, None))?;
        let passes = match &test {
            None => tested.is_true(),
            Some(test) => checks::check(test, &tested, args.copy()?)?,
        };
        if passes == wanted {
            selected.push(item.clone());
        }
    }
    Value::list(selected)
}

fn number(name: &str, value: &Value, args: Args) -> Res<Value> {
    if matches!(value, Value::Undefined(_)) {
        return Err(crate::template::args::wrong(name, value, "a number"));
    }
    match name {
        "abs" => {
            args.none(name)?;
            let overflow = || Fault::new("an integer is beyond 127 bits");
            match value {
                Value::Float(value) => Ok(Value::Float(value.abs())),
                value => {
                    let int = value.as_int().ok_or_else(|| crate::template::args::wrong(name, value, "a number"))?;
                    int.checked_abs().map(Value::Int).ok_or_else(overflow)
                }
            }
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = u32::try_from(int_or(base.as_ref(), name, 10)?).unwrap_or(10);
            Ok(to_int(value, base).map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            Ok(to_float(value).map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        _ => {
            let [precision, method] = args.bind(name, ["precision", "method"])?;
            let precision = int_or(precision.as_ref(), name, 0)?;
            let float = value.as_float().ok_or_else(|| crate::template::args::wrong(name, value, "a number"))?;
            let places = precision.clamp(-400, 400) as i32;
            let scale = 10f64.powi(places);
            Ok(match method.as_ref() {
                Some(Value::Str(method)) if method.as_str() == "ceil" => Value::Float((float * scale).ceil() / scale),
                Some(Value::Str(method)) if method.as_str() == "floor" => Value::Float((float * scale).floor() / scale),
                Some(Value::Str(method)) if method.as_str() != "common" => {
                    let got = method.as_str();
                    return Err(Fault::new(format!("round: got the method '{got}', expected common, ceil or floor")));
                }
                _ if precision >= 0 && matches!(value, Value::Int(_) | Value::Bool(_)) => value.clone(),
                // Rust and Python both round the exact decimal value of the float, halves to even.
                _ if precision >= 0 => {
                    let digits = places.min(300) as usize;
                    Value::Float(format!("{float:.digits$}").parse().unwrap_or(float))
                }
                _ => {
                    let rounded = (float / 10f64.powi(-places)).round_ties_even() * 10f64.powi(-places);
                    if value.as_int().is_some() { Value::Int(rounded as i128) } else { Value::Float(rounded) }
                }
            })
        }
    }
}

/// Formats a number of bytes, in steps of 1000 or of 1024.
fn file_size(value: &Value, args: Args) -> Res<Value> {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let binary = bool_or(binary.as_ref(), false);
    let bytes = to_float(value).ok_or_else(|| crate::template::args::wrong("filesizeformat", value, "a number"))?;
    let step = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Value::made("1 Byte");
    }
    if bytes < step {
        return Value::made(&format!("{} Bytes", bytes as i128));
    }
    let (mut amount, mut unit) = (bytes / step, 0);
    while amount >= step && unit + 1 < SIZE_UNITS.len() {
        amount /= step;
        unit += 1;
    }
    let (unit, infix) = (char::from(SIZE_UNITS[unit]), if binary { "i" } else { "" });
    let unit = if binary || unit != 'K' { unit } else { 'k' };
    Value::made(&format!("{amount:.1} {unit}{infix}B"))
}

fn to_int(value: &Value, base: u32) -> Option<i128> {
    match value {
        Value::Str(text) => {
            let digits = text.as_str().trim().replace('_', "").to_ascii_lowercase();
            let (sign, plain) = digits.strip_prefix('-').map_or(("", digits.as_str()), |plain| ("-", plain));
            let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
                .into_iter()
                .find(|(prefix, of)| plain.starts_with(prefix) && (base == 0 || base == *of));
            let (plain, base) = match prefixed {
                Some((_, of)) => (&plain[2..], of),
                None => (plain, if base == 0 { 10 } else { base }),
            };
            let parse = || i128::from_str_radix(&format!("{sign}{plain}"), base).ok();
            let parsed = if (2..=36).contains(&base) { parse() } else { None };
            parsed.or_else(|| digits.parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| value as i128))
        }
        Value::Float(value) if value.is_finite() => Some(*value as i128),
        value => value.as_int(),
    }
}

fn to_float(value: &Value) -> Option<f64> {
    match value {
        Value::Str(text) => text.as_str().trim().replace('_', "").parse().ok(),
        value => value.as_float(),
    }
}

/// An attribute as filters name it: names or indices separated by dots, each looked up as an item.
struct Path(Vec<Value>);

impl Path {
    fn new(attribute: &Value) -> Res<Self> {
        let Value::Str(text) = attribute else { return Ok(Self(vec![attribute.clone()])) };
        let part = |part: &str| match part.parse() {
            Ok(place) if part.bytes().all(|b| b.is_ascii_digit()) => Ok(Value::Int(place)),
            _ => text.part(part).map(Value::Str),
        };
        text.as_str().split('.').map(part).collect::<Res<_>>().map(Self)
    }

    fn get(&self, item: &Value, default: Option<&Value>) -> Res<Value> {
        let mut value = item.clone();
        for part in &self.0 {
            value = access::item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

fn optional_path(attribute: Option<&Value>) -> Res<Option<Path>> {
    match attribute {
        None | Some(Value::None) => Ok(None),
        Some(attribute) => Path::new(attribute).map(Some),
    }
}
