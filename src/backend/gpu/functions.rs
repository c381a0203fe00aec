//! The kernels that an engine launches, looked up once: nothing is compiled or loaded while it serves.

use super::{EXPERT_RUNS, Function, HEAD_SIZES, KernelId, KernelType, Kernels, MATMUL_PAIR_ROWS, MATMUL_ROWS, Unit};
use crate::config::KvCacheDtype;
use crate::{Error, Result};

/// What no model needs.
const PROBE_FILE: &str = "probe.hip";
/// What only models with experts need.
const EXPERT_FILES: [&str; 2] = ["experts.hip", "matmul_experts.hip"];

/// Kernels that every model uses.
pub struct Functions {
    pub copy_step: Function,
    pub prepare: Function,
    pub gated_activation: Function,
    pub gather_rows: Function,
    pub copy_blocks: Function,
    pub rope_angles: Function,
    pub alter_logits: Function,
    pub argmax: Function,
    pub top_k: Function,
    /// By head size.
    caches: Vec<(u32, CacheFunctions)>,
    experts: Option<ExpertFunctions>,
    typed: Vec<(KernelType, TypeFunctions)>,
    pairs: Vec<([KernelType; 2], PairFunctions)>,
}

/// Kernels of models with experts.
pub struct ExpertFunctions {
    pub choose: Function,
    pub place: Function,
    pub add: Function,
}

/// Kernels of one element type of the cache and head size.
pub struct CacheFunctions {
    pub rope_store: Function,
    pub decode: Function,
    pub decode_head: Function,
    pub prefill: Function,
}

/// Kernels of one tensor type.
pub struct TypeFunctions {
    pub embed: Function,
    pub gemv: Function,
    pub dequantize: Function,
    /// By rows of a block, as in `MATMUL_ROWS`; empty for F32.
    matmul: Vec<Function>,
    /// As in `EXPERT_RUNS`; empty for models without experts, too.
    matmul_experts: Vec<Function>,
}

/// Kernels of two tensor types in one stack.
pub struct PairFunctions {
    pub gemv: Function,
    /// By rows of a block, as in `MATMUL_PAIR_ROWS`.
    matmul: Vec<Function>,
}

/// The smallest head size of the attention kernels that holds `head_dim`.
///
/// # Errors
/// `Error::Device` beyond the largest.
pub fn head_size(head_dim: usize) -> Result<u32> {
    HEAD_SIZES.into_iter().find(|&size| head_dim <= size as usize).ok_or_else(|| Error::Device {
        device: "gpu".to_owned(),
        problem: format!("attention heads have {head_dim} elements, the kernels take at most 256; use device=\"cpu\""),
    })
}

/// The units that a model with tensors of `types`, and with or without experts, needs.
pub fn units(types: &[KernelType], experts: bool) -> Vec<Unit> {
    let mut units: Vec<Unit> = KernelId::all()
        .into_iter()
        .map(|kernel| kernel.unit)
        .filter(|unit| unit.types().all(|ty| types.contains(&ty)))
        .filter(|unit| unit.file != PROBE_FILE)
        .filter(|unit| experts || !EXPERT_FILES.contains(&unit.file))
        .collect();
    units.sort_unstable_by_key(|unit| unit.name());
    units.dedup();
    units
}

