//! `hy_v3`: Hunyuan 3. Like `dots1`, but no key states the number of dense layers.

use crate::Result;
use crate::arch::deepseek::dots1::spec_with;
use crate::backend::Activation;
use crate::keys::Keys;
use crate::layers::of_layer;
use crate::spec::ModelSpec;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    spec_with(keys, |model, layer| match keys.gguf.tensor(&of_layer(layer, "ffn_gate_inp.weight")) {
        None => keys.dense(layer, Activation::Silu),
        Some(_) => keys.experts_beside_shared(model, layer),
    })
}
