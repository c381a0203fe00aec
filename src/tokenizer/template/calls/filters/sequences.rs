//! Filters of lists, mappings and other sequences.

use super::order::{sort_key, sorted};
use super::{Path, optional_path, strings};
use crate::template::args::{Args, bool_or, count_or, required, text as text_argument, wrong};
use crate::template::fault::{Fault, Res};
use crate::template::meter::{self, Charge};
use crate::template::operators::{arithmetic, order};
use crate::template::syntax::ast::Operator;
use crate::template::value::{List, Value};
use crate::template::{access, lists};

/// Applies one of `filter_names::SEQUENCES`.
pub(super) fn apply(name: &str, value: &Value, args: Args) -> Res<Value> {
    match name {
        "length" | "count" => args.none(name).and_then(|()| length(value)),
        "first" | "last" => {
            args.none(name)?;
            let at = if name == "first" { 0 } else { -1 };
            match value {
                Value::Dict(_) => access::item(&Value::List(value.iterate()?), &Value::Int(at)),
                Value::Undefined(_) => Ok(value.clone()),
                Value::Str(_) | Value::List(_) | Value::Tuple(_) => access::item(value, &Value::Int(at)),
                other => Err(wrong(name, other, "a sequence")),
            }
        }
        "reverse" => {
            args.none(name)?;
            let backwards = [None, None, Some(-1)];
            match value {
                Value::Str(_) => access::slice(value, backwards),
                other => access::slice(&Value::List(other.iterate()?), backwards),
            }
        }
        "list" => args.none(name).and_then(|()| Value::list(lists::copied(&value.iterate()?)?)),
        "join" => {
            let [separator, attribute] = args.bind(name, ["d", "attribute"])?;
            let items = value.iterate()?;
            match optional_path(attribute.as_ref())? {
                None => strings::join(separator.as_ref(), &items.items()),
                Some(path) => {
                    let parts = items.items().iter().map(|item| path.get(item, None)).collect::<Res<Vec<_>>>()?;
                    strings::join(separator.as_ref(), &parts)
                }
            }
        }
        "min" | "max" => extreme(name, value, args),
        "sum" => sum(value, args),
        "sort" => {
            let [reverse, case_sensitive, attribute] = args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let (path, cased) = (optional_path(attribute.as_ref())?, bool_or(case_sensitive.as_ref(), false));
            let key = |item: &Value| sort_key(item, path.as_ref(), cased);
            let items = sorted(&value.iterate()?, bool_or(reverse.as_ref(), false), key)?;
            Value::list(items.into_iter().map(|(_, item)| item).collect())
        }
        "unique" => unique(value, args),
        "dictsort" => dictsort(value, args),
        "groupby" => groupby(value, args),
        "batch" => {
            let [count, fill] = args.bind(name, ["linecount", "fill_with"])?;
            let count = count_or(Some(&required(count, name)?), name, 0)?;
            batch(&value.iterate()?, count, fill.as_ref())
        }
        _ => {
            let [count, fill] = args.bind(name, ["slices", "fill_with"])?;
            let count = count_or(Some(&required(count, name)?), name, 0)?;
            slices(&value.iterate()?, count, fill.as_ref())
        }
    }
}

fn length(value: &Value) -> Res<Value> {
    let length = match value {
        Value::Str(text) => {
            meter::work(text.as_str().len())?;
            text.as_str().chars().count()
        }
        Value::List(list) | Value::Tuple(list) => list.items().len(),
        Value::Dict(dict) => dict.entries().len(),
        Value::Undefined(_) => 0,
        other => return Err(wrong("length", other, "a sequence")),
    };
    Ok(Value::Int(length as i128))
}

