//! Memory of a mixture of experts: its weights, and the room of a step in addition to its residuals.

use super::on_host::OnHost;
use super::{GpuLoader, aligned};
use crate::Result;
use crate::backend::{ExpertPart, ExpertSpec, ExpertTensors, Loader, Progress, Upload};
use crate::buffer::{Buffer, ExpertMatrix, ExpertWork, Experts, Matrix, Segment};
use crate::ops::most_runs;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::weights::stacks::values_bytes;
use crate::{DeviceBuffer, EXPERT_RUNS, KernelType, check_experts};

/// Returns the bytes of one of the matrices of all experts, in whole tiles per expert.
fn matrix_bytes(tensors: &ExpertTensors<'_>, part: ExpertPart) -> Result<u64> {
    let first = tensors.matrix(part, 0);
    let of_one = KernelType::of(first.ggml_type)?.matrix_bytes(first.rows, first.cols);
    Ok(aligned(tensors.spec.num as u64 * of_one))
}

/// Returns the bytes of the router on the device, which is f32.
fn router_bytes(spec: &ExpertSpec) -> u64 {
    aligned(KernelType::F32.matrix_bytes(spec.num, spec.hidden_size))
}

/// Returns the bytes of all experts' matrices, without router and biases.
pub(super) fn tiles_bytes(tensors: &ExpertTensors<'_>) -> Result<u64> {
    tensors.spec.parts().iter().map(|&part| matrix_bytes(tensors, part)).sum()
}

/// Returns the bytes of the largest matrix of all experts.
pub(super) fn largest_matrix_bytes(tensors: &ExpertTensors<'_>) -> Result<u64> {
    let parts = tensors.spec.parts();
    parts.iter().try_fold(0, |largest: u64, &part| Ok(largest.max(matrix_bytes(tensors, part)?)))
}

/// Returns the bytes of the matrices of one expert in the cache.
pub(super) fn slot_bytes(tensors: &ExpertTensors<'_>) -> Result<u64> {
    let bytes = |&part: &ExpertPart| {
        let first = tensors.matrix(part, 0);
        Ok(aligned(KernelType::of(first.ggml_type)?.matrix_bytes(first.rows, first.cols)))
    };
    tensors.spec.parts().iter().map(bytes).sum()
}

/// Returns the bytes of an upload.
pub(super) fn weight_bytes(tensors: &ExpertTensors<'_>) -> Result<u64> {
    let biases = [tensors.router_bias, tensors.choice_bias, tensors.output_scales].into_iter().flatten();
    let biases = biases.chain(tensors.biases.into_iter().flatten()).map(|bias| values_bytes(&bias));
    Ok(router_bytes(&tensors.spec) + tiles_bytes(tensors)? + biases.sum::<u64>())
}

