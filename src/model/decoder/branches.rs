//! A dense feed-forward and experts as two branches of a layer, each with its own norms.

use super::{NormWeights, Work};
use crate::backend::{Backend, ExpertShape, Linear, MixExperts, NormRows, Ops, WorkShape};
use crate::layers::{BranchNorms, DenseWeights};
use crate::{Error, Result};

pub(super) struct Branches<'a, B: Backend> {
    pub(super) norms: &'a BranchNorms<B>,
    pub(super) dense: &'a DenseWeights<B>,
    pub(super) experts: &'a B::Experts,
    /// The norm of the sum of both branches.
    pub(super) after: Option<&'a NormWeights<B>>,
}

impl<B: Backend> Branches<'_, B> {
    /// `residual += after(n1(down · gated) + n2(experts(n3(residual))))`. `gated` is the result of the wide half of the
    /// dense feed-forward.
    pub(super) fn add_to(
        self,
        step: &mut B::Step<'_>,
        rows: usize,
        residual: &mut B::Buffer,
        work: &mut Work<B>,
    ) -> Result<()> {
        let Self { norms, dense, experts, after } = self;
        let Work {
            normed, dense: Some([_, gated]), experts: kinds, mixture: Some(branch), branches: Some(sum), ..
        } = work
        else {
            return Err(Error::internal("branches of a feed-forward without their buffers"));
        };
        let work = kinds.iter_mut().find(|work| work.room().0 == experts.spec());
        let work = work.ok_or_else(|| Error::internal("experts without their buffers"))?;
        let after = after.ok_or_else(|| Error::internal("branches of a feed-forward without a norm behind them"))?;
        // Until the experts are computed, the buffer of the sum holds the router's input.
        step.norm_rows(NormRows { x: residual, norm: norms.before_experts.norm(), rows, out: normed })?;
        step.norm_rows(NormRows { x: residual, norm: norms.before_router.norm(), rows, out: sum })?;
        let routed = Some(&*sum);
        step.experts(MixExperts { x: normed, routed, experts, rows, work, out: branch, add: false })?;
        step.norm_rows(NormRows { x: branch, norm: norms.after_experts.norm(), rows, out: sum })?;
        step.linear(Linear { x: gated, matrix: &dense.down, rows, out: branch, add: false })?;
        norms.after_dense.add_to(step, branch, rows, sum)?;
        after.add_to(step, sum, rows, residual)
    }
}
