//! Names of prefixes, and the cached blocks by those.

pub(crate) mod hash_chain;
pub(crate) mod prefix_index;
pub(crate) mod tokens;
