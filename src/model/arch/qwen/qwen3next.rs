//! `qwen3next`: Qwen3-Next. The layers of `qwen35moe`, with value heads in the order of their key heads. Older files
//! have most projections of a gated delta net in one tensor.

use super::qwen35moe::spec_with;
use crate::Result;
use crate::backend::HeadOrder;
use crate::keys::Keys;
use crate::spec::{ModelSpec, Projections};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let is_older = keys.gguf.tensors().iter().any(|tensor| tensor.name.ends_with(".ssm_in.weight"));
    let projections = if is_older { Projections::HeadsTogether } else { Projections::GatesTogether };
    spec_with(keys, keys.delta_net(HeadOrder::Grouped, projections)?)
}
