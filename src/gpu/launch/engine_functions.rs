//! The kernels that an engine launches, looked up once: nothing is compiled or loaded while it serves.

use super::catalog::{self, Kernel, Needed, Row, Subject, TABLE, Variant};
use crate::backend::KvLayerSpec;
use crate::config::Platform;
use crate::{Error, Result};
use crate::{Function, KernelType, Kernels, Unit};

/// The loaded variants of each kernel, indexed by the kernel's place in the table.
pub struct Functions(Vec<Vec<(Variant, Function)>>);

/// Model parts that need additional kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub experts: bool,
    /// Latent attention.
    pub latent: bool,
    /// Layers with recurrent states.
    pub states: bool,
    /// Products of 8-bit floats.
    pub fp8: bool,
}

fn serves(row: &Row, parts: Parts) -> bool {
    match row.needed {
        Needed::Always => true,
        Needed::Experts => parts.experts,
        Needed::Latent => parts.latent,
        Needed::States => parts.states,
        Needed::Fp8 => parts.fp8,
        Needed::Measurement => false,
    }
}

/// Returns the units that a model with tensors of `types` needs on a platform.
pub(crate) fn units(types: &[KernelType], parts: Parts, platform: Platform) -> Vec<Unit> {
    let rows = TABLE.iter().filter(|row| serves(row, parts));
    let variants = rows.flat_map(|row| row.variants(platform).into_iter().map(move |variant| (row, variant)));
    let of_types = variants.filter(|(_, variant)| variant.is_of_types(types));
    let mut units: Vec<Unit> = of_types.map(|(row, variant)| row.id(variant).unit).collect();
    units.sort_unstable_by_key(|unit| unit.name());
    units.dedup();
    units
}

impl Functions {
    /// Loads the kernels for these KV layers.
    ///
    /// # Errors
    /// The errors of `Kernels::function`, and of `kernel::head_size`.
    pub(crate) fn load(kernels: &Kernels, types: &[KernelType], caches: &[KvLayerSpec], parts: Parts) -> Result<Self> {
        // One set of kernels serves latent rows of every size.
        let with_heads = caches.iter().filter(|spec| spec.latent.is_none());
        let heads = with_heads.map(|spec| Ok((spec.dtype, catalog::head_size(spec.head_dim)?)));
        let heads = heads.collect::<Result<Vec<_>>>()?;
        let wanted = |variant: &Variant| match variant.subject() {
            Subject::Cache(dtype) => caches.iter().any(|spec| spec.dtype == dtype),
            Subject::Head(dtype, size) => heads.contains(&(dtype, size)),
            Subject::Nothing | Subject::Type(_) | Subject::Pair(_) => variant.is_of_types(types),
        };
        let load = |row: &Row| -> Result<Vec<(Variant, Function)>> {
            let variants = if serves(row, parts) { row.variants(kernels.platform()) } else { Vec::new() };
            let wanted = variants.into_iter().filter(wanted);
            wanted.map(|variant| Ok((variant, kernels.function(&row.id(variant))?))).collect()
        };
        Ok(Self(TABLE.iter().map(load).collect::<Result<_>>()?))
    }

    fn find<A>(&self, kernel: Kernel<A>, variant: Variant) -> Option<&Function> {
        self.0[kernel.place()].iter().find(|(known, _)| *known == variant).map(|(_, function)| function)
    }

    /// True if this kernel was loaded with the model.
    pub fn has<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> bool {
        self.find(kernel, variant.into()).is_some()
    }

    /// # Errors
    /// `Error::Internal` for a kernel that was not loaded with the model.
    pub fn get<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> Result<&Function> {
        let variant = variant.into();
        self.find(kernel, variant)
            .ok_or_else(|| Error::internal(format!("{} was not loaded with the model", kernel.id(variant).name)))
    }
}
