//! `exaone`: EXAONE 3.0 and 3.5, EXAONE Deep. Llama's layers with NeoX pairs of RoPE; the scaling of its frequencies is
//! the tensor `rope_freqs`.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        model.layers.push(LayerSpec::new(attention, keys.dense(layer, Activation::Silu)?));
    }
    Ok(model)
}
