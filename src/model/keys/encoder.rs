//! Keys of bidirectional models, which turn texts into vectors.

use super::Keys;
use super::common::HeadKeys;
use super::rope::LayerRope;
use crate::Result;
use crate::batch::GroupKind;
use crate::config::Pooling;
use crate::spec::{AttentionSpec, EmbeddingSpec, ModelSpec, NormSpec, Norms};

/// Names of the norms in BERT's layers. They norm the residual after attention or the feed-forward is added to it.
pub(crate) const BERT_NORMS: [Norms; 2] = [Norms::of_sum("attn_output_norm"), Norms::of_sum("layer_output_norm")];

impl Keys<'_> {
    /// Returns the model without its layers, with LayerNorms. One of them follows the embeddings, none the last layer.
    pub(crate) fn encoder(&self, norm_bias: bool) -> Result<ModelSpec> {
        let model = self.encoder_with(self.layer_norm(norm_bias)?, Pooling::Cls)?;
        let embedding = EmbeddingSpec { norm: Some("token_embd_norm"), ..EmbeddingSpec::PLAIN };
        Ok(ModelSpec { output_norm: None, embedding, ..model })
    }

    /// Returns the model without its layers, in the form of generative models. `otherwise` is the pooling of a file
    /// without the key.
    pub(crate) fn encoder_with(&self, norm: NormSpec, otherwise: Pooling) -> Result<ModelSpec> {
        if self.opt_bool("attention.causal")? == Some(true) {
            return Err(self.error("attention.causal", "is true, expected false: the architecture sees both sides"));
        }
        self.model_that_pools(norm, self.pooling(otherwise)?)
    }

    /// Returns the number of rows of the token type table, from the tokenizer's key or else from the tensor.
    pub(crate) fn token_types(&self) -> Result<Option<usize>> {
        let rows = self.metadata.opt_u32("tokenizer.ggml.token_type_count")?.filter(|&rows| rows > 0);
        let of_tensor = || self.gguf.tensor("token_types.weight").map(|tensor| self.gguf.view(tensor).rows);
        Ok(rows.map(|rows| rows as usize).or_else(of_tensor))
    }

    /// Returns the token between the texts of a pair.
    pub(crate) fn separator(&self) -> Result<u32> {
        let [key, older] = ["tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id"];
        let id = self.metadata.opt_u32(key)?.or(self.metadata.opt_u32(older)?);
        id.ok_or_else(|| {
            self.metadata.error(key, "missing: it tells the query from the document in a model that ranks")
        })
    }

    /// Returns a layer's attention to the tokens at a distance of at most `reach`.
    pub(crate) fn attention_in_both_directions(
        &self,
        model: &mut ModelSpec,
        layer: usize,
        reach: u32,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        self.attention_of_kind(HeadKeys::OF_FILE, model, layer, GroupKind::Bidirectional { reach }, rope)
    }
}
