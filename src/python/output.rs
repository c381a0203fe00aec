//! The merged progress of one request, and its conversion to Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::Error;
use crate::config::{OutputKind, SamplingParams};
use crate::engine::{FinishReason, RequestMetrics, SequenceOutput, StopReason, TokenLogprobs};
use crate::tokenizer::Tokenizer;

/// One of the `n` sequences of a request.
#[derive(Debug, Clone, Default)]
struct Sequence {
    token_ids: Vec<u32>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    cumulative_logprob: Option<f64>,
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
    /// Something came since the last `take`.
    has_news: bool,
}

/// What has come for a request and, for deltas, has not been taken.
pub(super) struct Progress {
    kind: OutputKind,
    sequences: Vec<Sequence>,
    num_unfinished: usize,
    /// Its consumer was told, and has not taken yet.
    announced: bool,
    wants_logprobs: bool,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    metrics: RequestMetrics,
    error: Option<Error>,
}

impl Progress {
    pub(super) fn new(params: &SamplingParams, kind: OutputKind) -> Self {
        Self {
            kind,
            sequences: vec![Sequence::default(); params.n],
            num_unfinished: params.n,
            announced: false,
            wants_logprobs: params.logprobs.is_some(),
            prompt_logprobs: None,
            metrics: RequestMetrics::default(),
            error: None,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.num_unfinished == 0
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.token_ids.len()).sum()
    }

    /// Adds what is new; `true` when the consumer is to be told.
    pub(super) fn merge(&mut self, output: SequenceOutput) -> bool {
        let Some(sequence) = self.sequences.get_mut(output.index) else { return false };
        if sequence.finish_reason.is_some() {
            return false;
        }
        sequence.token_ids.extend(output.token_ids);
        sequence.text.push_str(&output.text);
        sequence.logprobs.extend(output.logprobs);
        sequence.cumulative_logprob = output.cumulative_logprob.or(sequence.cumulative_logprob);
        sequence.finish_reason = output.finish_reason;
        sequence.stop_reason = output.stop_reason;
        sequence.has_news = true;
        self.num_unfinished -= usize::from(output.finish_reason.is_some());
        self.prompt_logprobs = output.prompt_logprobs.or(self.prompt_logprobs.take());
        self.metrics = output.metrics;
        if output.finish_reason == Some(FinishReason::Error) {
            self.error = output.error.or(self.error.take());
        }
        let tell = !self.announced && (self.is_finished() || self.kind != OutputKind::FinalOnly);
        self.announced |= tell;
        tell
    }

    /// `None` when nothing came since the last call.
    pub(super) fn take(&mut self) -> Option<Update> {
        if !std::mem::take(&mut self.announced) {
            return None;
        }
        let sequences = match self.kind {
            OutputKind::Delta => self.take_delta(),
            OutputKind::Cumulative if !self.is_finished() => self.sequences.iter().cloned().enumerate().collect(),
            OutputKind::Cumulative | OutputKind::FinalOnly => {
                std::mem::take(&mut self.sequences).into_iter().enumerate().collect()
            }
        };
        Some(Update {
            sequences,
            finished: self.is_finished(),
            wants_logprobs: self.wants_logprobs,
            prompt_logprobs: self.prompt_logprobs.take(),
            metrics: self.metrics,
            error: self.error.take(),
        })
    }

    fn take_delta(&mut self) -> Vec<(usize, Sequence)> {
        let fresh = |sequence: &mut Sequence| {
            let rest = Sequence {
                cumulative_logprob: sequence.cumulative_logprob,
                finish_reason: sequence.finish_reason,
                ..Sequence::default()
            };
            std::mem::replace(sequence, rest)
        };
        self.sequences.iter_mut().enumerate().filter(|(_, s)| s.has_news).map(|(i, s)| (i, fresh(s))).collect()
    }
}

/// What a consumer takes at once.
pub(super) struct Update {
    sequences: Vec<(usize, Sequence)>,
    pub(super) finished: bool,
    wants_logprobs: bool,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    metrics: RequestMetrics,
    error: Option<Error>,
}

/// The fields of `rocmforge.RequestMetrics`.
type Metrics = (f64, Option<f64>, Option<f64>, Option<f64>, usize, usize);

/// `(sequences, finished, prompt_logprobs, metrics)`, as `rocmforge/outputs.py` reads them.
type PyUpdate<'py> = (Bound<'py, PyList>, bool, Option<Bound<'py, PyList>>, Metrics);

impl Update {
    /// # Errors
    /// That of the request, when it ended with one.
    pub(super) fn into_python<'py>(self, py: Python<'py>, tokenizer: Option<&Tokenizer>) -> PyResult<PyUpdate<'py>> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        let sequences = PyList::empty(py);
        for (index, s) in self.sequences {
            let logprobs = match self.wants_logprobs {
                true => Some(positions(py, s.logprobs.into_iter().map(Some), tokenizer)?),
                false => None,
            };
            let finish_reason = s.finish_reason.map(reason_name);
            let stop_reason = s.stop_reason.map(|reason| match reason {
                StopReason::Token(id) => id.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
                StopReason::String(text) => text.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
            });
            let stop_reason = stop_reason.transpose()?;
            sequences.append((
                index,
                s.text,
                s.token_ids,
                finish_reason,
                stop_reason,
                logprobs,
                s.cumulative_logprob,
            ))?;
        }
        let prompt = self.prompt_logprobs.map(|p| positions(py, p.into_iter(), tokenizer)).transpose()?;
        let m = self.metrics;
        let metrics = (
            m.arrival_time,
            m.time_in_queue,
            m.time_to_first_token,
            m.total_time,
            m.num_cached_tokens,
            m.num_preemptions,
        );
        Ok((sequences, self.finished, prompt, metrics))
    }
}

pub(super) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Timeout => "timeout",
        FinishReason::Error => "error",
    }
}

/// Per position `{token_id: (logprob, rank, text)}`, or `None` where there is none (the first prompt token).
fn positions<'py>(
    py: Python<'py>,
    positions: impl Iterator<Item = Option<TokenLogprobs>>,
    tokenizer: Option<&Tokenizer>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for position in positions {
        let Some(entries) = position else {
            list.append(py.None())?;
            continue;
        };
        let by_token = PyDict::new(py);
        for entry in entries {
            let text = tokenizer.map(|tokenizer| tokenizer.decode(&[entry.token_id], false)).transpose()?;
            by_token.set_item(entry.token_id, (entry.logprob, entry.rank, text))?;
        }
        list.append(by_token)?;
    }
    Ok(list)
}
