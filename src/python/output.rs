//! The merged progress of one request, and its conversion to Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::Error;
use crate::config::SamplingParams;
use crate::engine::{FinishReason, RequestMetrics, SequenceOutput, StopReason, TokenLogprobs};
use crate::tokenizer::Tokenizer;

/// One of the `n` sequences of a request.
#[derive(Debug, Default)]
struct Sequence {
    token_ids: Vec<u32>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    cumulative_logprob: Option<f64>,
    finish_reason: Option<FinishReason>,
    stop_reason: Option<StopReason>,
    error: Option<Error>,
    /// Something came since the last `take`.
    has_news: bool,
}

/// What has come for a request and has not been taken. Each token is handed over, and converted, once: who wants all so
/// far puts the pieces together.
pub(super) struct Progress {
    /// Everything is kept for one delivery at the end.
    final_only: bool,
    sequences: Vec<Sequence>,
    num_unfinished: usize,
    /// Its consumer was told, and has not taken yet.
    announced: bool,
    wants_logprobs: bool,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    metrics: RequestMetrics,
}

impl Progress {
    pub(super) fn new(params: &SamplingParams, final_only: bool) -> Self {
        Self {
            final_only,
            sequences: (0..params.n).map(|_| Sequence::default()).collect(),
            num_unfinished: params.n,
            announced: false,
            wants_logprobs: params.logprobs.is_some(),
            prompt_logprobs: None,
            metrics: RequestMetrics::default(),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.num_unfinished == 0
    }

    /// Generated tokens that have not been taken.
    pub(super) fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.token_ids.len()).sum()
    }

    /// Adds what is new (outputs come in order of time); `true` when the consumer is to be told.
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
        sequence.error = output.error.filter(|_| output.finish_reason == Some(FinishReason::Error));
        sequence.has_news = true;
        self.num_unfinished -= usize::from(output.finish_reason.is_some());
        self.prompt_logprobs = output.prompt_logprobs.or(self.prompt_logprobs.take());
        self.metrics = output.metrics;
        let tell = !self.announced && (self.is_finished() || !self.final_only);
        self.announced |= tell;
        tell
    }

    /// `None` when nothing came since the last call.
    pub(super) fn take(&mut self) -> Option<Update> {
        if !std::mem::take(&mut self.announced) {
            return None;
        }
        Some(Update {
            sequences: self.take_sequences(),
            finished: self.is_finished(),
            wants_logprobs: self.wants_logprobs,
            prompt_logprobs: self.prompt_logprobs.take(),
            metrics: self.metrics,
        })
    }

    fn take_sequences(&mut self) -> Vec<(usize, Sequence)> {
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
}

/// The fields of `rocmforge.RequestMetrics`.
pub(super) type Metrics = (f64, Option<f64>, Option<f64>, Option<f64>, usize, usize);

pub(super) fn metrics_fields(m: &RequestMetrics) -> Metrics {
    (m.arrival_time, m.time_in_queue, m.time_to_first_token, m.total_time, m.num_cached_tokens, m.num_preemptions)
}

/// `(sequences, finished, prompt_logprobs, metrics)`, as `rocmforge/outputs.py` reads them.
type PyUpdate<'py> = (Bound<'py, PyList>, bool, Option<Bound<'py, PyList>>, Metrics);

impl Update {
    /// # Errors
    /// That of the request, when it ended with one: always with `raise_errors`, else only where the engine is dead.
    pub(super) fn into_python<'py>(
        self,
        py: Python<'py>,
        tokenizer: Option<&Tokenizer>,
        raise_errors: bool,
    ) -> PyResult<PyUpdate<'py>> {
        let raised = |error: &&Error| raise_errors || matches!(error, Error::EngineDead { .. });
        if let Some(error) = self.sequences.iter().filter_map(|(_, s)| s.error.as_ref()).find(raised) {
            return Err(error.clone().into());
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
                s.error.map(|error| error.to_string()),
            ))?;
        }
        let prompt = self.prompt_logprobs.map(|p| positions(py, p.into_iter(), tokenizer)).transpose()?;
        Ok((sequences, self.finished, prompt, metrics_fields(&self.metrics)))
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