impl Functions {
    /// `caches`: element type and head size of each KV layer.
    pub fn load(
        kernels: &Kernels,
        types: &[KernelType],
        caches: impl Iterator<Item = (KvCacheDtype, usize)>,
        has_experts: bool,
    ) -> Result<Self> {
        let get = |kernel: KernelId| kernels.function(&kernel);
        let mut of_sizes: Vec<(u32, CacheFunctions)> = Vec::new();
        for (dtype, head_dim) in caches {
            let size = head_size(head_dim)?;
            if of_sizes.iter().all(|(known, _)| *known != size) {
                let functions = CacheFunctions {
                    rope_store: get(KernelId::rope_store(dtype))?,
                    decode: get(KernelId::attention_decode(dtype, size))?,
                    decode_head: get(KernelId::attention_decode_head(dtype, size))?,
                    prefill: get(KernelId::attention_prefill(dtype, size))?,
                };
                of_sizes.push((size, functions));
            }
        }
        let experts = match has_experts {
            true => Some(ExpertFunctions {
                choose: get(KernelId::choose_experts())?,
                place: get(KernelId::place_experts())?,
                add: get(KernelId::add_experts())?,
            }),
            false => None,
        };
        let typed = types.iter().map(|&ty| {
            let on_units = |wanted: bool, ids: &[KernelId]| -> Result<Vec<Function>> {
                let ids = if wanted && ty.matmul_format().is_some() { ids } else { &[] };
                ids.iter().map(|id| kernels.function(id)).collect()
            };
            let matmul = on_units(true, &MATMUL_ROWS.map(|rows| KernelId::matmul(ty, rows)))?;
            let matmul_experts = on_units(has_experts, &EXPERT_RUNS.map(|rows| KernelId::matmul_experts(ty, rows)))?;
            let (embed, gemv) = (get(KernelId::embed(ty))?, get(KernelId::gemv(ty))?);
            Ok((ty, TypeFunctions { embed, gemv, dequantize: get(KernelId::dequantize(ty))?, matmul, matmul_experts }))
        });
        let pairs = KernelType::PAIRS.into_iter().filter(|pair| pair.iter().all(|ty| types.contains(ty))).map(|pair| {
            let matmul = MATMUL_PAIR_ROWS.map(|rows| get(KernelId::matmul_pair(pair, rows)));
            let gemv = get(KernelId::gemv_pair(pair))?;
            Ok((pair, PairFunctions { gemv, matmul: matmul.into_iter().collect::<Result<_>>()? }))
        });
        Ok(Self {
            copy_step: get(KernelId::copy_step())?,
            prepare: get(KernelId::prepare())?,
            gated_activation: get(KernelId::gated_activation())?,
            gather_rows: get(KernelId::gather_rows())?,
            copy_blocks: get(KernelId::copy_blocks())?,
            rope_angles: get(KernelId::rope_angles())?,
            alter_logits: get(KernelId::alter_logits())?,
            argmax: get(KernelId::argmax())?,
            top_k: get(KernelId::top_k())?,
            caches: of_sizes,
            experts,
            typed: typed.collect::<Result<_>>()?,
            pairs: pairs.collect::<Result<_>>()?,
        })
    }

    pub fn of(&self, ty: KernelType) -> Result<&TypeFunctions> {
        let found = self.typed.iter().find(|(known, _)| *known == ty);
        found
            .map(|(_, functions)| functions)
            .ok_or_else(|| Error::internal(format!("kernels of {} were not loaded with the model", ty.name())))
    }

    /// `None` where no kernels are for such a stack.
    pub fn of_pair(&self, pair: [KernelType; 2]) -> Option<&PairFunctions> {
        self.pairs.iter().find(|(known, _)| *known == pair).map(|(_, functions)| functions)
    }

    pub fn experts(&self) -> Result<&ExpertFunctions> {
        self.experts.as_ref().ok_or_else(|| Error::internal("experts in a model that was loaded without"))
    }

    /// Kernels for heads of this size.
    pub fn cache(&self, head_dim: usize) -> Result<&CacheFunctions> {
        let size = head_size(head_dim)?;
        let found = self.caches.iter().find(|(known, _)| *known == size).map(|(_, functions)| functions);
        found.ok_or_else(|| {
            Error::internal(format!("attention heads of {head_dim} in an engine without such a KV cache"))
        })
    }
}

impl TypeFunctions {
    /// The matrix kernel with `n` rows a block.
    pub fn matmul(&self, n: u32) -> Result<&Function> {
        with_rows(&self.matmul, &MATMUL_ROWS, n)
    }

    /// The same for runs of one expert each.
    pub fn matmul_experts(&self, n: u32) -> Result<&Function> {
        with_rows(&self.matmul_experts, &EXPERT_RUNS, n)
    }
}

impl PairFunctions {
    /// The matrix kernel with `n` rows a block.
    pub fn matmul(&self, n: u32) -> Result<&Function> {
        with_rows(&self.matmul, &MATMUL_PAIR_ROWS, n)
    }
}

fn with_rows<'a>(variants: &'a [Function], all_rows: &[u32], n: u32) -> Result<&'a Function> {
    let found = all_rows.iter().zip(variants).find(|(rows, _)| **rows == n);
    found.map(|(_, function)| function).ok_or_else(|| Error::internal(format!("no matmul of {n} rows a block")))
}
