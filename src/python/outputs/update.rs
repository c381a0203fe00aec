//! The new output of a request, in its Python form.

use numpy::PyArray1;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use super::output::Update;
use crate::Error;
use crate::engine::{FinishReason, RequestMetrics, SequenceOutput, StopReason, TokenLogprob, TokenLogprobs};
use crate::kv_cache::PrefixMiss;
use crate::tokenizer::Tokenizer;

/// The new output of a request since the last update.
#[pyclass(frozen, get_all, name = "RequestUpdate", module = "rocmforge._rocmforge")]
pub(in crate::python) struct PyRequestUpdate {
    /// One update for each sequence with new output.
    completions: Py<PyList>,
    /// True if nothing will follow.
    finished: bool,
    /// Log-probabilities of the prompt by position, delivered once; `None` at the first position.
    prompt_logprobs: Option<Py<PyList>>,
    /// The vector of an embedding request, delivered at its end.
    embedding: Option<Py<PyArray1<f32>>>,
    metrics: Py<PyUpdateMetrics>,
}

/// The new output of one sequence of a request.
#[pyclass(frozen, get_all, name = "CompletionUpdate", module = "rocmforge._rocmforge")]
pub(in crate::python) struct PyCompletionUpdate {
    index: usize,
    text: Py<PyString>,
    token_ids: Py<PyList>,
    finish_reason: Option<&'static str>,
    /// The stop token or the stop text.
    stop_reason: Option<Py<PyAny>>,
    /// One dictionary from token ids to `rocmforge.Logprob` for each new token; `None` without log-probabilities.
    logprobs: Option<Py<PyList>>,
    cumulative_logprob: Option<f64>,
    error: Option<String>,
}

/// The fields of `rocmforge.RequestMetrics`.
#[pyclass(frozen, get_all, name = "UpdateMetrics", module = "rocmforge._rocmforge")]
pub(in crate::python) struct PyUpdateMetrics {
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
    /// The error that ended the request, with `raise_errors`. Without it, only the error of a dead engine.
    pub(in crate::python) fn into_python(
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

/// Returns the finish reason's name in Python's public classes.
pub(super) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
        FinishReason::Timeout => "timeout",
        FinishReason::Error => "error",
    }
}

/// Returns the entries of `CompletionOutput.logprobs`: per position a dictionary from ids to `rocmforge.Logprob`, or
/// `None` at the first prompt token. A step of many sequences has hundreds of entries. So each is created once, and
/// directly by `tuple`, without the Python constructor of its class.
fn positions(
    py: Python<'_>,
    positions: impl Iterator<Item = Option<TokenLogprobs>>,
    tokenizer: Option<&Tokenizer>,
) -> PyResult<Py<PyList>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "rocmforge.outputs", "Logprob")?;
    let new = py.get_type::<PyTuple>().getattr(intern!(py, "__new__"))?;
    let list = PyList::empty(py);
    for position in positions {
        let Some(entries) = position else {
            list.append(py.None())?;
            continue;
        };
        let at_position = PyDict::new(py);
        for TokenLogprob { token_id, logprob, rank } in entries {
            let decoded = tokenizer.map(|tokenizer| tokenizer.decode(&[token_id], false)).transpose()?;
            at_position.set_item(token_id, new.call1((class, (logprob, rank, decoded)))?)?;
        }
        list.append(at_position)?;
    }
    Ok(list.unbind())
}
