//! Weights on their way to the device: their layouts, the upload, and copies of those in the host's memory.

pub(crate) mod dense;
pub(crate) mod expert_cache;
pub(crate) mod stacks;
pub(crate) mod staging;
pub(crate) mod unpack;
pub(crate) mod upload;
