//! Computes the bytes of a load, before and during it.

use super::matrix_library::LIBRARY_BYTES;
use super::{GpuLoader, MARGIN, WEIGHTS_ADVICE, aligned, experts, stacks};
use crate::backend::{Loader, RopeSpec, Upload};
use crate::capture::{graphs, steps};
use crate::launch::args::Format;
use crate::launch::plans::{NUM_COUNTERS, PARTIAL_BYTES};
use crate::tensor::TensorView;
use crate::weights::stacks::{Layout, values_bytes};
use crate::{Error, Result};
use crate::{KernelType, select, step};

/// Returns the bytes of an upload on the device.
pub(super) fn upload_bytes(upload: &Upload<'_>) -> Result<u64> {
    Ok(match upload {
        Upload::Matrix(parts) => {
            let Layout { bytes, bias_bytes, .. } = Layout::of(parts)?;
            bytes + bias_bytes
        }
        Upload::Heads(tensor, _) => heads_bytes(tensor),
        Upload::Experts(tensors) => experts::weight_bytes(tensors)?,
        Upload::Vector(tensor) | Upload::Taps(tensor) => values_bytes(tensor),
        Upload::Constant(len) => aligned(4 * *len as u64),
        Upload::Rope(spec) => rope_bytes(spec),
    })
}

/// Returns the bytes of matrices of heads, which are f16.
pub(super) fn heads_bytes(tensor: &TensorView<'_>) -> u64 {
    aligned(2 * tensor.rows as u64 * tensor.cols as u64)
}

pub(super) fn rope_bytes(spec: &RopeSpec) -> u64 {
    aligned(4 * spec.inv_freq.len() as u64)
}

