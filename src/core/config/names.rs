//! Values that users choose by name or within limits.

use crate::{Error, Result};

/// Returns the value of `all` with this name.
///
/// # Errors
/// `InvalidRequest` naming the argument `what` and listing all names.
pub fn by_name<T: Copy>(what: &'static str, got: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let found = all.iter().copied().find(|&value| name(value) == got);
    found.ok_or_else(|| Error::invalid(what, got, listed(all, name)))
}

/// Lists all names for an error, such as: 'f16' or 'f32'.
pub fn listed<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> String {
    let names: Vec<String> = all.iter().map(|&value| format!("'{}'", name(value))).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Rejects a number outside these limits.
///
/// # Errors
/// `InvalidRequest` naming the argument `what` and the limits.
pub fn within(what: &'static str, got: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&got) {
        return Ok(());
    }
    let expected = if most == usize::MAX { format!("at least {least}") } else { format!("{least} to {most}") };
    Err(Error::invalid(what, got, expected))
}
