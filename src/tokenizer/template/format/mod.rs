//! Values as text: numbers, strings and their formats.

pub(super) mod braces;
pub(super) mod casing;
mod floats;
pub(super) mod percent;
pub(super) mod show;
