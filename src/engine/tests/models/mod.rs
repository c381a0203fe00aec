//! Tests of whole engines with models.

pub(super) mod crossing;
pub(super) mod images;
mod integer_cache;
mod latent;
pub(super) mod offload;
mod rankers;
mod room;
mod states;
