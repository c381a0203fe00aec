//! Sorting, for the filters that need it.

use super::Path;
use crate::template::fault::Res;
use crate::template::format::casing;
use crate::template::meter::Charge;
use crate::template::operators;
use crate::template::value::{List, Value};

/// Returns Python's sort key, optionally ignoring case, of an item or of an attribute of it.
pub(super) fn sort_key(item: &Value, path: Option<&Path>, case_sensitive: bool) -> Res<Value> {
    let key = path.map_or_else(|| Ok(item.clone()), |path| path.get(item, None))?;
    match &key {
        Value::Str(text) if !case_sensitive => casing::lower(text),
        _ => Ok(key),
    }
}

/// Returns the items sorted by their keys. The sort is stable.
///
/// It is a merge sort of our own, because a comparison may fail. NaN is neither less nor more than any number, for
/// which the standard library's sort may panic.
pub(super) fn sorted(items: &List, reverse: bool, key: impl Fn(&Value) -> Res<Value>) -> Res<Vec<(Value, Value)>> {
    let items = &*items.items();
    let _charge = Charge::new(items.len() * (size_of::<(Value, Value)>() + 2 * size_of::<usize>()))?;
    let keyed = items.iter().map(|item| Ok((key(item)?, item.clone()))).collect::<Res<Vec<_>>>()?;
    let less = |a: usize, b: usize| {
        let (a, b) = if reverse { (b, a) } else { (a, b) };
        Ok(operators::order(&keyed[a].0, &keyed[b].0)?.is_some_and(std::cmp::Ordering::is_lt))
    };
    Ok(merge_sorted(keyed.len(), less)?.into_iter().map(|at| keyed[at].clone()).collect())
}

/// Returns the indices `0..count` in order. It terminates for any `less`, even if that is not an order.
fn merge_sorted(count: usize, less: impl Fn(usize, usize) -> Res<bool>) -> Res<Vec<usize>> {
    let mut places: Vec<usize> = (0..count).collect();
    let mut width = 1;
    while width < count {
        let mut merged = Vec::with_capacity(count);
        for pair in places.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
                if less(*second, *first)? {
                    merged.push(*second);
                    right = right_rest;
                } else {
                    merged.push(*first);
                    left = left_rest;
                }
            }
            merged.extend(left.iter().chain(right));
        }
        places = merged;
        width *= 2;
    }
    Ok(places)
}
