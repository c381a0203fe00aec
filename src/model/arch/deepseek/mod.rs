//! DeepSeek, and models with its attention or its experts.

mod bailingmoe2;
mod deepseek2;
pub(super) mod dots1;
mod mistral4;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "bailingmoe2", spec: bailingmoe2::spec },
    Architecture { name: "deepseek2", spec: deepseek2::spec },
    Architecture { name: "dots1", spec: dots1::spec },
    Architecture { name: "mistral4", spec: mistral4::spec },
];
