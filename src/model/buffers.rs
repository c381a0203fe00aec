//! The activations of a step, defined once. One function allocates them and also counts their bytes.

use std::marker::PhantomData;

use super::spec::{Ffn, LatentSpec, MambaSpec, Mixer, ModelSpec};
use crate::Result;
use crate::backend::{Backend, DeltaNetShape, ExpertSpec, Loader, Mamba2Shape, MambaShape, STREAMS};

/// The largest step that the activations have room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    pub max_num_batched_tokens: usize,
    /// Rows of logits per step.
    pub max_logits_rows: usize,
}

/// Types of buffers: a device's types, or empty types to only count bytes.
pub(super) trait Memory {
    type Buffer;
    type ExpertWork;
}

/// A device's buffers.
impl<B: Backend> Memory for B {
    type Buffer = B::Buffer;
    type ExpertWork = B::ExpertWork;
}

/// Activations of one step. The model and its draft model use them in turn.
pub(super) struct Buffers<M: Memory> {
    /// cos and sin per token for each RoPE; the draft model's come last.
    pub(super) angles: Vec<M::Buffer>,
    /// Rows of all tokens of the step.
    pub(super) all: Stream<M>,
    /// The rows with requested results. After the last mixer no other rows matter.
    pub(super) last: Stream<M>,
    pub(super) work: Work<M>,
    /// `None` for a model without an output projection.
    pub(super) logits: Option<M::Buffer>,
    /// Only in models with an MTP block.
    pub(super) drafts: Option<Drafts<M>>,
}

/// Intermediate results of an MTP block, and the hidden states from which it continues.
pub(super) struct Drafts<M: Memory> {
    /// Hidden states after the output norm: the model's, or the block's.
    pub(super) hidden: M::Buffer,
    /// The hidden states after the block's norm.
    pub(super) normed: M::Buffer,
    /// Embeddings and hidden states side by side.
    pub(super) joined: M::Buffer,
}

/// Activations that flow from layer to layer.
pub(super) struct Stream<M: Memory> {
    pub(super) residual: M::Buffer,
    /// The mixer's result, before its output projection.
    pub(super) mixed: M::Buffer,
    /// The result of the second mixer, in models with layers that have one.
    pub(super) beside: Option<M::Buffer>,
    /// Per-layer inputs. Each row has the inputs of all layers.
    pub(super) inputs: Option<M::Buffer>,
    /// Only in models with several streams.
    pub(super) streams: Option<StreamBuffers<M>>,
}

/// The hidden streams beside the residual, which is the active one.
pub(super) struct StreamBuffers<M: Memory> {
    /// A layer's prediction of the active stream.
    pub(super) predicted: M::Buffer,
    pub(super) others: [M::Buffer; STREAMS - 1],
}

/// Intermediate results within a layer.
pub(super) struct Work<M: Memory> {
    pub(super) normed: M::Buffer,
    /// Products of a mixer's first matrix: q, k and v, and its other inputs.
    pub(super) projected: M::Buffer,
    /// Only in models with latent attention.
    pub(super) latent: Option<LatentWork<M>>,
    /// Outputs of a convolution, in models with gated delta nets or Mamba mixers.
    pub(super) convolved: Option<M::Buffer>,
    /// Only in models with Mamba mixers of the first version.
    pub(super) mamba: Option<MambaWork<M>>,
    /// Products of gate and up, and the results of the activation. Only in models with feed-forwards that serve every
    /// row.
    pub(super) dense: Option<[M::Buffer; 2]>,
    /// One entry for each kind of experts in the model.
    pub(super) experts: Vec<M::ExpertWork>,
    /// Output of a layer's feed-forward before its output norm. Only in models with such a norm after experts.
    pub(super) mixture: Option<M::Buffer>,
    /// Sum of the branches of a feed-forward.
    pub(super) branches: Option<M::Buffer>,
}

/// Intermediate results of latent attention.
pub(super) struct LatentWork<M: Memory> {
    /// Latents of q, and later the queries for attention.
    pub(super) queries: M::Buffer,
    /// Latents of keys and values, followed by the key parts that RoPE rotates.
    pub(super) rows: M::Buffer,
}

/// Intermediate results of a Mamba mixer of the first version.
pub(super) struct MambaWork<M: Memory> {
    /// Short time steps, B and C.
    pub(super) inputs: [M::Buffer; 3],
    /// Time steps of all channels.
    pub(super) time_steps: M::Buffer,
}

