//! Recorded decode steps: launching one costs a single call instead of some ten per layer. All that differs between
//! steps is in device memory (`step`), so a recording serves every batch up to its size, with contexts up to any
//! length; but there is one for each number of splits that changes how attention is launched. Whatever else an op's
//! launch depends on must become part of `Key`. They are made at the load (`rehearse`).

use std::collections::HashMap;

use super::buckets::bucket;
use super::checks::Check;
use super::rehearsal::Wanted;
use super::step::StepInputs;
use super::{DeviceProperties, DeviceSlice, Function, Graph, Kernels, Stream, replay};
use crate::batch::Batch;
use crate::config::{GpuOptions, Platform};
use crate::{Error, Result};

/// Whether steps are recorded, or why not.
pub(super) type Usable = std::result::Result<(), String>;

/// Whether the settings and the driver's version allow recorded steps. With HIP 7.2 kernels of a repeated graph were
/// seen to read integers of an earlier step, on several GPUs; not so before (7.1) nor after it (7.13).
pub(super) fn wanted(options: &GpuOptions, properties: &DeviceProperties) -> Usable {
    let faulty = properties.platform == Platform::Amd && properties.driver_version == (7, 2);
    match options.graphs {
        Some(false) => Err("switched off (graphs=False or ROCMFORGE_GRAPHS=0)".to_owned()),
        None if faulty => Err(
            "HIP 7.2 may repeat a step with numbers of the one before; graphs=True or ROCMFORGE_GRAPHS=1 records all \
                 the same"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Whether steps may be recorded: `wanted` says so, and a graph that is repeated on this device reads its own numbers.
/// The graph is not tested where tests at load are off.
///
/// # Errors
/// `Error::EngineDead`.
pub(super) fn usable(kernels: &Kernels, stream: &Stream, options: &GpuOptions) -> Result<Usable> {
    match wanted(options, stream.device().properties()) {
        Ok(()) if options.self_test => replay::check(kernels, stream),
        known => Ok(known),
    }
}

/// How a step's ops come to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// They run when they are called.
    Run,
    /// They are recorded, over this many rows of tokens and of logits.
    Record { rows: usize },
    /// A recorded step is repeated in their place.
    Replay,
}

pub(super) struct Graphs {
    usable: Usable,
    /// The largest batch of single rows; 0 where no steps are recorded.
    most: usize,
    recorded: Vec<Recorded>,
    /// Index in `recorded` of the recording that serves a key.
    places: HashMap<Key, usize>,
    /// The next step is to be recorded as this, with the integers of this turn.
    next: Option<(Wanted, usize)>,
    state: State,
    /// Steps that found no room.
    left_out: usize,
}

struct Recorded {
    graph: Graph,
    /// Properties of a batch that its ops rely on: they are not called again, so each repetition checks them.
    checks: Vec<Check>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    context_splits: u32,
    /// Which of the host's buffers the step's integers are copied from.
    turn: usize,
}

enum State {
    /// Ops run as they come.
    Idle,
    /// Ops are recorded.
    Recording(Wanted),
    /// The recording of this number does the step.
    Replaying(usize),
}

impl Graphs {
    pub(super) fn new(usable: Usable, most: usize) -> Self {
        let most = if usable.is_ok() { most } else { 0 };
        let (recorded, places) = (Vec::new(), HashMap::new());
        Self { usable, most, recorded, places, next: None, state: State::Idle, left_out: 0 }
    }

    pub(super) fn usable(&self) -> &Usable {
        &self.usable
    }

    /// Notes that so many steps find no room.
    pub(super) fn leave_out(&mut self, steps: usize) {
        self.left_out = steps;
    }

    /// Steps that found no room.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    /// No step is repeated from here on.
    pub(super) fn give_up(&mut self, reason: String) {
        *self = Self::new(Err(reason), 0);
    }

    /// Rows that a batch of `rows` single rows is padded to.
    pub(super) fn padded(&self, rows: usize) -> usize {
        bucket(rows, self.most).unwrap_or(rows)
    }

    /// Lets the next step be recorded: it is a batch of these rows, with the first of these splits, and its integers
    /// have this turn.
    pub(super) fn record(&mut self, wanted: Wanted, turn: usize) {
        self.next = Some((wanted, turn));
    }

    /// The turn of the next step, if that is to be recorded.
    pub(super) fn next_turn(&self) -> Option<usize> {
        self.next.as_ref().map(|(_, turn)| *turn)
    }

    /// Begins the step of a batch of single rows, which `inputs` was given: repeats its recording, or makes it where
    /// that is what the step is for.
    ///
    /// # Errors
    /// The errors of the recorded ops for such a batch.
    pub(super) fn begin(
        &mut self,
        batch: &Batch,
        inputs: &mut StepInputs,
        stream: &Stream,
        copy_step: &Function,
        chosen: DeviceSlice<'_>,
    ) -> Result<Plan> {
        let Some(rows) = bucket(batch.num_tokens(), self.most) else { return Ok(Plan::Run) };
        if let Some((wanted, _)) = self.next.take() {
            stream.begin_capture()?;
            self.state = State::Recording(wanted);
            inputs.queue_copy(stream, copy_step, chosen)?;
            return Ok(Plan::Record { rows });
        }
        let key = Key { rows, context_splits: inputs.shape().context_splits, turn: inputs.turn() };
        let Some(&place) = self.places.get(&key) else { return Ok(Plan::Run) };
        self.recorded[place].checks.iter().try_for_each(|&check| inputs.check(batch, check))?;
        self.state = State::Replaying(place);
        Ok(Plan::Replay)
    }

    /// Ends a step whose ops are complete: runs its recording, or keeps the one that was made.
    pub(super) fn end(&mut self, inputs: &mut StepInputs, stream: &Stream) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Ok(()),
            State::Recording(wanted) => {
                let recorded = Recorded { graph: stream.end_capture()?, checks: inputs.checked().to_vec() };
                self.recorded.push(recorded);
                let place = self.recorded.len() - 1;
                let (rows, turn) = (wanted.rows, inputs.turn());
                let keys = wanted.context_splits.iter().map(|&context_splits| Key { rows, context_splits, turn });
                self.places.extend(keys.map(|key| (key, place)));
                Ok(())
            }
            State::Replaying(place) => {
                let recorded =
                    self.recorded.get(place).ok_or_else(|| Error::internal("a recorded step that is not there"))?;
                // SAFETY: a recording uses the engine's own buffers and modules, which live as long as the backend, on
                // its one stream; weights and cache are given to every step by the same decoder, and `begin` checked
                // the batch as the recorded ops did theirs.
                unsafe { stream.launch_graph(&recorded.graph)? };
                inputs.mark_copied(stream)
            }
        }
    }

    /// Ends a recording that an error cut short, so that the stream runs again.
    pub(super) fn abandon(&mut self, stream: &Stream) {
        if let State::Recording(_) = std::mem::replace(&mut self.state, State::Idle) {
            // The recording is of no use, and that it cannot be ended properly neither.
            let _ = stream.end_capture();
        }
    }
}
