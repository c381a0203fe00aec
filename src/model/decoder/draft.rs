//! The MTP block, which proposes draft tokens. In the model's steps it only stores keys and values. Separate steps
//! compute draft tokens with it.

use super::{Attend, Input, Ropes, Stream, Work, finish_layer, logits_of};
use crate::backend::{Backend, Embed, JoinRows, Linear, NormRows, Ops};
use crate::buffers::Drafts;
use crate::layers::{DrafterWeights, MixerWeights, NormWeights, Weights};
use crate::spec::ModelSpec;
use crate::{Error, Result};

pub(super) struct Drafter<'a, B: Backend> {
    block: &'a DrafterWeights<B>,
    attend: Attend<'a, B>,
    weights: &'a Weights<B>,
    /// The norm of the model's hidden states.
    model_norm: &'a NormWeights<B>,
    spec: &'a ModelSpec,
}

impl<'a, B: Backend> Drafter<'a, B> {
    pub(super) fn new(
        block: &'a DrafterWeights<B>,
        weights: &'a Weights<B>,
        spec: &'a ModelSpec,
        ropes: &'a Ropes<'a, B>,
    ) -> Result<Self> {
        let MixerWeights::Attention(attention) = &block.layer.mixer else {
            return Err(Error::internal("a drafter without attention"));
        };
        let attend = Attend { attention, norm: block.layer.mixer_norms.before.as_ref(), ropes };
        let model_norm = weights.output_norm.as_ref();
        let model_norm = model_norm.ok_or_else(|| Error::internal("a drafter of a model without an output norm"))?;
        Ok(Self { block, attend, weights, model_norm, spec })
    }

    pub(super) fn kv_layer<'k>(&self, kv_layers: &'k mut [B::KvLayer]) -> Result<&'k mut B::KvLayer> {
        let kv = kv_layers.get_mut(self.attend.attention.spec.kv_layer);
        kv.ok_or_else(|| Error::internal("a drafter without a KV layer"))
    }

    /// Stores the keys and values of all tokens, after a step of the model has left its residuals. Each token is
    /// combined with the hidden state of the previous token. Overwrites the residuals.
    pub(super) fn store(
        &self,
        step: &mut B::Step<'_>,
        kv: &mut B::KvLayer,
        state: &mut B::StateLayer,
        all: &mut Stream<B>,
        work: &mut Work<B>,
        drafts: Option<&mut Drafts<B>>,
    ) -> Result<()> {
        let drafts = drafts.ok_or_else(no_buffers)?;
        let (rows, norm) = (step.num_tokens(), self.model_norm.norm());
        step.check_interrupt()?;
        step.norm_rows(NormRows { x: &all.residual, norm, rows, out: &mut drafts.hidden })?;
        self.norm_hidden(step, drafts)?;
        self.join(step, Some(state), all, work, drafts)?;
        self.attend.store(step, kv, all, work)
    }

    /// Computes the logits of the tokens that follow those of the step, one per sequence. `state` holds the hidden
    /// state of the previous token. Without it, the result of the last such step is used.
    pub(super) fn propose(
        &self,
        step: &mut B::Step<'_>,
        kv: &mut B::KvLayer,
        state: Option<&mut B::StateLayer>,
        all: &mut Stream<B>,
        work: &mut Work<B>,
        (drafts, logits): (Option<&mut Drafts<B>>, &mut B::Buffer),
    ) -> Result<()> {
        let drafts = drafts.ok_or_else(no_buffers)?;
        let rows = step.num_tokens();
        if state.is_none() {
            self.norm_hidden(step, drafts)?;
        }
        self.join(step, state, all, work, drafts)?;
        self.attend.mix(step, kv, all, work)?;
        finish_layer(step, &self.block.layer, rows, all, work)?;
        step.check_interrupt()?;
        let norm = self.block.output_norm.norm();
        step.norm_rows(NormRows { x: &all.residual, norm, rows, out: &mut drafts.hidden })?;
        let input = Input { x: &drafts.hidden, norm: None, rows };
        logits_of(step, input, self.weights, self.spec, &mut work.normed, logits)
    }

    fn norm_hidden(&self, step: &mut B::Step<'_>, Drafts { hidden, normed, .. }: &mut Drafts<B>) -> Result<()> {
        let (rows, norm) = (step.num_tokens(), self.block.hidden_norm.norm());
        step.norm_rows(NormRows { x: hidden, norm, rows, out: normed })
    }

    /// `residual = projection · [norm(embedding) ; norm(hidden)]`.
    fn join(
        &self,
        step: &mut B::Step<'_>,
        previous: Option<&mut B::StateLayer>,
        all: &mut Stream<B>,
        work: &mut Work<B>,
        drafts: &mut Drafts<B>,
    ) -> Result<()> {
        let (rows, cols) = (step.num_tokens(), self.spec.hidden_size);
        let (table, scale) = (&self.weights.token_embd, self.spec.embedding_scale);
        step.embed(Embed { table, scale, out: &mut all.residual })?;
        let norm = self.block.embedding_norm.norm();
        step.norm_rows(NormRows { x: &all.residual, norm, rows, out: &mut work.normed })?;
        let Drafts { normed: right, joined: out, .. } = drafts;
        step.join_rows(JoinRows { left: &work.normed, right, cols, previous, out })?;
        let (x, matrix) = (&drafts.joined, &self.block.projection);
        step.linear(Linear { x, matrix, rows, out: &mut all.residual, add: false })
    }
}

fn no_buffers() -> Error {
    Error::internal("a drafter without its buffers")
}