impl GpuLoader {
    /// Returns the bytes left after the uploads on the device and the workspace. A matrix library that is not open yet
    /// counts only if the placement of weights has reserved room for it.
    ///
    /// # Errors
    /// `OutOfMemory` if the weights alone do not fit.
    pub(super) fn room_for_buffers(&self, uploads: &[Upload<'_>]) -> Result<u64> {
        let available = self.available()?;
        let weights = uploads.iter().map(upload_bytes).sum::<Result<u64>>()? - self.host_bytes();
        if weights > available {
            return Err(Error::OutOfMemory {
                what: format!("the model, its weights alone, on {}", self.device.label()),
                requested: weights,
                available,
                advice: WEIGHTS_ADVICE,
            });
        }
        let workspace = self.workspace_bytes(most_cols(uploads));
        Ok((available - weights)
            .saturating_sub(workspace)
            .saturating_sub(self.library_reserve + self.staging_bytes() + self.cache_sizes.bytes()))
    }

    /// Returns the bytes that may still be allocated on the device: its free memory, at most what is left of the user's
    /// limit, less the margin.
    ///
    /// # Errors
    /// `Error::Device` if the driver does not tell the free memory.
    pub(super) fn available(&self) -> Result<u64> {
        let free = self.device.free_memory()?;
        let limit = self.options.memory_limit.map(|limit| limit.saturating_sub(self.device.allocated_bytes()));
        Ok(limit.map_or(free, |left| free.min(left)).saturating_sub(MARGIN))
    }

    /// Returns the bytes of a `Workspace` for matrices of up to `max_cols` inputs: its partial sums, counters and
    /// conversions. Any row of a step may need conversion. Examples are residuals that a product reads without a norm,
    /// rows prepared for a library that then refuses, and rows between matrices of different types.
    pub(super) fn workspace_sizes(&self, max_cols: usize) -> [u64; 3] {
        [PARTIAL_BYTES, 4 * NUM_COUNTERS as u64, Self::buffer_bytes(self.limits.tokens, max_cols)]
    }

    /// Returns the bytes that `finish` will still take with matrices of up to `max_cols` inputs.
    pub(super) fn workspace_bytes(&self, max_cols: usize) -> u64 {
        let step = step::device_bytes(&self.limits) + select::device_bytes(&self.limits);
        let vendor = if self.blas.is_some() { LIBRARY_BYTES } else { 0 };
        let sizes = self.workspace_sizes(max_cols);
        sizes.into_iter().fold(vendor + step + self.graph_bytes(), u64::saturating_add)
    }

    /// Returns the bytes reserved for the driver's captured graphs.
    pub fn graph_bytes(&self) -> u64 {
        match graphs::wanted(&self.options, self.device.properties()) {
            Ok(()) => steps::room(self.limits.most_decodes()),
            Err(_) => 0,
        }
    }
}

/// Returns the number of inputs of the widest matrix.
pub(super) fn most_cols(uploads: &[Upload<'_>]) -> usize {
    let cols = stacks(uploads).flatten().map(|part| part.weight.cols).chain(experts::inputs(uploads));
    cols.max().unwrap_or(1)
}

/// Returns the format that the matrix kernels of all types take; `None` if they differ or there is none.
pub(super) fn common_format(types: &[KernelType]) -> Option<Format> {
    let mut formats = types.iter().map(|ty| ty.matmul_format());
    let first = formats.next()??;
    formats.all(|format| format == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{ExpertSpec, ExpertTensors, LinearPart, RopeKind};
    use crate::quant::GgmlType;
    use crate::tensor::TensorView;
    use crate::testing::devices::{self, CPU_TARGETS};

    /// G24: each kind of upload takes exactly the bytes that were computed, here with odd sizes and biases.
    #[test]
    fn uploads_take_what_was_counted() {
        let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
        let zeros = vec![0; 64 << 10];
        let view = |ggml_type: GgmlType, rows: usize, cols: usize| {
            let bytes = ggml_type.row_bytes(cols).unwrap() * rows;
            TensorView { name: "odd", ggml_type, rows, cols, data: &zeros[..bytes], scales: &[] }
        };
        let f32s = |rows, cols| view(GgmlType::F32, rows, cols);
        let stack = vec![
            LinearPart { weight: view(GgmlType::Q8_0, 17, 288), bias: None },
            LinearPart { weight: f32s(5, 288), bias: Some(f32s(5, 1)) },
        ];
        let spec = ExpertSpec {
            router_bias: true,
            choice_bias: true,
            biases: true,
            output_scales: true,
            ..ExpertSpec::plain(5, 2, 33, 17)
        };
        let experts = ExpertTensors {
            spec,
            router: f32s(5, 33),
            gate: Some(f32s(5 * 17, 33)),
            up: f32s(5 * 17, 33),
            down: f32s(5 * 33, 17),
            fused: false,
            router_bias: Some(f32s(1, 5)),
            choice_bias: Some(f32s(1, 5)),
            output_scales: Some(f32s(1, 5)),
            biases: Some([f32s(5, 17), f32s(5, 17), f32s(5, 33)]),
        };
        let rope = RopeSpec { kind: RopeKind::Neox, inv_freq: vec![1.0; 3], magnitude: 1.0 };
        let uploads = [
            Upload::Matrix(stack),
            Upload::Experts(Box::new(experts)),
            Upload::Vector(f32s(33, 1)),
            Upload::Taps(f32s(33, 3)),
            Upload::Constant(37),
            Upload::Rope(rope),
            Upload::Heads(f32s(3 * 33, 17), 3),
        ];

        let mut loader = devices::loader(&device, 4);
        loader.reserve_weights(&uploads, 0).unwrap();
        let mut taken = Vec::new();
        for upload in &uploads {
            let before = loader.ledger.weights;
            match upload {
                Upload::Matrix(parts) => drop(loader.upload_matrix(parts, &mut |_| Ok(())).unwrap()),
                Upload::Experts(tensors) => drop(loader.upload_experts(tensors, &mut |_| Ok(())).unwrap()),
                Upload::Vector(tensor) => drop(loader.upload_vector(*tensor).unwrap()),
                Upload::Taps(tensor) => drop(loader.upload_taps(*tensor).unwrap()),
                Upload::Constant(len) => drop(loader.upload_constant(1.0, *len).unwrap()),
                Upload::Rope(spec) => drop(loader.upload_rope(spec).unwrap()),
                Upload::Heads(tensor, heads) => drop(loader.upload_heads(*tensor, *heads, &mut |_| Ok(())).unwrap()),
            }
            taken.push(loader.ledger.weights - before);
        }
        assert_eq!(taken, uploads.iter().map(|upload| upload_bytes(upload).unwrap()).collect::<Vec<_>>());
        assert_eq!(loader.weights.bytes(), taken.iter().sum::<u64>());
    }
}
