//! Models with recurrent states or convolutions, in all layers or in some.

mod falcon_h1;
mod granitehybrid;
mod jamba;
mod lfm2;
mod lfm2moe;
mod mamba;
mod mamba2;
mod nemotron_h;
mod nemotron_h_moe;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "falcon-h1", spec: falcon_h1::spec },
    Architecture { name: "granitehybrid", spec: granitehybrid::spec },
    Architecture { name: "jamba", spec: jamba::spec },
    Architecture { name: "lfm2", spec: lfm2::spec },
    Architecture { name: "lfm2moe", spec: lfm2moe::spec },
    Architecture { name: "mamba", spec: mamba::spec },
    Architecture { name: "mamba2", spec: mamba2::spec },
    Architecture { name: "nemotron_h", spec: nemotron_h::spec },
    Architecture { name: "nemotron_h_moe", spec: nemotron_h_moe::spec },
];
