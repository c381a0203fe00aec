//! Limits of the kernels: types of the cache, sizes of heads and of latent rows, numbers of experts.

use super::{CACHE_TYPES, LATENT_CACHE_TYPES, head_size};
use crate::backend::{ExpertSpec, KvLayerSpec};
use crate::launch::args::*;
use crate::{Error, Result};

/// Checks that the attention kernels read the cache's type, and hold the heads, or the latent rows, of all layers.
///
/// # Errors
/// `InvalidRequest` for a type without kernels, and the errors of `head_size` and of `check_latent`.
pub fn check_kv_layers(specs: &[KvLayerSpec]) -> Result<()> {
    let refused = |spec: &KvLayerSpec, expected| Err(Error::invalid("kv_cache_dtype", spec.dtype.name(), expected));
    specs.iter().try_for_each(|spec| match spec.latent {
        None if !CACHE_TYPES.contains(&spec.dtype) => {
            refused(spec, "'f16', 'f32' or 'int8' on a GPU; for 'int4', use device=\"cpu\"")
        }
        Some(_) if !LATENT_CACHE_TYPES.contains(&spec.dtype) => {
            refused(spec, "'f16' or 'f32' on a GPU for a model with latent attention; for 'int8', use device=\"cpu\"")
        }
        None => head_size(spec.head_dim).map(drop),
        Some(values) => check_latent(spec.head_dim, values),
    })
}

/// Checks that the kernels of experts hold this many.
///
/// # Errors
/// `Error::Device`, which names `device`, if they do not.
pub fn check_experts(spec: &ExpertSpec, device: &str) -> Result<()> {
    let (num, used, groups) = (spec.num, spec.used, spec.groups.map_or(0, |groups| groups.num));
    match num <= MAX_EXPERTS as usize && used <= MAX_USED_EXPERTS as usize && groups <= MAX_EXPERT_GROUPS as usize {
        true => Ok(()),
        false => Err(Error::Device {
            device: device.to_owned(),
            problem: format!(
                "the model has {num} experts in {groups} groups, of which {used} serve a token; the kernels take up to \
                 {MAX_EXPERTS}, {MAX_EXPERT_GROUPS} and {MAX_USED_EXPERTS}; use device=\"cpu\""
            ),
        }),
    }
}

/// # Errors
/// `Error::Device` for latent rows that are longer than the kernels hold.
fn check_latent(row: usize, values: usize) -> Result<()> {
    match row <= LATENT_ROW as usize && values <= LATENT_VALUES as usize {
        true => Ok(()),
        false => Err(Error::Device {
            device: "gpu".to_owned(),
            problem: format!(
                "latent rows have {row} elements, {values} of them values; the kernels take at most {LATENT_ROW} and \
                 {LATENT_VALUES}; use device=\"cpu\""
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::GroupKind;
    use crate::config::KvCacheDtype;

    #[test]
    fn layers_whose_heads_no_kernel_holds_are_refused() {
        let (kind, dtype) = (GroupKind::Full, KvCacheDtype::F16);
        let layer = |head_dim| KvLayerSpec {
            kind,
            skips_first: false,
            num_blocks: 1,
            block_size: 16,
            num_kv_heads: 1,
            head_dim,
            latent: None,
            dtype,
        };
        let latent = |head_dim, values| KvLayerSpec { latent: Some(values), ..layer(head_dim) };
        assert!(check_kv_layers(&[latent(576, 512), latent(48, 32)]).is_ok());
        for (row, values) in [(577, 512), (576, 513)] {
            let problem = check_kv_layers(&[latent(row, values)]).unwrap_err().to_string();
            assert!(problem.contains(&format!("{row} elements, {values} of them")), "{problem}");
        }
        assert!(check_kv_layers(&[layer(64), layer(512)]).is_ok());
        let problem = check_kv_layers(&[layer(64), layer(513)]).unwrap_err().to_string();
        assert!(problem.contains("513 elements") && problem.contains("device=\"cpu\""), "{problem}");
        let of_type = |layer: KvLayerSpec, dtype| check_kv_layers(&[KvLayerSpec { dtype, ..layer }]);
        assert!(of_type(layer(64), KvCacheDtype::Int8).is_ok());
        for refused in [of_type(layer(64), KvCacheDtype::Int4), of_type(latent(576, 512), KvCacheDtype::Int8)] {
            assert!(matches!(refused, Err(Error::InvalidRequest { what: "kv_cache_dtype", .. })), "{refused:?}");
        }
    }
}
