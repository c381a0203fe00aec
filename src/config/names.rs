//! Values that users choose by name.

use crate::{Error, Result};

/// Returns the value of `all` with this name.
///
/// # Errors
/// `InvalidRequest` naming the argument `what` and listing all names.
pub(super) fn by_name<T: Copy>(what: &'static str, got: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let found = all.iter().copied().find(|&value| name(value) == got);
    found.ok_or_else(|| Error::invalid(what, got, listed(all, name)))
}

/// Lists all names for an error, such as: 'f16' or 'f32'.
pub(super) fn listed<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> String {
    let names: Vec<String> = all.iter().map(|&value| format!("'{}'", name(value))).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}
