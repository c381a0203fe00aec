//! Runs and records the steps of a rehearsal (`rehearsal`), before anything is served.

use std::time::Instant;

use super::GpuBackend;
use crate::backend::StepOps;
use crate::backend::gpu::rehearsal::{Contexts, GRAPH_BYTES, Recording, Rehearsal, batch, room, wanted};
use crate::backend::gpu::step::TURNS;
use crate::batch::{Batch, GroupKind};
use crate::{Error, Result};

impl GpuBackend {
    /// The contexts that steps can have; `None` without a KV cache.
    fn contexts(&self) -> Option<Contexts> {
        let limits = self.inputs.limits();
        let cache = self.cache.first()?;
        // A window's blocks are taken anew as it moves on: those of full attention bound a context.
        let full = self.cache.iter().filter(|spec| spec.kind == GroupKind::Full).map(|spec| spec.num_blocks);
        let longest = full.fold(limits.table_blocks, usize::min).checked_mul(cache.block_size)?;
        let longest = u32::try_from(longest).ok().filter(|&longest| longest > 0)?;
        let split_tokens = self.compute.launcher().tuning().attention.split_tokens;
        let (block_size, groups) = (cache.block_size, limits.groups);
        Some(Contexts { longest, split_tokens, block_size, groups, states: limits.has_states() })
    }

    /// Runs and records steps until all that are wanted are there.
    pub(super) fn rehearse_steps(&mut self, ops: &mut StepOps<'_, Self>) -> Result<()> {
        while let Some(batch) = self.next_rehearsal()? {
            let outcome = self.run_step(&batch, ops);
            self.rehearsed(outcome)?;
        }
        Ok(())
    }

    /// The next step to show the device; `None` once there is none left.
    fn next_rehearsal(&mut self) -> Result<Option<Batch>> {
        let Some(contexts) = self.contexts().filter(|_| self.graphs.usable().is_ok()) else {
            return Ok(None);
        };
        let (refused, library_rows) = (self.compute.library_refused(), self.compute.library_rows());
        match &mut self.rehearsal {
            Rehearsal::First => Ok(Some(batch(1, 1, &contexts))),
            Rehearsal::Recording(recording) => {
                // The next graph may take as many bytes as those before it took on average.
                let each = (recording.taken / recording.count.max(1) as u64).max(GRAPH_BYTES);
                let room = room(self.inputs.most_decodes());
                let next = recording.waiting.front().filter(|_| recording.taken + each <= room).cloned();
                let Some((next, turn)) = next else {
                    self.end_rehearsal();
                    return Ok(None);
                };
                let batch = batch(next.rows, next.context_splits[0], &contexts);
                if library_rows.is_some_and(|least| next.rows >= least) && recording.warmed < next.rows {
                    (recording.warmed, recording.refused_before) = (next.rows, None);
                } else {
                    recording.refused_before = Some(refused);
                    self.graphs.record(next, turn);
                }
                Ok(Some(batch))
            }
            Rehearsal::Done => Ok(None),
        }
    }

    /// The step that `next_rehearsal` gave was run, or could not be.
    fn rehearsed(&mut self, outcome: Result<()>) -> Result<()> {
        let refused = self.compute.library_refused();
        match (&mut self.rehearsal, outcome) {
            (Rehearsal::First, outcome) => {
                outcome?;
                self.compute.launcher().stream().synchronize()?;
                let longest = self.contexts().map_or(1, |contexts| contexts.longest);
                let launcher = self.compute.launcher();
                let (tuning, multiprocessors) = (launcher.tuning(), launcher.multiprocessors());
                let most_rows = self.inputs.most_decodes();
                let waiting = wanted(most_rows, longest, &self.attention_shapes, tuning, multiprocessors);
                self.rehearsal = Rehearsal::Recording(Recording {
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
            (Rehearsal::Recording(Recording { refused_before: None, .. }), outcome) => {
                outcome?;
                self.compute.launcher().stream().synchronize()?;
            }
            (Rehearsal::Recording(recording), Ok(())) => {
                recording.refused_before = None;
                recording.taken = recording.free.saturating_sub(self.device.free_memory()?);
                recording.waiting.pop_front();
                recording.count += 1;
            }
            (_, Err(error @ Error::EngineDead { .. })) => return Err(error),
            // A product that the library refuses ends the recording that it is part of. Our own kernels take its place,
            // in the same one, made anew.
            (Rehearsal::Recording(Recording { refused_before: Some(false), .. }), Err(_)) if refused => {
                self.graphs.abandon(self.compute.launcher().stream());
            }
            (_, Err(error)) => {
                self.graphs.abandon(self.compute.launcher().stream());
                let reason = format!("recording a step failed: {error}");
                tracing::warn!("decode steps are launched op by op, which is slower: {reason}");
                self.graphs.give_up(reason);
                self.rehearsal = Rehearsal::Done;
            }
            (Rehearsal::Done, Ok(())) => {}
        }
        Ok(())
    }

    fn end_rehearsal(&mut self) {
        let Rehearsal::Recording(Recording { waiting, begun, count, taken, .. }) =
            std::mem::replace(&mut self.rehearsal, Rehearsal::Done)
        else {
            return;
        };
        let (seconds, left_out) = (begun.elapsed().as_secs_f64(), waiting.len());
        tracing::info!(graphs = count, bytes = taken, seconds, "recorded decode steps");
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
