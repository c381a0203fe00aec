//! Captured decode steps: a replay costs one call instead of about ten launches per layer.
//!
//! All values that differ between steps are in device memory (`step`). A captured graph therefore serves every batch up
//! to its size, with contexts of any length. Only the number of context splits changes how attention is launched, so
//! there is one graph for each such launch. Anything else that an op's launch depends on must become part of `Key`.
//! Graphs are captured at load (`steps`).

use std::collections::HashMap;

use super::buckets::bucket;
use super::replay_check;
use super::steps::Wanted;
use crate::batch::Batch;
use crate::config::{GpuOptions, Platform};
use crate::step::StepInputs;
use crate::step::checks::Check;
use crate::{DeviceProperties, DeviceSlice, Function, Graph, Kernels, Stream};
use crate::{Error, Result};

/// `Ok` if steps are captured, else the reason why not.
pub(crate) type Usable = std::result::Result<(), String>;

/// Tells if the settings and the driver's version allow captured graphs. With HIP 7.2, kernels of a replayed graph were
/// seen to read integers of an earlier step, on several GPUs. HIP 7.1 and 7.13 do not do that.
pub(crate) fn wanted(options: &GpuOptions, properties: &DeviceProperties) -> Usable {
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

/// Tells if steps may be captured: `wanted` allows it, and a graph replayed on this device reads its own integers. If
/// not, kernels launched one by one have to read theirs. Nothing is tested if the self-test is off.
///
/// # Errors
/// `Error::Device` if kernels do not read what the host has written; `Error::EngineDead`.
pub(crate) fn usable(kernels: &Kernels, stream: &Stream, options: &GpuOptions) -> Result<Usable> {
    let properties = stream.device().properties();
    let wanted = wanted(options, properties);
    if !options.self_test {
        return Ok(wanted);
    }
    let usable = match wanted {
        Ok(()) => replay_check::check_graphs(kernels, stream)?,
        unwanted => unwanted,
    };
    if usable.is_err() {
        let found =
            replay_check::check_eager(replay_check::functions(kernels)?, stream, replay_check::EAGER_REPETITIONS)?;
        found.map_err(|wrong| Error::Device {
            device: properties.label(),
            problem: format!("{wrong}: no result can be right; update ROCm and the kernel, or use device=\"cpu\""),
        })?;
    }
    Ok(usable)
}

/// How a step's ops are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Each op runs when it is called.
    Run,
    /// Ops are captured, over this many token rows and as many logits rows.
    Capture { rows: usize },
    /// A captured step is replayed instead of calling the ops.
    Replay,
}

pub(crate) struct Graphs {
    usable: Usable,
    /// The largest batch of single rows; 0 if no steps are captured.
    most: usize,
    captured: Vec<Captured>,
    /// Index in `captured` of the graph for a key.
    places: HashMap<Key, usize>,
    /// The capture of the next step, and the turn of the buffer that holds its integers.
    next: Option<(Wanted, usize)>,
    state: State,
    /// Number of steps without room for a graph.
    left_out: usize,
}

struct Captured {
    graph: Graph,
    /// Properties of a batch that its ops rely on. Ops are not called again in a replay, so each replay checks them.
    checks: Vec<Check>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    context_splits: u32,
    /// The host buffer from which the step's integers are copied.
    turn: usize,
}

enum State {
    /// Each op runs when it is called.
    Idle,
    /// Ops are captured.
    Capturing(Wanted),
    /// The captured graph of this index is replayed.
    Replaying(usize),
}

impl Graphs {
    pub(crate) fn new(usable: Usable, most: usize) -> Self {
        let most = if usable.is_ok() { most } else { 0 };
        let (captured, places) = (Vec::new(), HashMap::new());
        Self { usable, most, captured, places, next: None, state: State::Idle, left_out: 0 }
    }

    pub(crate) fn usable(&self) -> &Usable {
        &self.usable
    }

    /// Notes that this many steps have no room for a graph.
    pub(crate) fn leave_out(&mut self, steps: usize) {
        self.left_out = steps;
    }

    /// Returns the number of steps without room for a graph.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Captures no batch of more rows than this. Call it before the first capture.
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = self.most.min(most);
    }

    /// Returns the most rows of a captured batch; 0 if no steps are captured.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Stops using captured graphs.
    pub(crate) fn give_up(&mut self, reason: String) {
        *self = Self::new(Err(reason), 0);
    }

    /// Returns the rows that a batch of `rows` single rows is padded to.
    pub(crate) fn padded(&self, rows: usize) -> usize {
        bucket(rows, self.most).unwrap_or(rows)
    }

    /// Requests that the next step be captured. It is a batch of these rows with the first of these splits, and its
    /// integers are in the buffer of this turn.
    pub(crate) fn capture(&mut self, wanted: Wanted, turn: usize) {
        self.next = Some((wanted, turn));
    }

    /// Returns the turn of the next step, if it will be captured.
    pub(crate) fn next_turn(&self) -> Option<usize> {
        self.next.as_ref().map(|(_, turn)| *turn)
    }

    /// Begins the step of a batch of single rows, which `inputs` already holds: replays its graph, or captures it if
    /// requested.
    ///
    /// # Errors
    /// The errors of the captured ops for such a batch.
    pub(crate) fn begin(
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
            self.state = State::Capturing(wanted);
            inputs.queue_copy(stream, copy_step, chosen)?;
            return Ok(Plan::Capture { rows });
        }
        let key = Key { rows, context_splits: inputs.shape().context_splits, turn: inputs.turn() };
        let Some(&place) = self.places.get(&key) else { return Ok(Plan::Run) };
        self.captured[place].checks.iter().try_for_each(|&check| inputs.check(batch, check))?;
        self.state = State::Replaying(place);
        Ok(Plan::Replay)
    }

    /// Ends a step whose ops are complete: launches its graph, or keeps the new one.
    pub(crate) fn end(&mut self, inputs: &mut StepInputs, stream: &Stream) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Ok(()),
            State::Capturing(wanted) => {
                let captured = Captured { graph: stream.end_capture()?, checks: inputs.checked().to_vec() };
                self.captured.push(captured);
                let place = self.captured.len() - 1;
                let (rows, turn) = (wanted.rows, inputs.turn());
                let keys = wanted.context_splits.iter().map(|&context_splits| Key { rows, context_splits, turn });
                self.places.extend(keys.map(|key| (key, place)));
                Ok(())
            }
            State::Replaying(place) => {
                let captured =
                    self.captured.get(place).ok_or_else(|| Error::internal("a captured step that is not there"))?;
                // SAFETY: a captured graph uses the engine's own buffers and modules, which live as long as the
                // backend, on its one stream. The same decoder gives weights and cache to every step, and `begin`
                // checked the batch as the captured ops did theirs.
                unsafe { stream.launch_graph(&captured.graph)? };
                inputs.mark_copied(stream)
            }
        }
    }

    /// Ends a capture after an error, which makes the stream usable again.
    pub(crate) fn abandon(&mut self, stream: &Stream) {
        if let State::Capturing(_) = std::mem::replace(&mut self.state, State::Idle) {
            // The capture is discarded, so an error of its end does not matter.
            let _ = stream.end_capture();
        }
    }
}
