//! Experts of a layer with weights in memory of another owner: the host memory of a GPU backend. The GPU chooses the
//! experts.

use super::routes::{Choice, Routes};
use super::{Chosen, Sum, mix, work_sizes};
use crate::backend::{ExpertPart, ExpertSpec, ExpertTensors, LinearPart, Progress};
use crate::linear::{LinearScratch, PackedMatrix, Store, WeightBytes};
use crate::pool::ThreadPool;
use crate::simd::Isa;
use crate::{Error, Result};

/// Rows that are computed at once if longer steps do not come here. More of them need more memory.
pub const ROWS: usize = 64;

/// The matrices of a layer's experts.
#[derive(Debug)]
pub struct LentExperts {
    spec: ExpertSpec,
    gate_up: Vec<PackedMatrix>,
    down: Vec<PackedMatrix>,
}

/// Buffers for steps of any number of rows.
#[derive(Debug)]
pub struct LentWork {
    isa: Isa,
    rows: usize,
    values: Vec<f32>,
    products: Vec<f32>,
    gated: Vec<f32>,
    routes: Routes,
    scratch: LinearScratch,
}

/// Returns one of the matrices of an expert, with its biases.
fn matrix<'a>(tensors: &ExpertTensors<'a>, part: ExpertPart, expert: usize) -> LinearPart<'a> {
    let bias = tensors.biases.map(|[gate, up, down]| match part {
        ExpertPart::Gate => gate,
        ExpertPart::Up => up,
        ExpertPart::Down => down,
    });
    LinearPart { weight: tensors.matrix(part, expert), bias: bias.map(|bias| tensors.of_expert(bias, expert)) }
}

impl LentExperts {
    /// Returns the bytes of one of the matrices of each expert. They are the same for all experts.
    ///
    /// # Errors
    /// `Error::Internal` for a matrix without kernels.
    pub fn matrix_bytes(tensors: &ExpertTensors<'_>, part: ExpertPart) -> Result<u64> {
        let weight = LinearPart { bias: None, ..matrix(tensors, part, 0) };
        PackedMatrix::packed_bytes(Isa::detect(), &[weight])
    }

    /// Packs the experts into memory that `take` returns for a matrix of an expert.
    ///
    /// # Errors
    /// Errors of `take` and of `PackedMatrix::pack`.
    pub fn pack(
        isa: Isa,
        tensors: &ExpertTensors<'_>,
        take: &mut dyn FnMut(ExpertPart, usize) -> Result<WeightBytes>,
        pool: &ThreadPool,
        progress: &mut Progress<'_>,
    ) -> Result<Self> {
        let wide: &[ExpertPart] =
            if tensors.spec.gate { &[ExpertPart::Gate, ExpertPart::Up] } else { &[ExpertPart::Up] };
        let mut pack = |parts: &[ExpertPart], expert: usize| {
            let views: Vec<_> = parts.iter().map(|&part| matrix(tensors, part, expert)).collect();
            PackedMatrix::pack_into(isa, &views, &mut |index, _| take(parts[index], expert), pool, progress)
        };
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..tensors.spec.num {
            gate_up.push(pack(wide, expert)?);
            down.push(pack(&[ExpertPart::Down], expert)?);
        }
        Ok(Self { spec: tensors.spec, gate_up, down })
    }

    pub fn spec(&self) -> &ExpertSpec {
        &self.spec
    }

    /// Writes the results of the chosen experts for the rows of `x` to `out`. `experts` and `weights` have an element
    /// for each pair. A pair with `NO_EXPERT` counts nothing.
    ///
    /// # Panics
    /// If there is no such expert.
    pub fn mix(
        &self,
        x: &[f32],
        experts: &[u32],
        weights: &[f32],
        out: &mut [f32],
        work: &mut LentWork,
        pool: &ThreadPool,
    ) {
        let Self { spec, gate_up, down } = self;
        let LentWork { isa, rows, values, products, gated, routes, scratch } = work;
        let (hidden, used) = (*rows * spec.hidden_size, *rows * spec.used);
        let pairs = experts.chunks(used).zip(weights.chunks(used));
        for ((x, out), (experts, weights)) in x.chunks(hidden).zip(out.chunks_mut(hidden)).zip(pairs) {
            let choices = experts.iter().zip(weights);
            routes.set(choices.map(|(&expert, &weight)| Choice { expert: expert as usize, weight }));
            let sum = Sum { rows: out, store: Store::Assign };
            mix(Chosen { spec, gate_up, down, routes }, x, [values, products, gated], sum, *isa, scratch, pool);
        }
    }
}

impl LentWork {
    /// `rows`: those that are computed at once.
    ///
    /// # Errors
    /// `Error::OutOfMemory`.
    pub fn new(isa: Isa, spec: &ExpertSpec, rows: usize) -> Result<Self> {
        let rows = rows.max(1);
        let [_, values, products, gated] = work_sizes(spec, rows).map(|[rows, cols]| rows.checked_mul(cols));
        let buffer = |len: Option<usize>| -> Result<Vec<f32>> {
            let mut values = Vec::new();
            let reserved = len.is_some_and(|len| values.try_reserve_exact(len).is_ok());
            match len.filter(|_| reserved) {
                Some(len) => values.resize(len, 0.0),
                None => {
                    return Err(Error::OutOfMemory {
                        what: format!("{rows} rows of experts on the CPU"),
                        requested: len.map_or(u64::MAX, |len| 4 * len as u64),
                        available: 0,
                        advice: "use a machine with more memory",
                    });
                }
            }
            Ok(values)
        };
        // The rows of a run are padded to whole groups, of which there is room for many.
        let scratch = LinearScratch::new(usize::MAX, spec.hidden_size.max(spec.ffn_size))?;
        Ok(Self {
            isa,
            rows,
            values: buffer(values)?,
            products: buffer(products)?,
            gated: buffer(gated)?,
            routes: Routes::new(spec, rows),
            scratch,
        })
    }
}
