//! Values that users choose by a name.

use crate::{Error, Result};

/// The one of `all` that is called so.
///
/// # Errors
/// `InvalidRequest` that names the argument `what` and lists all names.
pub(super) fn by_name<T: Copy>(what: &'static str, got: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let found = all.iter().copied().find(|&value| name(value) == got);
    found.ok_or_else(|| Error::invalid(what, got, listed(all, name)))
}

/// All names, as an error lists them: 'f16' or 'f32'.
pub(super) fn listed<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> String {
    let names: Vec<String> = all.iter().map(|&value| format!("'{}'", name(value))).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}
