//! `Inbox`: hands requests to the engine and their outputs to Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::arrays::{seconds, text, token_ids};
use super::handle::Handle;
use super::inbox::{Inbox, LoopWaker};
use super::output::Progress;
use super::params::PySamplingParams;
use crate::config::OutputKind;
use crate::engine::{Engine, NewRequest, Prompt, RequestId};
use crate::{Error, Result};

#[pyclass(frozen, name = "Inbox", module = "rocmforge._rocmforge")]
pub(super) struct PyInbox {
    handle: Arc<Handle>,
    inbox: Arc<Inbox>,
}

/// Text, or what `token_ids` takes.
fn prompt_argument(value: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    match value.cast::<PyString>() {
        Ok(value) => Ok(Prompt::Text(text("prompt", value)?)),
        Err(_) => Ok(Prompt::TokenIds(token_ids("prompt token ids", value)?)),
    }
}

impl PyInbox {
    pub(super) fn new(handle: Arc<Handle>, waker: Option<LoopWaker>) -> Self {
        Self { handle, inbox: Arc::new(Inbox::new(waker)) }
    }

    /// Tokenises before the inbox is locked: outputs of other requests pass meanwhile.
    fn submit(&self, mut request: NewRequest, kind: OutputKind) -> Result<(RequestId, String, Vec<u32>)> {
        let engine = self.handle.engine()?;
        if let Prompt::Text(text) = &request.prompt {
            request.prompt = Prompt::TokenIds(engine.tokenizer()?.encode(text, true, false)?);
        }
        let progress = Progress::new(&request.params, kind);
        let submitted = self.inbox.register(progress, || {
            let accepted = engine.add_request(request)?;
            Ok((accepted.id, (accepted.name, accepted.prompt_token_ids)))
        });
        let (id, (name, prompt_token_ids)) = submitted?;
        Ok((id, name, prompt_token_ids))
    }
}

#[pymethods]
impl PyInbox {
    /// `(id, request_id, prompt_token_ids)`. `final_only` keeps everything for one delivery at the end.
    #[pyo3(name = "submit", signature = (prompt, params, *, request_id=None, priority=0, timeout=None, cache_salt=None, final_only=false))]
    #[allow(clippy::too_many_arguments)] // they are keyword arguments in Python
    fn py_submit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        params: &Bound<'_, PySamplingParams>,
        request_id: Option<String>,
        priority: i32,
        timeout: Option<f64>,
        cache_salt: Option<String>,
        final_only: bool,
    ) -> PyResult<(u64, String, Vec<u32>)> {
        let params = params.get().0.clone();
        let kind = if final_only { OutputKind::FinalOnly } else { params.output_kind };
        let request = NewRequest {
            name: request_id,
            prompt: prompt_argument(prompt)?,
            params,
            priority,
            timeout: timeout.map(|timeout| seconds("timeout", timeout)).transpose()?,
            cache_salt,
            sink: self.inbox.clone(),
        };
        let (id, name, prompt_token_ids) = py.detach(|| self.submit(request, kind))?;
        Ok((id.0, name, prompt_token_ids))
    }

    /// Ids of requests with news, at once.
    fn ready(&self) -> Vec<u64> {
        self.inbox.ready().into_iter().map(|id| id.0).collect()
    }

    /// As `ready`, after waiting for at most `timeout` seconds.
    ///
    /// # Errors
    /// `EngineDeadError` when requests wait here and the engine is closed: nothing will come any more.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<u64>> {
        let timeout = seconds("timeout", timeout)?;
        let engine = self.handle.engine()?;
        let closed = engine.is_closed();
        let ready = py.detach(|| self.inbox.wait(timeout));
        py.check_signals()?;
        if closed && ready.is_empty() && self.inbox.num_requests() > 0 {
            return Err(Error::EngineDead { reason: "it was closed while requests were running".into() }.into());
        }
        Ok(ready.into_iter().map(|id| id.0).collect())
    }

    /// `(sequences, finished, prompt_logprobs, metrics)`, or `None` when there is no news.
    fn take<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(update) = self.inbox.take(RequestId(key)) else { return Ok(None) };
        let update = update.into_python(py, self.handle.engine()?.tokenizer().ok().map(Arc::as_ref))?;
        Ok(Some(update.into_pyobject(py)?.into_any()))
    }

    /// Aborts the request unless it has finished; no more is heard of it.
    fn forget(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        let engine = self.handle.engine()?;
        let id = RequestId(key);
        match self.inbox.forget(id) {
            true => Ok(py.detach(|| abort(engine, [id]))?),
            false => Ok(()),
        }
    }

    /// Aborts all of its requests that have not finished.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| abort(engine, self.inbox.close()))?)
    }

    /// Generated tokens of the requests that have not been taken to their end.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.inbox.num_tokens()
    }

    fn __repr__(&self) -> String {
        format!("Inbox(num_requests={})", self.inbox.num_requests())
    }
}

/// A dead engine has ended its requests already.
fn abort(engine: &Engine, ids: impl IntoIterator<Item = RequestId>) -> Result<()> {
    ids.into_iter().try_for_each(|id| match engine.abort_id(id) {
        Err(Error::EngineDead { .. }) => Ok(()),
        result => result,
    })
}
