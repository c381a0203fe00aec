//! `apertus`: Apertus. The feed-forward has no gate, and the parameters of its activation, xIELU, differ per layer. Has
//! norms of q and k heads.

use crate::Result;
use crate::backend::{Activation, RopeKind, Xielu};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Heads),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense_of(layer, Activation::Xielu(xielu(keys, layer)?), Gate::None)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}

/// The file stores the factors of the square and of the exponential before their softplus.
fn xielu(keys: &Keys<'_>, layer: usize) -> Result<Xielu> {
    let (positive, negative) = (number(keys, "xielu.alpha_p", layer)?, number(keys, "xielu.alpha_n", layer)?);
    let (slope, eps) = (number(keys, "xielu.beta", layer)?, number(keys, "xielu.eps", layer)?);
    let softplus = |x: f32| f64::from(x).exp().ln_1p();
    let (positive, negative) = (softplus(positive) as f32, (f64::from(slope) + softplus(negative)) as f32);
    Ok(Xielu { positive, negative, slope, eps })
}

/// Returns a layer's number from a key without the architecture's prefix.
fn number(keys: &Keys<'_>, key: &str, layer: usize) -> Result<f32> {
    match keys.opt_number_of(layer, key)? {
        Some(number) if number.abs() < MOST => Ok(number),
        Some(number) => {
            let problem = format!("holds {number}, expected numbers between -{MOST} and {MOST}");
            Err(keys.metadata.error(key, problem))
        }
        None => Err(keys.metadata.error(key, "is missing")),
    }
}

/// No real model has numbers near this limit. Their exponential stays finite.
const MOST: f32 = 80.0;
