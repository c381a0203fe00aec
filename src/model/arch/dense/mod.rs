//! Models of attention and one feed-forward per layer, with RMS norms: the line of Llama.

mod apertus;
mod arcee;
mod granite;
mod granite_swa;
mod llama;
mod minicpm3;
mod mistral3;
mod olmo;
mod olmo2;
mod phi3;
mod seed_oss;
mod smollm3;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "apertus", spec: apertus::spec },
    Architecture { name: "arcee", spec: arcee::spec },
    Architecture { name: "granite", spec: granite::spec },
    Architecture { name: "granite_swa", spec: granite_swa::spec },
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "minicpm3", spec: minicpm3::spec },
    Architecture { name: "mistral3", spec: mistral3::spec },
    Architecture { name: "olmo", spec: olmo::spec },
    Architecture { name: "olmo2", spec: olmo2::spec },
    Architecture { name: "phi3", spec: phi3::spec },
    Architecture { name: "seed_oss", spec: seed_oss::spec },
    Architecture { name: "smollm3", spec: smollm3::spec },
];
