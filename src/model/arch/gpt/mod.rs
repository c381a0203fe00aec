//! Models with LayerNorms: the line of GPT.

mod bloom;
mod falcon;
mod gpt2;
mod gptneox;
mod jais2;
mod mpt;
mod nemotron;
mod phi2;
mod stablelm;
mod starcoder;
mod starcoder2;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "bloom", spec: bloom::spec },
    Architecture { name: "falcon", spec: falcon::spec },
    Architecture { name: "gpt2", spec: gpt2::spec },
    Architecture { name: "gptneox", spec: gptneox::spec },
    Architecture { name: "jais2", spec: jais2::spec },
    Architecture { name: "mpt", spec: mpt::spec },
    Architecture { name: "nemotron", spec: nemotron::spec },
    Architecture { name: "phi2", spec: phi2::spec },
    Architecture { name: "stablelm", spec: stablelm::spec },
    Architecture { name: "starcoder", spec: starcoder::spec },
    Architecture { name: "starcoder2", spec: starcoder2::spec },
];
