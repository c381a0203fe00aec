//! Gemma.

mod gemma1;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "gemma", spec: gemma1::spec },
    Architecture { name: "gemma2", spec: gemma2::spec },
    Architecture { name: "gemma3", spec: gemma3::spec },
    Architecture { name: "gemma3n", spec: gemma3n::spec },
    Architecture { name: "gemma4", spec: gemma4::spec },
];
