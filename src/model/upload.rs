//! Uploads the model's tensors one by one.

use super::find::{Finder, Linear, ModelTensors, Tensor};
use super::layers::{Part, Visitor, Weights};
use crate::Result;
use crate::backend::{Backend, ExpertSpec, LinearPart, Loader, RopeSpec};

impl ModelTensors<'_> {
    /// Uploads everything. Copies that only make steps faster may take `spare` bytes of the device. `progress` is
    /// called with the bytes of the file done so far, every few megabytes, and stops the load by returning an error.
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

struct Uploader<'u, L: Loader> {
    finder: Finder<'u>,
    loader: &'u mut L,
    progress: &'u mut dyn FnMut(u64) -> Result<()>,
    /// Bytes of the file uploaded so far.
    done: u64,
}

impl<L: Loader> Uploader<'_, L> {
    /// The device has its copy: the file's pages need not stay in memory.
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
        for Linear { weight, bias } in &found {
            self.finder.gguf.release_pages(weight.info);
            bias.iter().try_for_each(|bias| self.finished(bias))?;
        }
        Ok(matrix)
    }

    fn heads(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        heads: usize,
    ) -> Result<<L::Backend as Backend>::HeadMatrices> {
        let tensor = self.finder.required(name, &[cols, rows, heads])?;
        let Self { loader, progress, done, .. } = self;
        let matrices = loader.upload_heads(tensor.view, heads, &mut |bytes| {
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
