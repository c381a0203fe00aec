//! Arguments of the ops for latent attention.

use super::{Temperature, check_room, check_vector};
use crate::Backend;
use crate::shapes::{HeadsShape, KvShape, RopeShape};
use crate::specs::LatentShape;
use crate::{Error, Result};

/// See `Ops::head_products`.
pub struct HeadProducts<'a, B: Backend> {
    /// `[rows, heads * x_head]`. A head's matrix reads the first columns of the head.
    pub x: &'a B::Buffer,
    /// Columns of a head in `x`.
    pub x_head: usize,
    pub matrices: &'a B::HeadMatrices,
    pub rows: usize,
    /// `[rows, heads * out_head]`. A head's product fills the first columns of the head.
    pub out: &'a mut B::Buffer,
    /// Columns of a head in `out`.
    pub out_head: usize,
}

impl<B: Backend> HeadProducts<'_, B> {
    pub fn validate(&self) -> Result<()> {
        let Self { x_head, matrices, rows, out_head, .. } = *self;
        let (heads, out_cols, cols) = (matrices.heads(), matrices.rows(), matrices.cols());
        if cols > x_head || out_cols > out_head {
            return Err(Error::internal(format!(
                "matrices of {out_cols} rows of {cols} for heads of {x_head} columns, whose products have {out_head}"
            )));
        }
        check_room("the heads' input", self.x, rows, heads.saturating_mul(x_head))?;
        check_room("the heads' output", self.out, rows, heads.saturating_mul(out_head))
    }
}

/// See `Ops::rope_and_store_latent`.
pub struct RopeAndStoreLatent<'a, B: Backend> {
    /// The projected heads of q, `[tokens, shape.q_cols()]`.
    pub q: &'a B::Buffer,
    /// `[tokens, shape.queries().q_cols()]`. The first `rank` columns of each head are already filled.
    pub queries: &'a mut B::Buffer,
    /// The projected latents and keys, `[tokens, shape.row_dim()]`.
    pub latent: &'a B::Buffer,
    pub shape: LatentShape,
    /// Weights and epsilon of the RMS norm of the latents.
    pub norm: &'a B::Vector,
    pub eps: f32,
    /// RoPE for the last elements of the heads of q and for the key, and its angles at the positions of the step's
    /// tokens.
    pub rope: &'a B::Rope,
    pub angles: &'a B::Buffer,
    pub temperature: Option<Temperature>,
    /// The KV group of the layer.
    pub group: usize,
    pub kv: &'a mut B::KvLayer,
}

impl<B: Backend> RopeAndStoreLatent<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, spec) = (self.shape, self.kv.spec());
        shape.validate()?;
        if (spec.head_dim, spec.latent) != (shape.row_dim(), Some(shape.rank)) {
            return Err(Error::internal(format!("latents of {shape:?} for a KV layer of {spec:?}")));
        }
        if 2 * self.rope.num_pairs() != shape.rope_dim {
            return Err(Error::internal(format!("a RoPE of {} pairs for {shape:?}", self.rope.num_pairs())));
        }
        if let Some(Temperature { context: 0, .. }) = self.temperature {
            return Err(Error::internal("a temperature of a context of no tokens"));
        }
        check_vector("the norm of latents", self.norm, shape.rank)?;
        check_room("q", self.q, tokens, shape.q_cols())?;
        check_room("the queries", self.queries, tokens, shape.queries().q_cols())?;
        check_room("the latents", self.latent, tokens, shape.row_dim())?;
        check_room("the buffer of angles", self.angles, tokens, shape.rope_dim)
    }
}
