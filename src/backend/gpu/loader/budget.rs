//! What a load will take, counted before and while it is taken.

use super::{GpuLoader, MARGIN, WEIGHTS_ADVICE, aligned, experts, stacks};
use crate::backend::gpu::args::Format;
use crate::backend::gpu::plans::{NUM_COUNTERS, PARTIAL_BYTES};
use crate::backend::gpu::stacks::{device_type, part_bytes, values_bytes};
use crate::backend::gpu::{KernelType, graphs, rehearsal, select, step};
use crate::backend::{Loader, RopeSpec, Upload};
use crate::{Error, Result};

/// Bytes of an upload on the device.
pub(super) fn upload_bytes(upload: &Upload<'_>) -> u64 {
    match upload {
        Upload::Matrix(parts) => {
            let tiles: u64 = parts.iter().map(|p| part_bytes(&p.weight)).sum();
            let rows: usize = parts.iter().map(|p| p.weight.rows).sum();
            aligned(tiles) + if parts.iter().any(|p| p.bias.is_some()) { aligned(4 * rows as u64) } else { 0 }
        }
        Upload::Experts(tensors) => experts::weight_bytes(tensors),
        Upload::Vector(tensor) => values_bytes(tensor),
        Upload::Rope(spec) => rope_bytes(spec),
    }
}

pub(super) fn rope_bytes(spec: &RopeSpec) -> u64 {
    aligned(4 * spec.inv_freq.len() as u64)
}

impl GpuLoader {
    /// What is left beside the uploads and the workspace, without a matrix library that is not yet open.
    ///
    /// # Errors
    /// `OutOfMemory` when the weights alone do not fit.
    pub(super) fn room_for_buffers(&self, uploads: &[Upload<'_>]) -> Result<u64> {
        let available = self.device.free_memory()?.saturating_sub(MARGIN);
        let weights = uploads.iter().map(upload_bytes).sum::<u64>();
        if weights > available {
            return Err(Error::OutOfMemory {
                what: format!("the model, its weights alone, on {}", self.device.label()),
                requested: weights,
                available,
                advice: WEIGHTS_ADVICE,
            });
        }
        let types = stacks(uploads).flatten().map(|part| device_type(part.weight.ggml_type));
        let types = types.chain(experts::matrix_types(uploads));
        let workspace = self.workspace_bytes(types, most_cols(uploads));
        Ok((available - weights).saturating_sub(workspace))
    }

    /// The types of what was uploaded.
    pub(super) fn uploaded_types(&self) -> impl Iterator<Item = KernelType> {
        self.types.iter().map(|(ty, _)| *ty)
    }

    /// Rows that may have to be converted from one format to another: all, unless every matrix agrees on one; then only
    /// those that were gathered for the logits.
    pub(super) fn conversion_rows(&self, types: impl Iterator<Item = KernelType>) -> usize {
        if common_format(types).is_some() { self.limits.logits_rows } else { self.limits.tokens }
    }

    /// What `finish` will still take with matrices of these types, and of up to `max_cols` inputs.
    pub(super) fn workspace_bytes(&self, types: impl Iterator<Item = KernelType>, max_cols: usize) -> u64 {
        let conversion = Self::buffer_bytes(self.conversion_rows(types), max_cols);
        let step = step::device_bytes(&self.limits, &self.tuning) + select::device_bytes(&self.limits);
        let vendor = if self.blas.is_some() { self.library_bytes(max_cols) } else { 0 };
        let workspace = vendor + PARTIAL_BYTES + 4 * NUM_COUNTERS as u64 + step;
        conversion.saturating_add(workspace + self.graph_bytes())
    }

    /// What is left to the driver for recorded steps.
    pub(crate) fn graph_bytes(&self) -> u64 {
        match graphs::wanted(&self.options, self.device.properties()) {
            Ok(()) => rehearsal::room(self.limits.most_decodes()),
            Err(_) => 0,
        }
    }
}

/// Inputs of the widest matrix.
pub(super) fn most_cols(uploads: &[Upload<'_>]) -> usize {
    let cols = stacks(uploads).flatten().map(|part| part.weight.cols).chain(experts::inputs(uploads));
    cols.max().unwrap_or(1)
}

/// The format that the matrix kernels of all types take; `None` where they differ, or where there is none.
pub(super) fn common_format(types: impl Iterator<Item = KernelType>) -> Option<Format> {
    let mut formats = types.map(KernelType::matmul_format);
    let first = formats.next()??;
    formats.all(|format| format == Some(first)).then_some(first)
}
