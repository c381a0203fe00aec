//! The role of each weight in a step, by which a device decides where the weight lies.

use super::layers::Part;
use super::spec::ModelSpec;
use crate::backend::Role;

/// Tables that give a row for each token.
const EMBEDDING: &str = "token_embd";
const LAYER_INPUTS: &str = "per_layer_token_embd";
const OUTPUT: &str = "output";

/// Returns the role of a stack of matrices. Its parts belong together, so the first one's name decides.
pub(super) fn of_matrix(parts: &[Part], spec: &ModelSpec) -> Role {
    match parts.first().map_or("", |part| part.name.as_str()) {
        // A model without an output projection of its own multiplies by its embeddings, or computes no logits.
        EMBEDDING if spec.tied_output && !spec.is_bidirectional() => Role::Output,
        EMBEDDING | LAYER_INPUTS => Role::Table,
        OUTPUT => Role::Output,
        name => match layer_of(name).filter(|&layer| layer < spec.layers.len()) {
            Some(layer) => Role::Layer { layer },
            // The block for multi-token prediction follows the layers. It computes several tokens in a step.
            None => Role::Fixed,
        },
    }
}

/// Returns the role of the experts of a layer.
pub(super) fn of_experts(layer: usize, spec: &ModelSpec) -> Role {
    if layer < spec.layers.len() { Role::Experts { layer } } else { Role::Fixed }
}

/// Returns the layer in a name that `of_layer` made.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelTensors;
    use crate::backend::Upload;
    use crate::gguf::GgufFile;
    use crate::testdata;

    /// Returns the names and roles of the matrices and experts of a file, up to those of the second layer.
    fn roles(name: &str) -> Vec<(String, Role)> {
        let file = testdata::file(&format!("arch/{name}.gguf"));
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
        assert_eq!(tensors.uploads().len(), tensors.roles().len());
        let both = tensors.uploads().iter().zip(tensors.roles());
        let named = both.filter_map(|(upload, &role)| match upload {
            Upload::Matrix(parts) => Some((parts[0].weight.name.to_owned(), role)),
            Upload::Experts(tensors) => Some((tensors.up.name.to_owned(), role)),
            other => {
                assert_eq!(role, Role::Fixed, "{other:?}");
                None
            }
        });
        named.collect()
    }

    #[test]
    fn weights_have_the_role_of_their_use() {
        let of = |roles: &[(String, Role)], name: &str| {
            let found = roles.iter().find(|(known, _)| known == name);
            found.unwrap_or_else(|| panic!("{name} is not among {roles:?}")).1
        };
        let mixture = roles("qwen3moe");
        assert_eq!(of(&mixture, "token_embd.weight"), Role::Table);
        assert_eq!(of(&mixture, "output.weight"), Role::Output);
        assert_eq!(of(&mixture, "blk.1.attn_q.weight"), Role::Layer { layer: 1 });
        assert_eq!(of(&mixture, "blk.1.ffn_up_exps.weight"), Role::Experts { layer: 1 });
        let tied = roles("llama_tied");
        assert_eq!(of(&tied, "token_embd.weight"), Role::Output);
        assert!(tied.iter().all(|(name, role)| *role != Role::Table && name != "output.weight"));
        let inputs = roles("gemma4_e");
        assert_eq!(of(&inputs, "per_layer_token_embd.weight"), Role::Table);
        assert_eq!(of(&inputs, "per_layer_model_proj.weight"), Role::Fixed);
    }
}