/// Returns the types of the experts and routers among the uploads.
pub(super) fn types(uploads: &[Upload<'_>]) -> Result<Vec<KernelType>> {
    let router = experts_among(uploads).next().map(|_| Ok(KernelType::F32));
    let matrices = experts_among(uploads).flat_map(|tensors| [tensors.gate, Some(tensors.up), Some(tensors.down)]);
    matrices.flatten().map(|tensor| KernelType::of(tensor.ggml_type)).chain(router).collect()
}

/// Yields the numbers of inputs of the experts' matrices.
pub(super) fn inputs(uploads: &[Upload<'_>]) -> impl Iterator<Item = usize> {
    experts_among(uploads).flat_map(|tensors| [tensors.spec.hidden_size, tensors.spec.ffn_size])
}

fn experts_among<'a, 'b>(uploads: &'a [Upload<'b>]) -> impl Iterator<Item = &'a ExpertTensors<'b>> {
    uploads.iter().filter_map(|upload| match upload {
        Upload::Experts(tensors) => Some(&**tensors),
        Upload::Matrix(_)
        | Upload::Heads(..)
        | Upload::Vector(_)
        | Upload::Constant(_)
        | Upload::Taps(_)
        | Upload::Rope(_) => None,
    })
}

/// Returns the sizes of an `ExpertWork`: rows and columns of its buffers (logits, values, gate and up, gated), and
/// words of its pair, run and place lists.
fn work_sizes(spec: &ExpertSpec, rows: usize) -> ([[usize; 2]; 4], [usize; 3]) {
    let [short, long] = EXPERT_RUNS.map(|run| run as usize);
    let pairs = rows.saturating_mul(spec.used);
    let padding = pairs.min(spec.num).saturating_mul(long - 1);
    let places = pairs.saturating_add(padding);
    let buffers =
        [[rows, spec.num], [places, spec.hidden_size], [places, spec.product_cols()], [places, spec.ffn_size]];
    (buffers, [pairs, most_runs(pairs, spec.num, short), places])
}

/// Returns the bytes of an `ExpertWork`, for budgeting.
pub(super) fn work_bytes(spec: &ExpertSpec, rows: usize) -> u64 {
    let (buffers, lists) = work_sizes(spec, rows);
    let buffers = buffers.map(|[rows, cols]| GpuLoader::buffer_bytes(rows, cols));
    let beside = lists_bytes(lists).saturating_add(weighed_bytes(spec, rows));
    buffers.into_iter().fold(beside, u64::saturating_add)
}

/// Returns the bytes of rows that are weighted before their experts.
fn weighed_bytes(spec: &ExpertSpec, rows: usize) -> u64 {
    if spec.weighs_inputs { list_bytes(rows.saturating_mul(spec.hidden_size)) } else { 0 }
}

/// Returns the bytes of three lists of pairs, one of runs and one of places.
fn lists_bytes([pairs, runs, places]: [usize; 3]) -> u64 {
    3 * list_bytes(pairs) + list_bytes(runs) + list_bytes(places)
}

fn list_bytes(words: usize) -> u64 {
    aligned((words as u64).min(u64::from(u32::MAX)) * 4)
}

impl GpuLoader {
    pub(super) fn expert_weights(
        &mut self,
        tensors: &ExpertTensors<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Experts> {
        tensors.validate()?;
        check_experts(&tensors.spec, self.device.label())?;
        let ExpertSpec { num, hidden_size, ffn_size, .. } = tensors.spec;
        self.has_experts = true;
        self.max_cols = self.max_cols.max(hidden_size).max(ffn_size);
        let data = tensors.router_bytes()?;
        let view = TensorView { ggml_type: GgmlType::F32, data: &data, ..tensors.router };
        let tiles = self.weights(router_bytes(&tensors.spec))?;
        // The router's type does not decide the common format: rows between layers have that of the other matrices.
        let ty = self.upload_tiles(&view, tiles.slice(), progress)?;
        let bias = self.optional_values(tensors.router_bias)?;
        let segment = Segment { ty, first_row: 0, rows: num, tiles, bias, dense: None };
        let mut on_host = self.next_on_host();
        let [gate_bias, up_bias, down_bias] = tensors.biases.map_or([None; 3], |biases| biases.map(Some));
        let is_packed = on_host.is_there() && self.cpu.host.is_some();
        let mut matrix = |loader: &mut Self, part, bias| match is_packed {
            true => loader.packed_matrix(tensors, part, bias, &mut on_host),
            false => loader.expert_matrix(tensors, part, bias, &mut on_host, progress),
        };
        let mut experts = Experts {
            spec: tensors.spec,
            router: Matrix { rows: num, cols: hidden_size, segments: vec![segment], staged: None },
            choice_bias: self.optional_values(tensors.choice_bias)?,
            output_scales: self.optional_values(tensors.output_scales)?,
            gate: match tensors.spec.gate {
                true => Some(matrix(self, ExpertPart::Gate, gate_bias)?),
                false => None,
            },
            up: matrix(self, ExpertPart::Up, up_bias)?,
            down: matrix(self, ExpertPart::Down, down_bias)?,
            uses: None,
            on_cpu: None,
        };
        if is_packed {
            let Experts { gate, up, down, .. } = &experts;
            experts.on_cpu = self.pack_experts(tensors, gate.as_ref(), [up, down], progress)?;
        }
        if let Some(cache) = self.cache_memory.as_mut().filter(|_| on_host.is_there()) {
            let Experts { gate, up, down, .. } = &mut experts;
            experts.uses = Some(cache.add(num, gate.iter_mut().chain([up, down]))?);
        }
        Ok(experts)
    }

    pub(super) fn optional_values(&mut self, tensor: Option<TensorView<'_>>) -> Result<Option<DeviceBuffer>> {
        tensor.map(|tensor| self.upload_values(&tensor)).transpose()
    }

    /// Uploads one of the matrices of all experts. `on_host` is the host's memory of these experts.
    fn expert_matrix(
        &mut self,
        tensors: &ExpertTensors<'_>,
        part: ExpertPart,
        bias: Option<TensorView<'_>>,
        on_host: &mut OnHost,
        progress: &mut Progress<'_>,
    ) -> Result<ExpertMatrix> {
        let (tiles, staged) = self.tiles(on_host, matrix_bytes(tensors, part)?)?;
        let TensorView { ggml_type, rows, cols, .. } = tensors.matrix(part, 0);
        let (ty, bias) = (KernelType::of(ggml_type)?, self.optional_values(bias)?);
        let matrix = ExpertMatrix { ty, rows, cols, tiles, packed: None, bias, staged, cached: None };
        for expert in 0..tensors.spec.num {
            let part = tensors.matrix(part, expert);
            let bytes = matrix.expert_bytes();
            self.upload_part(&part, &matrix.tiles.part(expert as u64 * bytes, bytes)?, progress)?;
        }
        Ok(matrix)
    }

    pub(super) fn expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<ExpertWork> {
        spec.validate()?;
        let (sizes, [pairs, runs, places]) = work_sizes(spec, rows);
        let mut buffer = |[rows, cols]: [usize; 2]| -> Result<Buffer> { self.alloc_buffer(rows, cols) };
        let [logits, values, gate_up, gated] = sizes;
        let (logits, values) = (buffer(logits)?, buffer(values)?);
        let (gate_up, gated) = (buffer(gate_up)?, buffer(gated)?);
        let (of_lists, of_rows) = (lists_bytes([pairs, runs, places]), weighed_bytes(spec, rows));
        let bytes = of_lists + of_rows;
        let lists = self.allocate(bytes, "the lists of experts", "lower max_num_batched_tokens")?;
        self.ledger.scratch += bytes;
        let list = |index: u64| lists.part(index * list_bytes(pairs), list_bytes(pairs));
        Ok(ExpertWork {
            spec: *spec,
            rows,
            logits,
            values,
            gate_up,
            gated,
            weighed: spec.weighs_inputs.then(|| lists.part(of_lists, of_rows)).transpose()?,
            experts: list(0)?,
            weights: list(1)?,
            places: list(2)?,
            run_experts: lists.part(3 * list_bytes(pairs), list_bytes(runs))?,
            rows_of_places: lists.part(3 * list_bytes(pairs) + list_bytes(runs), list_bytes(places))?,
            exchange: self.exchange(spec, rows)?,
        })
    }
}
