//! Runs and captures the steps of a graph warm-up (`capture::steps`), before the first request.

use std::time::Instant;

use super::GpuBackend;
use crate::backend::StepOps;
use crate::batch::{Batch, GroupKind};
use crate::capture::steps::{Capturing, Contexts, FEW_ROWS, GRAPH_BYTES, WarmUp, batch, room, wanted};
use crate::step::TURNS;
use crate::{Error, Result};

impl GpuBackend {
    /// Returns the contexts that steps can have; `None` without a KV cache and states.
    fn contexts(&self) -> Option<Contexts> {
        let (limits, states) = (self.inputs.limits(), self.inputs.limits().has_states());
        // Sliding windows reuse blocks, so only the blocks of full attention limit a context.
        let full = self.cache.iter().filter(|spec| spec.kind == GroupKind::Full).map(|spec| spec.num_blocks);
        let (longest, block_size) = match self.cache.first() {
            Some(cache) => {
                let longest = full.fold(limits.table_blocks, usize::min).checked_mul(cache.block_size)?;
                (u32::try_from(longest).ok().filter(|&longest| longest > 0)?, cache.block_size)
            }
            // Without attention, nothing limits a context, and there are no blocks.
            None if states => (u32::MAX, 1),
            None => return None,
        };
        let split_tokens = self.compute.launcher().tuning().attention.split_tokens;
        Some(Contexts { longest, split_tokens, block_size, groups: limits.groups, states })
    }

    /// Runs and captures steps until none is left, and counts their kernels.
    pub(super) fn warm_up_steps(&mut self, ops: &mut StepOps<'_, Self>) -> Result<()> {
        while let Some(batch) = self.next_warm_up()? {
            let before = self.compute.launcher().stream().launches();
            let outcome = self.run_step(&batch, ops);
            if outcome.is_ok() {
                let kernels = self.compute.launcher().stream().launches() - before;
                self.step_kernels.insert(batch.num_tokens(), kernels);
            }
            self.warmed_up(outcome)?;
        }
        Ok(())
    }

    /// Returns the next step to run or capture; `None` once none is left.
    fn next_warm_up(&mut self) -> Result<Option<Batch>> {
        let Some(contexts) = self.contexts() else { return Ok(None) };
        let (refused, library_rows) = (self.compute.library_refused(), self.compute.library_rows());
        match &mut self.warm_up {
            WarmUp::First => Ok(Some(batch(1, 1, &contexts))),
            WarmUp::Few => Ok(Some(batch(FEW_ROWS.min(self.inputs.most_decodes()), 1, &contexts))),
            WarmUp::Capturing(capturing) => {
                // The next graph is expected to take the average bytes of those before.
                let each = (capturing.taken / capturing.count.max(1) as u64).max(GRAPH_BYTES);
                let room = room(self.inputs.most_decodes());
                let next = capturing.waiting.front().filter(|_| capturing.taken + each <= room).cloned();
                let Some((next, turn)) = next else {
                    self.end_warm_up();
                    return Ok(None);
                };
                let batch = batch(next.rows, next.context_splits[0], &contexts);
                if library_rows.is_some_and(|least| next.rows >= least) && capturing.warmed < next.rows {
                    (capturing.warmed, capturing.refused_before) = (next.rows, None);
                } else {
                    capturing.refused_before = Some(refused);
                    self.graphs.capture(next, turn);
                }
                Ok(Some(batch))
            }
            WarmUp::Done => Ok(None),
        }
    }

    /// Takes the outcome of the step that `next_warm_up` returned.
    fn warmed_up(&mut self, outcome: Result<()>) -> Result<()> {
        let refused = self.compute.library_refused();
        match (&mut self.warm_up, outcome) {
            (WarmUp::First, outcome) => {
                outcome?;
                self.compute.launcher().stream().synchronize()?;
                if self.graphs.usable().is_err() {
                    self.warm_up = if self.inputs.most_decodes() > 1 { WarmUp::Few } else { WarmUp::Done };
                    return Ok(());
                }
                let longest = self.contexts().map_or(1, |contexts| contexts.longest);
                let launcher = self.compute.launcher();
                let (tuning, multiprocessors) = (launcher.tuning(), launcher.multiprocessors());
                let most_rows = self.graphs.most();
                let waiting = wanted(most_rows, longest, &self.attention_shapes, tuning, multiprocessors);
                self.warm_up = WarmUp::Capturing(Capturing {
                    waiting: waiting
                        .into_iter()
                        .flat_map(|step| (0..TURNS).map(move |turn| (step.clone(), turn)))
                        .collect(),
                    begun: Instant::now(),
                    count: 0,
                    free: self.device.free_memory()?,
                    taken: 0,
                    warmed: 0,
                    refused_before: None,
                });
            }
            (WarmUp::Few, outcome) => {
                outcome?;
                self.compute.launcher().stream().synchronize()?;
                self.warm_up = WarmUp::Done;
            }
            (WarmUp::Capturing(Capturing { refused_before: None, .. }), outcome) => {
                outcome?;
                self.compute.launcher().stream().synchronize()?;
            }
            (WarmUp::Capturing(capturing), Ok(())) => {
                capturing.refused_before = None;
                capturing.taken = capturing.free.saturating_sub(self.device.free_memory()?);
                capturing.waiting.pop_front();
                capturing.count += 1;
            }
            (_, Err(error @ Error::EngineDead { .. })) => return Err(error),
            // A refused product ends the capture that contains it. The same step is captured again with our own
            // kernels.
            (WarmUp::Capturing(Capturing { refused_before: Some(false), .. }), Err(_)) if refused => {
                self.graphs.abandon(self.compute.launcher().stream());
            }
            (_, Err(error)) => {
                self.graphs.abandon(self.compute.launcher().stream());
                let reason = format!("capturing a step failed: {error}");
                tracing::warn!("decode steps are launched op by op, which is slower: {reason}");
                self.graphs.give_up(reason);
                self.warm_up = WarmUp::Done;
            }
            (WarmUp::Done, Ok(())) => {}
        }
        Ok(())
    }

    fn end_warm_up(&mut self) {
        let WarmUp::Capturing(Capturing { waiting, begun, count, taken, .. }) =
            std::mem::replace(&mut self.warm_up, WarmUp::Done)
        else {
            return;
        };
        let (seconds, left_out) = (begun.elapsed().as_secs_f64(), waiting.len());
        tracing::info!(graphs = count, bytes = taken, seconds, "captured decode steps");
        if left_out > 0 {
            tracing::warn!(
                left_out,
                bytes = taken,
                "the larger decode steps run op by op: graphs take more memory than is left for them"
            );
        }
        self.graphs.leave_out(left_out);
        self.ledger.other += taken;
    }
}
