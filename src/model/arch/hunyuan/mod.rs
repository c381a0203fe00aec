//! Hunyuan.

mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "hunyuan-dense", spec: hunyuan_dense::spec },
    Architecture { name: "hunyuan-moe", spec: hunyuan_moe::spec },
    Architecture { name: "hy_v3", spec: hy_v3::spec },
];
