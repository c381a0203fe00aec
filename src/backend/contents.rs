//! Contents of the pools as bytes, for copies of them outside the device.

use std::sync::Arc;

use super::Backend;
use crate::{Error, Result};

/// One layer's part of a content: a block of its KV pool, or a slot of its states.
pub enum Part<'a, B: Backend> {
    Block(&'a mut B::KvLayer, u32),
    Slot(&'a mut B::StateLayer, u32),
}

/// The bytes of a content in host memory.
pub type Content = Arc<Vec<u8>>;

/// A finished copy of a content to the host: the number that the caller gave it, and its bytes. `None` if the host has
/// no memory for them.
pub type Copied = (u64, Option<Vec<u8>>);

/// Returns an error for a content whose bytes are not those of its parts.
pub fn wrong_size(bytes: usize) -> Error {
    Error::internal(format!("a content of {bytes} bytes for parts of another size"))
}

/// Returns an error for a part outside its pool.
pub fn outside() -> Error {
    Error::internal("a content outside its pool")
}

/// Splits the bytes of a part off the bytes of a content.
pub fn split_off<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8]> {
    let (part, after) = rest.split_at_checked(bytes).ok_or_else(|| wrong_size(rest.len()))?;
    *rest = after;
    Ok(part)
}

/// Returns a copy of these parts one after another. `None` if the host has no memory for it.
pub fn joined(parts: &[&[u8]]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    content.try_reserve_exact(parts.iter().map(|part| part.len()).sum()).ok()?;
    parts.iter().for_each(|part| content.extend_from_slice(part));
    Some(content)
}