/// Allocates buffers, or counts their bytes.
trait Allocate {
    type Memory: Memory;

    fn buffer(&mut self, rows: usize, cols: usize) -> Result<<Self::Memory as Memory>::Buffer>;

    fn expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<<Self::Memory as Memory>::ExpertWork>;

    /// See `Loader::convolved_cols`.
    fn convolved_cols(shape: DeltaNetShape, rows: usize) -> usize;

    /// See `Loader::mamba2_cols`.
    fn mamba2_cols(shape: Mamba2Shape, rows: usize) -> usize;
}

impl<B: Backend> Buffers<B> {
    pub(super) fn new<L: Loader<Backend = B>>(spec: &ModelSpec, limits: DecoderLimits, loader: &mut L) -> Result<Self> {
        allocate(spec, limits, &mut Taking(loader))
    }
}

/// Returns the bytes that `Buffers::new` allocates.
pub(super) fn bytes<L: Loader>(spec: &ModelSpec, limits: DecoderLimits) -> Result<u64> {
    let mut counting = Counting::<L> { bytes: 0, loader: PhantomData };
    allocate(spec, limits, &mut counting)?;
    Ok(counting.bytes)
}

fn allocate<A: Allocate>(spec: &ModelSpec, limits: DecoderLimits, memory: &mut A) -> Result<Buffers<A::Memory>> {
    let DecoderLimits { max_num_batched_tokens: tokens, max_logits_rows: logits } = limits;
    let [projected, mixed] = [0, 1].map(|which| spec.all_layers().map(|layer| layer.cols()[which]).max().unwrap_or(0));
    // A device may need more columns than the convolution has outputs.
    let convolved = spec.all_layers().filter_map(|layer| match (&layer.mixer, &layer.beside) {
        (Mixer::DeltaNet(delta_net), _) => Some(A::convolved_cols(delta_net.shape, tokens)),
        (Mixer::Mamba2(mamba2), _) | (_, Some(mamba2)) => Some(A::mamba2_cols(mamba2.shape, tokens)),
        _ => layer.convolved_cols(),
    });
    let beside = spec.all_layers().filter_map(|layer| Some(layer.beside?.shape.inner_cols())).max();
    let latent: Vec<LatentSpec> = spec
        .all_layers()
        .filter_map(|layer| match layer.mixer {
            Mixer::Latent(latent) => Some(latent),
            _ => None,
        })
        .collect();
    let q_rank = latent.iter().filter_map(|latent| latent.q_rank).max().unwrap_or(0);
    let query_cols = latent.iter().map(|latent| latent.shape.queries().q_cols()).max();
    let row_dim = latent.iter().map(|latent| latent.shape.row_dim()).max().unwrap_or(0);
    // All Mamba mixers of a file have one shape.
    let mamba = spec.all_layers().find_map(|layer| match layer.mixer {
        Mixer::Mamba(mamba) => Some(mamba),
        _ => None,
    });
    let dense = spec.all_layers().filter_map(|layer| match &layer.ffn {
        Ffn::Dense(dense) => Some(dense.size),
        Ffn::Experts { shared, .. } => shared.map(|shared| shared.size),
        Ffn::Branches { dense, .. } => Some(dense.size),
        Ffn::None => None,
    });
    // The per-layer inputs go through the same buffers.
    let inputs = spec.all_models().map(ModelSpec::input_cols).max().unwrap_or(0);
    let ranks = spec.all_models().filter_map(|model| Some(model.streams?.laurel_rank));
    let has_streams = spec.all_models().any(|model| model.streams.is_some());
    let gated = dense.chain(spec.all_models().filter_map(|model| Some(model.layer_inputs?.size))).chain(ranks).max();
    let hidden = spec.all_models().map(|model| model.hidden_size).max().unwrap_or(0);
    let vocab = spec.all_models().map(|model| model.vocab_size).max().unwrap_or(0);
    let (mut kinds, mut has_norm_behind, mut has_branches) = (Vec::new(), false, false);
    for layer in spec.all_layers() {
        if let Some(experts) = layer.ffn.experts() {
            has_norm_behind |= layer.ffn_norms.after.is_some();
            has_branches |= matches!(layer.ffn, Ffn::Branches { .. });
            if !kinds.contains(experts) {
                kinds.push(*experts);
            }
        }
    }
    let mut stream = |rows: usize| -> Result<_> {
        Ok(Stream {
            residual: memory.buffer(rows, hidden)?,
            mixed: memory.buffer(rows, mixed)?,
            beside: beside.map(|cols| memory.buffer(rows, cols)).transpose()?,
            inputs: (inputs > 0).then(|| memory.buffer(rows, inputs)).transpose()?,
            streams: match has_streams {
                true => Some(StreamBuffers {
                    predicted: memory.buffer(rows, hidden)?,
                    others: [memory.buffer(rows, hidden)?, memory.buffer(rows, hidden)?, memory.buffer(rows, hidden)?],
                }),
                false => None,
            },
        })
    };
    let (all, last) = (stream(tokens)?, stream(logits)?);
    let ropes = spec.all_models().flat_map(|model| &model.ropes);
    let angles = ropes.map(|rope| memory.buffer(tokens, 2 * rope.inv_freq.len()));
    Ok(Buffers {
        angles: angles.collect::<Result<_>>()?,
        all,
        last,
        work: Work {
            normed: memory.buffer(tokens, hidden.max(q_rank))?,
            projected: memory.buffer(tokens, projected)?,
            latent: match query_cols {
                Some(cols) => Some(LatentWork {
                    queries: memory.buffer(tokens, cols.max(q_rank))?,
                    rows: memory.buffer(tokens, row_dim)?,
                }),
                None => None,
            },
            convolved: convolved.max().map(|cols| memory.buffer(tokens, cols)).transpose()?,
            mamba: match mamba {
                Some(MambaSpec { shape: MambaShape { channels, state_size, .. }, rank, .. }) => Some(MambaWork {
                    inputs: [
                        memory.buffer(tokens, rank)?,
                        memory.buffer(tokens, state_size)?,
                        memory.buffer(tokens, state_size)?,
                    ],
                    time_steps: memory.buffer(tokens, channels)?,
                }),
                None => None,
            },
            dense: match gated {
                Some(size) => {
                    let of_streams = if has_streams { hidden.max(STREAMS) } else { 0 };
                    let products = size.saturating_mul(2).max(inputs).max(of_streams);
                    Some([memory.buffer(tokens, products)?, memory.buffer(tokens, size)?])
                }
                None => None,
            },
            experts: kinds.iter().map(|kind| memory.expert_work(kind, tokens)).collect::<Result<_>>()?,
            mixture: has_norm_behind.then(|| memory.buffer(tokens, hidden)).transpose()?,
            branches: has_branches.then(|| memory.buffer(tokens, hidden)).transpose()?,
        },
        logits: (!spec.is_bidirectional()).then(|| memory.buffer(logits, vocab)).transpose()?,
        drafts: match spec.drafter {
            Some(_) => Some(Drafts {
                hidden: memory.buffer(tokens, spec.hidden_size)?,
                normed: memory.buffer(tokens, spec.hidden_size)?,
                joined: memory.buffer(tokens, spec.hidden_size.saturating_mul(2))?,
            }),
            None => None,
        },
    })
}