fn extreme(name: &str, value: &Value, args: Args) -> Res<Value> {
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let (path, cased) = (optional_path(attribute.as_ref())?, bool_or(case_sensitive.as_ref(), false));
    let mut best: Option<(Value, Value)> = None;
    for item in value.iterate()?.items().iter() {
        let key = sort_key(item, path.as_ref(), cased)?;
        let better = match &best {
            None => true,
            Some((best, _)) if name == "min" => order(&key, best)?.is_some_and(std::cmp::Ordering::is_lt),
            Some((best, _)) => order(&key, best)?.is_some_and(std::cmp::Ordering::is_gt),
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    best.map_or_else(|| Value::undefined("an item of an empty sequence"), |(_, item)| Ok(item))
}

fn sum(value: &Value, args: Args) -> Res<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = optional_path(attribute.as_ref())?;
    let mut sum = start.unwrap_or(Value::Int(0));
    for item in value.iterate()?.items().iter() {
        meter::spend(1)?;
        let item = path.as_ref().map_or_else(|| Ok(item.clone()), |path| path.get(item, None))?;
        sum = arithmetic(Operator::Add, &sum, &item)?;
    }
    Ok(sum)
}

fn unique(value: &Value, args: Args) -> Res<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let (path, cased) = (optional_path(attribute.as_ref())?, bool_or(case_sensitive.as_ref(), false));
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    for item in value.iterate()?.items().iter() {
        let key = sort_key(item, path.as_ref(), cased)?;
        let mut known = false;
        for other in &seen {
            known = known || other.equals(&key)?;
        }
        if !known {
            seen.push(key);
            kept.push(item.clone());
        }
    }
    Value::list(kept)
}

fn dictsort(value: &Value, args: Args) -> Res<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else { return Err(wrong("dictsort", value, "a mapping")) };
    let by = match &by {
        None => 0,
        by => match text_argument(by.as_ref(), "dictsort")?.as_str() {
            "key" => 0,
            "value" => 1,
            other => return Err(Fault::new(format!("dictsort: got by='{other}', expected 'key' or 'value'"))),
        },
    };
    let Value::List(pairs) = super::functions::pairs(dict.entries())? else { return Ok(Value::None) };
    let path = Path(vec![Value::Int(by)]);
    let key = |pair: &Value| sort_key(pair, Some(&path), bool_or(case_sensitive.as_ref(), false));
    let pairs = sorted(&pairs, bool_or(reverse.as_ref(), false), key)?;
    Value::list(pairs.into_iter().map(|(_, pair)| pair).collect())
}

/// Returns pairs of a value and the items that have it, `pair.grouper` and `pair.list`.
fn groupby(value: &Value, args: Args) -> Res<Value> {
    let [attribute, default, case_sensitive] = args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let path = Path::new(&required(attribute, "groupby")?)?;
    let grouper = |item: &Value| path.get(item, default.as_ref());
    let key = |item: &Value| sort_key(&grouper(item)?, None, bool_or(case_sensitive.as_ref(), false));
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted(&value.iterate()?, false, key)? {
        match groups.last_mut() {
            Some((last, items)) if last.equals(&key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let group = |(_, items): (Value, Vec<Value>)| {
        let grouper = items.first().map_or(Ok(Value::None), grouper)?;
        List::named(vec![grouper, Value::list(items)?], &["grouper", "list"]).map(Value::Tuple)
    };
    Value::list(groups.into_iter().map(group).collect::<Res<Vec<_>>>()?)
}

fn batch(items: &List, count: usize, fill: Option<&Value>) -> Res<Value> {
    if count == 0 {
        return Err(Fault::new("batch: expected at least one item in a line"));
    }
    let mut lines = Vec::new();
    for line in items.items().chunks(count) {
        lines.push(Value::list(filled(line, count, fill)?)?);
    }
    Value::list(lines)
}

fn slices(items: &List, count: usize, fill: Option<&Value>) -> Res<Value> {
    if count == 0 {
        return Err(Fault::new("slice: expected at least one slice"));
    }
    let (each, longer) = (items.items().len() / count, items.items().len() % count);
    let items = items.items();
    let mut rest = &*items;
    let mut slices = Vec::new();
    for index in 0..count {
        let (slice, after) = rest.split_at(each + usize::from(index < longer));
        rest = after;
        let width = if longer > 0 && index >= longer { each + 1 } else { slice.len() };
        slices.push(Value::list(filled(slice, width, fill)?)?);
    }
    Value::list(slices)
}

/// Returns `items`, padded with `fill` up to `width`.
fn filled(items: &[Value], width: usize, fill: Option<&Value>) -> Res<Vec<Value>> {
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let missing = if fill.is_some() { width - items.len() } else { 0 };
    drop(Charge::new((items.len().saturating_add(missing)).saturating_mul(size_of::<Value>()))?);
    let padding = fill.into_iter().flat_map(|fill| std::iter::repeat_n(fill, missing));
    Ok(items.iter().chain(padding).cloned().collect())
}
