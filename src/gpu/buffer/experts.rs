//! The experts of a layer, and the memory of their op.

use std::sync::Arc;

use super::expert_copies::{Cached, Uses};
use super::{Buffer, Matrix, Staged};
use crate::backend::{ExpertShape, ExpertSpec, WorkShape};
use crate::buffer::packed::Packed;
use crate::host_experts::Exchange;
use crate::launch::args::Format;
use crate::{DeviceBuffer, DeviceSlice, KernelType};
use crate::{Error, Result};

/// The experts of a layer.
#[derive(Debug)]
pub struct Experts {
    pub(crate) spec: ExpertSpec,
    /// The router's weights, always in F32.
    pub(crate) router: Matrix,
    /// A bias that affects only the choice of experts, f32 per expert.
    pub(crate) choice_bias: Option<DeviceBuffer>,
    /// Factors on the experts' routing weights, f32 per expert.
    pub(crate) output_scales: Option<DeviceBuffer>,
    pub(crate) gate: Option<ExpertMatrix>,
    pub(crate) up: ExpertMatrix,
    pub(crate) down: ExpertMatrix,
    /// There if some experts are cached.
    pub(crate) uses: Option<Uses>,
    /// The layer's number among those whose experts the CPU computes, if they lie on the host in its layout.
    pub(crate) on_cpu: Option<usize>,
}

impl Experts {
    /// Returns the formats in which the matrix kernels take the activations of gate and up, and of down. `None` if one
    /// has no such kernel, or if gate and up disagree.
    pub(crate) fn formats(&self) -> Option<[Format; 2]> {
        let [up, down] = [&self.up, &self.down].map(|matrix| matrix.ty.matmul_format());
        let agrees = self.gate.as_ref().is_none_or(|gate| gate.ty.matmul_format() == up);
        if agrees { Some([up?, down?]) } else { None }
    }

    /// Returns the slots of experts in the cache, if the CPU computes those without one.
    pub(crate) fn slots_beside_cpu(&self) -> Option<DeviceSlice<'_>> {
        self.up.cached.as_ref().filter(|cached| cached.is_alone).map(|cached| cached.slots.slice())
    }

    /// True if steps of many rows read copies of all matrices.
    pub(crate) fn is_staged(&self) -> bool {
        self.gate.iter().chain([&self.up, &self.down]).all(|matrix| matrix.staged.is_some())
    }

    /// Yields gate, if any, and up, each with the column at which its products begin.
    pub(crate) fn wide_matrices(&self) -> impl Iterator<Item = (&ExpertMatrix, usize)> {
        self.gate.iter().chain([&self.up]).enumerate().map(|(i, matrix)| (matrix, i * self.spec.ffn_size))
    }
}

/// One matrix per expert, stored one after the other.
#[derive(Debug)]
pub(crate) struct ExpertMatrix {
    pub ty: KernelType,
    /// Outputs of one expert.
    pub rows: usize,
    pub cols: usize,
    pub tiles: DeviceBuffer,
    /// There if the tiles are those of the CPU's kernels. No kernel multiplies them.
    pub packed: Option<Arc<Packed>>,
    /// f32, `rows` values per expert.
    pub bias: Option<DeviceBuffer>,
    /// Its number among the weights that steps of many rows read from a copy.
    pub staged: Option<Staged>,
    /// Copies of some experts on the device.
    pub cached: Option<Cached>,
}

impl ExpertMatrix {
    /// Returns the bytes of one expert's matrix in the layout of the tiles.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.packed.as_ref().map_or(self.expert_bytes(), |packed| packed.matrix_bytes)
    }

    /// Returns the same matrices with their tiles in `copy`.
    pub(crate) fn moved_to(&self, copy: DeviceBuffer) -> Self {
        Self { tiles: copy, packed: None, bias: self.bias.clone(), staged: None, cached: None, ..*self }
    }

    /// Returns the tiles for a kernel: of all experts, or of those in the cache if the CPU computes the others.
    ///
    /// # Errors
    /// `Error::Internal` if they are those of the CPU's kernels.
    pub(crate) fn tiles(&self) -> Result<DeviceSlice<'_>> {
        match (&self.packed, &self.cached) {
            (None, _) => Ok(self.tiles.slice()),
            // Kernels leave out experts without a slot.
            (Some(_), Some(cached)) => Ok(cached.tiles.slice()),
            (Some(_), None) => Err(Error::internal("experts in the layout of the CPU's kernels, and no copy of them")),
        }
    }

    pub(crate) fn expert_bytes(&self) -> u64 {
        self.ty.matrix_bytes(self.rows, self.cols)
    }

    pub(crate) fn bias(&self) -> Option<DeviceSlice<'_>> {
        self.bias.as_ref().map(DeviceBuffer::slice)
    }
}

/// Memory that the op `experts` needs for up to `rows` rows.
#[derive(Debug)]
pub struct ExpertWork {
    pub(crate) spec: ExpertSpec,
    pub(crate) rows: usize,
    pub(crate) logits: Buffer,
    /// Inputs of the experts, then their outputs: one row per (row, expert) pair, or per place of a run.
    pub(crate) values: Buffer,
    pub(crate) gate_up: Buffer,
    pub(crate) gated: Buffer,
    /// Rows of f32 times the weights of their experts, for models that weight the experts' inputs.
    pub(crate) weighed: Option<DeviceBuffer>,
    /// The next three have one element per pair: the expert's number, its weight (f32), and the pair's place.
    pub(crate) experts: DeviceBuffer,
    pub(crate) weights: DeviceBuffer,
    pub(crate) places: DeviceBuffer,
    /// The expert's number, per run of places.
    pub(crate) run_experts: DeviceBuffer,
    /// The row of the pair that has a place, per place.
    pub(crate) rows_of_places: DeviceBuffer,
    /// The memory shared with the CPU, if it computes experts.
    pub(crate) exchange: Option<Arc<Exchange>>,
}

impl ExpertShape for Experts {
    fn spec(&self) -> &ExpertSpec {
        &self.spec
    }
}

impl WorkShape for ExpertWork {
    fn room(&self) -> (&ExpertSpec, usize) {
        (&self.spec, self.rows)
    }
}
