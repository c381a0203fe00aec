//! Models with experts whose family has no folder.

mod afmoe;
mod gpt_oss;
pub(super) mod granitemoe;
mod laguna;
mod llama4;
mod mellum;
mod mimo2;
mod minimax_m2;
mod muse_glimmer;
mod olmoe;
mod step35;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "afmoe", spec: afmoe::spec },
    Architecture { name: "gpt-oss", spec: gpt_oss::spec },
    Architecture { name: "granitemoe", spec: granitemoe::spec },
    Architecture { name: "laguna", spec: laguna::spec },
    Architecture { name: "llama4", spec: llama4::spec },
    Architecture { name: "mellum", spec: mellum::spec },
    Architecture { name: "mimo2", spec: mimo2::spec },
    Architecture { name: "minimax-m2", spec: minimax_m2::spec },
    Architecture { name: "muse-glimmer", spec: muse_glimmer::spec },
    Architecture { name: "olmoe", spec: olmoe::spec },
    Architecture { name: "step35", spec: step35::spec },
];
