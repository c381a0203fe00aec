//! Uploads the model's tensors one by one.

use half::f16;

use super::find::{Finder, Linear, MADE_HEADS, ModelTensors, Tensor};
use super::layers::{HeadRows, Part, Visitor, Weights};
use super::spec::DistanceBiases;
use crate::Result;
use crate::backend::{Backend, ExpertSpec, LinearPart, Loader, RopeSpec};
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;

impl ModelTensors<'_> {
    /// Uploads everything. Optional copies that make steps faster may take `spare` bytes of the device. `progress` is
    /// called every few megabytes with the bytes uploaded so far, and stops the load by returning an error.
    pub fn upload<L: Loader>(
        &self,
        loader: &mut L,
        spare: u64,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Weights<L::Backend>> {
        loader.reserve_weights(self.uploads(), spare)?;
        let mut uploader = Uploader { finder: self.finder, loader, progress, done: 0 };
        let mut weights = Weights::visit(self.spec, &mut uploader)?;
        if let Some(draft) = &self.draft {
            uploader.finder = draft.finder;
            weights.draft_model = Some(Box::new(Weights::visit(draft.spec, &mut uploader)?));
        }
        Ok(weights)
    }
}

/// Returns the head matrices that are a part of a tensor, as bytes of type `MADE_HEADS`.
fn head_rows(rows: &HeadRows, view: TensorView<'_>) -> Result<Vec<u8>> {
    let &HeadRows { heads, period, first, len, cols, is_transposed, .. } = rows;
    let mut values = vec![0.0; heads * period * cols];
    quant::dequantize(view.ggml_type, view.data, &mut values)?;
    let of_head = |head: &[f32]| -> Vec<f32> {
        let matrix = &head[first * cols..][..len * cols];
        match is_transposed {
            false => matrix.to_vec(),
            true => (0..cols).flat_map(|col| matrix.iter().skip(col).step_by(cols).copied()).collect(),
        }
    };
    let halves = values.chunks_exact(period * cols).flat_map(of_head).map(f16::from_f32);
    Ok(halves.flat_map(f16::to_le_bytes).collect())
}

struct Uploader<'u, L: Loader> {
    finder: Finder<'u>,
    loader: &'u mut L,
    progress: &'u mut dyn FnMut(u64) -> Result<()>,
    /// Bytes of the file uploaded so far.
    done: u64,
}

impl<L: Loader> Uploader<'_, L> {
    /// Releases the file's pages of a tensor, since the device has its copy.
    fn finished(&mut self, tensor: &Tensor<'_>) -> Result<()> {
        self.finder.gguf.release_pages(tensor.info);
        self.done += tensor.info.num_bytes as u64;
        (self.progress)(self.done)
    }
}

impl<L: Loader> Visitor for Uploader<'_, L> {
    type Made = L::Backend;

    fn matrix(&mut self, parts: &[Part]) -> Result<<L::Backend as Backend>::Matrix> {
        let found = self.finder.matrix(parts)?;
        let views: Vec<LinearPart<'_>> = found.iter().map(Linear::part).collect();
        let Self { loader, progress, done, .. } = self;
        let matrix = loader.upload_matrix(&views, &mut |bytes| {
            *done += bytes;
            progress(*done)
        })?;
        for Linear { weight, bias, scale } in &found {
            self.finder.gguf.release_pages(weight.info);
            bias.iter().chain(scale).try_for_each(|beside| self.finished(beside))?;
        }
        Ok(matrix)
    }

    fn heads(&mut self, rows: &HeadRows) -> Result<<L::Backend as Backend>::HeadMatrices> {
        let tensor = self.finder.heads(rows)?;
        if !rows.is_whole() {
            let (data, [of_head, cols]) = (head_rows(rows, tensor.view)?, rows.shape());
            let view =
                TensorView { ggml_type: MADE_HEADS, rows: rows.heads * of_head, cols, data: &data, ..tensor.view };
            let matrices = self.loader.upload_heads(view, rows.heads, &mut |_| Ok(()))?;
            // Several head matrices share a tensor, which counts once.
            if rows.first == 0 {
                self.finished(&tensor)?;
            }
            return Ok(matrices);
        }
        let Self { loader, progress, done, .. } = self;
        let matrices = loader.upload_heads(tensor.view, rows.heads, &mut |bytes| {
            *done += bytes;
            progress(*done)
        })?;
        self.finder.gguf.release_pages(tensor.info);
        Ok(matrices)
    }

    fn vector_of(&mut self, name: &str, shape: [usize; 2]) -> Result<<L::Backend as Backend>::Vector> {
        let tensor = self.finder.required(name, &shape)?;
        let vector = self.loader.upload_vector(tensor.view)?;
        self.finished(&tensor)?;
        Ok(vector)
    }

    fn scaled(&mut self, name: &str, len: usize, scale: f32) -> Result<<L::Backend as Backend>::Vector> {
        if scale == 1.0 {
            return self.vector(name, len);
        }
        let tensor = self.finder.required(name, &[len])?;
        let mut values = vec![0.0; len];
        quant::dequantize(tensor.view.ggml_type, tensor.view.data, &mut values)?;
        let data: Vec<u8> = values.iter().flat_map(|value| (value * scale).to_le_bytes()).collect();
        let view = TensorView { ggml_type: GgmlType::F32, data: &data, ..tensor.view };
        let vector = self.loader.upload_vector(view)?;
        self.finished(&tensor)?;
        Ok(vector)
    }

    fn constant(&mut self, value: f32, len: usize) -> Result<<L::Backend as Backend>::Vector> {
        self.loader.upload_constant(value, len)
    }

    fn biases(
        &mut self,
        layer: usize,
        biases: DistanceBiases,
        heads: usize,
    ) -> Result<<L::Backend as Backend>::Vector> {
        let tensor = self.finder.biases(biases, heads)?;
        let mut values = vec![0.0; heads * biases.buckets];
        quant::dequantize(tensor.view.ggml_type, tensor.view.data, &mut values)?;
        let table = biases.table(&values, heads);
        let data: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView { ggml_type: GgmlType::F32, rows: 1, cols: table.len(), data: &data, ..tensor.view };
        let vector = self.loader.upload_vector(view)?;
        // Several layers may share the tensor, which counts once.
        if biases.layer == layer {
            self.finished(&tensor)?;
        }
        Ok(vector)
    }

    fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<<L::Backend as Backend>::Vector> {
        let tensor = self.finder.required(name, &[taps, channels])?;
        let vector = self.loader.upload_taps(tensor.view)?;
        self.finished(&tensor)?;
        Ok(vector)
    }

    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<<L::Backend as Backend>::Experts> {
        let found = self.finder.experts(layer, spec)?;
        let Self { loader, progress, done, .. } = self;
        let experts = loader.upload_experts(&found.tensors, &mut |bytes| {
            *done += bytes;
            progress(*done)
        })?;
        found.infos.iter().for_each(|info| self.finder.gguf.release_pages(info));
        Ok(experts)
    }

    fn rope(&mut self, spec: &RopeSpec) -> Result<<L::Backend as Backend>::Rope> {
        self.loader.upload_rope(spec)
    }
}
