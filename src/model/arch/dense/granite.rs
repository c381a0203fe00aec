//! `granite`: Granite 3 dense models. The factors of `granitemoe`, and a dense feed-forward.

use crate::Result;
use crate::arch::moe::granitemoe::{scaled_attention, scaled_model};
use crate::backend::Activation;
use crate::keys::Keys;
use crate::spec::{LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = scaled_model(keys)?;
    for layer in keys.layers_of(&model)? {
        let attention = scaled_attention(keys, &mut model, layer)?;
        model.layers.push(LayerSpec::new(attention, keys.dense(layer, Activation::Silu)?));
    }
    Ok(model)
}
