//! ERNIE.

mod ernie4_5;
mod ernie4_5_moe;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "ernie4_5", spec: ernie4_5::spec },
    Architecture { name: "ernie4_5-moe", spec: ernie4_5_moe::spec },
];
