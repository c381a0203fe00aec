//! GLM.

mod glm4;
mod glm4moe;

use super::Architecture;

pub(super) const ALL: &[Architecture] =
    &[Architecture { name: "glm4", spec: glm4::spec }, Architecture { name: "glm4moe", spec: glm4moe::spec }];
