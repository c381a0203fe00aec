//! EXAONE.

mod exaone3;
mod exaone4;
mod exaone_moe;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "exaone", spec: exaone3::spec },
    Architecture { name: "exaone-moe", spec: exaone_moe::spec },
    Architecture { name: "exaone4", spec: exaone4::spec },
];
