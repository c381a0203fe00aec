//! News of a request, as Python sees them.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::output::Update;
use crate::Error;
use crate::engine::{FinishReason, RequestMetrics, SequenceOutput, StopReason, TokenLogprobs};
use crate::kv_cache::PrefixMiss;
use crate::tokenizer::Tokenizer;

/// News of a request since the last update.
#[pyclass(frozen, get_all, name = "RequestUpdate", module = "rocmforge._rocmforge")]
pub(super) struct PyRequestUpdate {
    /// A `CompletionUpdate` for each sequence with news.
    completions: Py<PyList>,
    /// Whether nothing will follow.
    finished: bool,
    /// Log-probabilities of the prompt, which come once: a list of `TokenLogprob` per position, `None` at the first.
    prompt_logprobs: Option<Py<PyList>>,
    /// The vector of a request for one.
    embedding: Option<Py<PyArray1<f32>>>,
    metrics: Py<PyUpdateMetrics>,
}

/// News of one of a request's sequences.
#[pyclass(frozen, get_all, name = "CompletionUpdate", module = "rocmforge._rocmforge")]
pub(super) struct PyCompletionUpdate {
    index: usize,
    text: Py<PyString>,
    token_ids: Py<PyList>,
    finish_reason: Option<&'static str>,
    /// A token id or a text.
    stop_reason: Option<Py<PyAny>>,
    /// A list of `TokenLogprob` per new token; `None` where none are wanted.
    logprobs: Option<Py<PyList>>,
    cumulative_logprob: Option<f64>,
    error: Option<String>,
}

/// The log-probability of one token at one position.
#[pyclass(frozen, get_all, name = "TokenLogprob", module = "rocmforge._rocmforge")]
pub(super) struct PyTokenLogprob {
    token_id: u32,
    logprob: f32,
    /// 1 is the most likely token.
    rank: u32,
    /// `None` for a model without a tokenizer.
    decoded_token: Option<String>,
}

/// The fields of `rocmforge.RequestMetrics`.
#[pyclass(frozen, get_all, name = "UpdateMetrics", module = "rocmforge._rocmforge")]
pub(super) struct PyUpdateMetrics {
    arrival_time: f64,
    time_in_queue: Option<f64>,
    time_to_first_token: Option<f64>,
    total_time: Option<f64>,
    num_cached_tokens: usize,
    prefix_miss: Option<&'static str>,
    num_preemptions: usize,
}

impl From<&RequestMetrics> for PyUpdateMetrics {
    fn from(metrics: &RequestMetrics) -> Self {
        Self {
            arrival_time: metrics.arrival_time,
            time_in_queue: metrics.time_in_queue,
            time_to_first_token: metrics.time_to_first_token,
            total_time: metrics.total_time,
            num_cached_tokens: metrics.num_cached_tokens,
            prefix_miss: metrics.prefix_miss.map(PrefixMiss::as_str),
            num_preemptions: metrics.num_preemptions,
        }
    }
}

impl Update {
    /// # Errors
    /// The error of the request, when it ended with one: always with `raise_errors`, else only where the engine is
    /// dead.
    pub(super) fn into_python(
        self,
        py: Python<'_>,
        tokenizer: Option<&Tokenizer>,
        raise_errors: bool,
    ) -> PyResult<PyRequestUpdate> {
        let raised = |error: &&Error| raise_errors || matches!(error, Error::EngineDead { .. });
        if let Some(error) = self.sequences.iter().filter_map(|sequence| sequence.error.as_ref()).find(raised) {
            return Err(error.clone().into());
        }
        let completions = PyList::empty(py);
        for sequence in self.sequences {
            completions.append(completion(py, sequence, self.wants_logprobs, tokenizer)?)?;
        }
        let prompt_logprobs = self.prompt_logprobs.map(|prompt| positions(py, prompt.into_iter(), tokenizer));
        Ok(PyRequestUpdate {
            completions: completions.unbind(),
            finished: self.finished,
            prompt_logprobs: prompt_logprobs.transpose()?,
            embedding: self.embedding.map(|vector| PyArray1::from_vec(py, vector).unbind()),
            metrics: Py::new(py, PyUpdateMetrics::from(&self.metrics))?,
        })
    }
}

fn completion(
    py: Python<'_>,
    sequence: SequenceOutput,
    wants_logprobs: bool,
    tokenizer: Option<&Tokenizer>,
) -> PyResult<PyCompletionUpdate> {
    let logprobs = wants_logprobs.then(|| positions(py, sequence.logprobs.into_iter().map(Some), tokenizer));
    let stop_reason = sequence.stop_reason.map(|reason| match reason {
        StopReason::Token(id) => id.into_pyobject(py).map(|id| id.into_any().unbind()).map_err(PyErr::from),
        StopReason::String(text) => Ok(PyString::new(py, &text).into_any().unbind()),
    });
    Ok(PyCompletionUpdate {
        index: sequence.index,
        text: PyString::new(py, &sequence.text).unbind(),
        token_ids: PyList::new(py, sequence.token_ids)?.unbind(),
        finish_reason: sequence.finish_reason.map(reason_name),
        stop_reason: stop_reason.transpose()?,
        logprobs: logprobs.transpose()?,
        cumulative_logprob: sequence.cumulative_logprob,
        error: sequence.error.map(|error| error.to_string()),
    })
}

/// The finish reason's name in Python's public classes.
pub(super) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Timeout => "timeout",
        FinishReason::Error => "error",
    }
}

/// Lists the `TokenLogprob`s of each position, with `None` where there are none (the first prompt token).
fn positions(
    py: Python<'_>,
    positions: impl Iterator<Item = Option<TokenLogprobs>>,
    tokenizer: Option<&Tokenizer>,
) -> PyResult<Py<PyList>> {
    let list = PyList::empty(py);
    for position in positions {
        let Some(entries) = position else {
            list.append(py.None())?;
            continue;
        };
        let at_position = PyList::empty(py);
        for entry in entries {
            let decoded = tokenizer.map(|tokenizer| tokenizer.decode(&[entry.token_id], false));
            at_position.append(PyTokenLogprob {
                token_id: entry.token_id,
                logprob: entry.logprob,
                rank: entry.rank,
                decoded_token: decoded.transpose()?,
            })?;
        }
        list.append(at_position)?;
    }
    Ok(list.unbind())
}
