//! Encoders with bidirectional attention.

mod bert;
mod eurobert;
mod gemma_embedding;
mod modern_bert;
mod nomic_bert;
mod t5encoder;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "bert", spec: bert::spec },
    Architecture { name: "eurobert", spec: eurobert::spec },
    Architecture { name: "gemma-embedding", spec: gemma_embedding::spec },
    Architecture { name: "modern-bert", spec: modern_bert::spec },
    Architecture { name: "nomic-bert", spec: nomic_bert::spec },
    Architecture { name: "t5encoder", spec: t5encoder::spec },
];
