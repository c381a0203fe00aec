//! Samples for the self-test, chosen from the uploaded matrices.

use crate::KernelType;
use crate::Result;
use crate::backend::{ExpertTensors, LinearPart};
use crate::buffer::{Experts, Matrix};
use crate::gpu_backend::Sample;
use crate::weights::stacks::Layout;

/// The first matrix of each type, and the first stack of each pair of types that has special kernels.
#[derive(Default)]
pub(super) struct Samples(Vec<Sample>);

impl Samples {
    pub(super) fn all(&self) -> &[Sample] {
        &self.0
    }

    /// Adds samples of an uploaded stack for types that have none yet.
    ///
    /// # Errors
    /// `Error::Internal` for a matrix that does not consist of these parts.
    pub(super) fn of_matrix(&mut self, parts: &[LinearPart<'_>], matrix: &Matrix) -> Result<()> {
        let layout = Layout::of(parts)?;
        for (LinearPart { weight, .. }, &start) in parts.iter().zip(&layout.starts) {
            let ty = KernelType::of(weight.ggml_type)?;
            if self.has(&[ty]) {
                continue;
            }
            // The segment that starts with the matrix, or contains it.
            let runs = layout.segments.iter().zip(&matrix.segments);
            if let Some((run, segment)) = runs.take_while(|(run, _)| run.start <= start).last() {
                let tiles = segment.tiles.part(start - run.start, ty.matrix_bytes(weight.rows, weight.cols))?;
                self.0.push(Sample::new(&[(weight, ty, &tiles)]));
            }
        }
        if let [first, second] = &matrix.segments[..]
            && KernelType::PAIRS.contains(&[first.ty, second.ty])
        {
            // The sample contains the first matrix of each segment.
            let first_of = |start: u64| parts.iter().zip(&layout.starts).find(|(_, at)| **at == start);
            let weights = layout.segments.iter().zip([first, second]).filter_map(|(run, segment)| {
                first_of(run.start).map(|(part, _)| (&part.weight, segment.ty, &segment.tiles))
            });
            let weights: Vec<_> = weights.collect();
            if !self.has(&[first.ty, second.ty]) {
                self.0.push(Sample::new(&weights));
            }
        }
        Ok(())
    }

    /// Adds samples of uploaded experts for types that have none yet: matrices of the first expert.
    ///
    /// # Errors
    /// The errors of `of_matrix`.
    pub(super) fn of_experts(&mut self, tensors: &ExpertTensors<'_>, experts: &Experts) -> Result<()> {
        let matrices = experts.gate.iter().chain([&experts.up, &experts.down]);
        // The device has no tiles of experts that the CPU computes.
        let on_device = tensors.spec.parts().iter().zip(matrices).filter(|(_, matrix)| matrix.packed.is_none());
        for (&part, matrix) in on_device {
            let tensor = tensors.matrix(part, 0);
            if !self.has(&[matrix.ty]) {
                let tiles = matrix.tiles.part(0, matrix.expert_bytes())?;
                self.0.push(Sample::new(&[(&tensor, matrix.ty, &tiles)]));
            }
        }
        Ok(())
    }

    /// True if there is a sample of these types.
    fn has(&self, types: &[KernelType]) -> bool {
        self.0.iter().any(|sample| sample.is_of(types))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Loader;
    use crate::config::GpuOptions;
    use crate::conformance::Random;
    use crate::quant::GgmlType;
    use crate::tensor::TensorView;
    use crate::testing::devices::{self, CPU_TARGETS};

    /// There is one sample per type, and one per pair. The self-test finds each at its place.
    #[test]
    fn each_type_is_sampled_once_where_it_lies() {
        const TYPES: [[GgmlType; 2]; 2] = [[GgmlType::F16, GgmlType::IQ1_S], [GgmlType::Q4_K, GgmlType::Q6_K]];
        let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
        let mut loader = devices::loader(&(device, GpuOptions { self_test: true, ..options }), 64);
        let mut random = Random(1);
        for types in TYPES {
            let data = types.map(|ty| {
                let mut bytes: Vec<u8> = (0..16 * ty.row_bytes(256).unwrap()).map(|_| random.next() as u8).collect();
                // These types have 16-bit scales here: all of them are 1.
                let scales = match ty {
                    GgmlType::Q4_K => 0..4,
                    GgmlType::Q6_K => 208..210,
                    _ => 0..2,
                };
                for block in bytes.chunks_mut(ty.block_bytes()) {
                    block[scales.clone()].chunks_mut(2).for_each(|x| x.copy_from_slice(&half::f16::ONE.to_le_bytes()));
                }
                bytes
            });
            let parts = [0, 1].map(|i| {
                let weight =
                    TensorView { name: "w", ggml_type: types[i], rows: 16, cols: 256, data: &data[i], scales: &[] };
                LinearPart { weight, bias: None }
            });
            loader.upload_matrix(&parts, &mut |_| Ok(())).unwrap();
            loader.upload_matrix(&parts, &mut |_| Ok(())).unwrap();
        }
        let [[f16, iq1_s], [q4_k, q6_k]] = TYPES.map(|types| types.map(|ty| KernelType::of(ty).unwrap()));
        let expected = [vec![f16], vec![iq1_s], vec![q4_k], vec![q6_k], vec![q4_k, q6_k]];
        assert_eq!(loader.samples.all().len(), expected.len());
        assert!(loader.samples.all().iter().zip(&expected).all(|(sample, types)| sample.is_of(types)));
        loader.finish().unwrap();
    }
}
