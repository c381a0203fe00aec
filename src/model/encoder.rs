//! Keys of models that attend in both directions and make vectors of texts.

use super::common::HeadKeys;
use super::keys::Keys;
use super::rope::LayerRope;
use super::spec::{AttentionSpec, EmbeddingSpec, ModelSpec, NormSpec, Norms};
use crate::Result;
use crate::backend::NormKind;
use crate::batch::GroupKind;
use crate::config::Pooling;

/// Names of the norms of BERT's layers: of the residual, once attention or the feed-forward is added to it.
pub(super) const BERT_NORMS: [Norms; 2] = [Norms::of_sum("attn_output_norm"), Norms::of_sum("layer_output_norm")];

impl Keys<'_> {
    /// The model without its layers, with LayerNorms. No norm follows the last layer.
    pub(super) fn encoder(&self, norm_bias: bool) -> Result<ModelSpec> {
        if self.opt_bool("attention.causal")? == Some(true) {
            return Err(self.error("attention.causal", "is true, expected false: the architecture sees both sides"));
        }
        let eps = self.eps("attention.layer_norm_epsilon")?;
        let norm = NormSpec { kind: NormKind::Layer, eps, bias: norm_bias };
        let model = self.model_that_pools(norm, self.pooling(Pooling::Cls)?)?;
        let embedding = EmbeddingSpec { norm: Some("token_embd_norm"), ..EmbeddingSpec::PLAIN };
        Ok(ModelSpec { output_norm: None, embedding, ..model })
    }

    /// Rows of the table of token types: as many as the tokenizer's key says, or as there are in a file without it.
    pub(super) fn token_types(&self) -> Result<Option<usize>> {
        let rows = self.metadata.opt_u32("tokenizer.ggml.token_type_count")?.filter(|&rows| rows > 0);
        let of_tensor = || self.gguf.tensor("token_types.weight").map(|tensor| self.gguf.view(tensor).rows);
        Ok(rows.map(|rows| rows as usize).or_else(of_tensor))
    }

    /// The token between the texts of a pair.
    pub(super) fn separator(&self) -> Result<u32> {
        let [key, older] = ["tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id"];
        let id = self.metadata.opt_u32(key)?.or(self.metadata.opt_u32(older)?);
        id.ok_or_else(|| {
            self.metadata.error(key, "missing: it tells the query from the document in a model that ranks")
        })
    }

    /// Attention of a layer to the tokens that are at most `reach` away.
    pub(super) fn attention_in_both_directions(
        &self,
        model: &mut ModelSpec,
        layer: usize,
        reach: u32,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        self.attention_of_kind(HeadKeys::OF_FILE, model, layer, GroupKind::Bidirectional { reach }, rope)
    }
}