struct Taking<'l, L>(&'l mut L);

impl<L: Loader> Allocate for Taking<'_, L> {
    type Memory = L::Backend;

    fn buffer(&mut self, rows: usize, cols: usize) -> Result<<L::Backend as Backend>::Buffer> {
        self.0.alloc_buffer(rows, cols)
    }

    fn expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<<L::Backend as Backend>::ExpertWork> {
        self.0.alloc_expert_work(spec, rows)
    }

    fn convolved_cols(shape: DeltaNetShape, rows: usize) -> usize {
        L::convolved_cols(shape, rows)
    }

    fn mamba2_cols(shape: Mamba2Shape, rows: usize) -> usize {
        L::mamba2_cols(shape, rows)
    }
}

struct Counting<L> {
    bytes: u64,
    loader: PhantomData<L>,
}

/// Buffers that are counted but not allocated.
struct Counted;

impl Memory for Counted {
    type Buffer = ();
    type ExpertWork = ();
}

impl<L: Loader> Allocate for Counting<L> {
    type Memory = Counted;

    fn buffer(&mut self, rows: usize, cols: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(L::buffer_bytes(rows, cols));
        Ok(())
    }

    fn expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(L::expert_work_bytes(spec, rows));
        Ok(())
    }

    fn convolved_cols(shape: DeltaNetShape, rows: usize) -> usize {
        L::convolved_cols(shape, rows)
    }

    fn mamba2_cols(shape: Mamba2Shape, rows: usize) -> usize {
        L::mamba2_cols(shape, rows)
    }
}
