//! `Inbox`: submits requests to the engine and returns their outputs to Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::handle::Handle;
use super::outputs::merged::{LoopWaker, MergedOutputs};
use super::outputs::output::Progress;
use super::outputs::update::PyRequestUpdate;
use super::pooling::{PyParams, keeps_all};
use super::values::arrays::{integer, real, seconds, text, token_ids_up_to};
use super::values::image::{PyImage, pictures};
use crate::config::RequestParams;
use crate::engine::{AcceptedRequest, Engine, NewRequest, OutputSink, Prompt, RequestId};
use crate::{Error, Result};

#[pyclass(frozen, name = "Inbox", module = "rocmforge._rocmforge")]
pub(super) struct PyInbox {
    handle: Arc<Handle>,
    outputs: Arc<MergedOutputs>,
}

/// A request that the engine has accepted.
#[pyclass(frozen, get_all, name = "Accepted", module = "rocmforge._rocmforge")]
pub(super) struct PyAccepted {
    /// The key of the request in the inbox.
    key: u64,
    /// The request's name: the given one, or one that the engine generated.
    request_id: String,
    prompt_token_ids: Vec<u32>,
}

/// Reads text or token ids. An iterable is read at most up to the maximum length of a prompt.
pub(super) fn prompt_argument(engine: &Engine, value: &Bound<'_, PyAny>) -> PyResult<Prompt> {
    match value.cast::<PyString>() {
        Ok(value) => Ok(Prompt::Text(text("prompt", value)?)),
        Err(_) => {
            let limit = engine.config().max_model_len;
            Ok(Prompt::TokenIds(token_ids_up_to("prompt token ids", value, limit, "max_model_len")?))
        }
    }
}

/// The arguments of a request beside its prompt and its parameters.
pub(super) struct Options<'a, 'py> {
    pub(super) images: Vec<Bound<'py, PyImage>>,
    pub(super) request_id: Option<&'a Bound<'py, PyString>>,
    pub(super) priority: Option<&'a Bound<'py, PyAny>>,
    pub(super) timeout: Option<&'a Bound<'py, PyAny>>,
    pub(super) cache_salt: Option<&'a Bound<'py, PyString>>,
    pub(super) client: Option<&'a Bound<'py, PyString>>,
}

/// Creates a request from Python's arguments.
pub(super) fn new_request(
    engine: &Engine,
    sink: Arc<dyn OutputSink>,
    prompt: &Bound<'_, PyAny>,
    params: RequestParams,
    options: Options<'_, '_>,
) -> PyResult<NewRequest> {
    let Options { images, request_id, priority, timeout, cache_salt, client } = options;
    Ok(NewRequest {
        name: request_id.map(|name| text("request id", name)).transpose()?,
        prompt: prompt_argument(engine, prompt)?,
        images: pictures(&images),
        params,
        priority: priority.map_or(Ok(0), |priority| integer("priority", priority))?,
        timeout: timeout.map(|timeout| PyResult::Ok(seconds("timeout", real("timeout", timeout)?)?)).transpose()?,
        cache_salt: cache_salt.map(|salt| text("cache_salt", salt)).transpose()?,
        client: client.map(|client| text("client", client)).transpose()?,
        sink,
    })
}

#[pymethods]
impl PyAccepted {
    #[new]
    fn new(key: u64, request_id: String, prompt_token_ids: Vec<u32>) -> Self {
        Self { key, request_id, prompt_token_ids }
    }
}

impl PyInbox {
    pub(super) fn new(handle: Arc<Handle>, waker: Option<LoopWaker>) -> Self {
        Self { handle, outputs: Arc::new(MergedOutputs::new(waker)) }
    }

    fn submit(&self, request: NewRequest, final_only: bool) -> Result<PyAccepted> {
        let engine = self.handle.engine()?;
        let progress = Progress::new(&request.params, final_only);
        let mut announced = None;
        let accepted = engine.add_request(request, |id| {
            self.outputs.expect(id, progress);
            announced = Some(id);
        });
        if let (Err(_), Some(id)) = (&accepted, announced) {
            self.outputs.forget(id);
        }
        let AcceptedRequest { id, name, prompt_token_ids } = accepted?;
        Ok(PyAccepted { key: id.0, request_id: name, prompt_token_ids: prompt_token_ids.to_vec() })
    }
}

#[pymethods]
impl PyInbox {
    /// Hands a request to the engine. `final_only` keeps everything for one delivery at the end.
    #[pyo3(name = "submit", signature = (prompt, params, *, images=Vec::new(), request_id=None, priority=None,
        timeout=None, cache_salt=None, client=None, final_only=false), text_signature = "($self, prompt, params, *, \
        images=(), request_id=None, priority=0, timeout=None, cache_salt=None, client=None, final_only=False)")]
    #[allow(clippy::too_many_arguments)] // they are keyword arguments in Python
    fn py_submit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        params: PyParams<'_>,
        images: Vec<Bound<'_, PyImage>>,
        request_id: Option<&Bound<'_, PyString>>,
        priority: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyString>>,
        client: Option<&Bound<'_, PyString>>,
        final_only: bool,
    ) -> PyResult<PyAccepted> {
        let params = params.get();
        let final_only = keeps_all(&params, final_only);
        let engine = self.handle.engine()?;
        let options = Options { images, request_id, priority, timeout, cache_salt, client };
        let request = new_request(engine, self.outputs.clone(), prompt, params, options)?;
        Ok(py.detach(|| self.submit(request, final_only))?)
    }

    /// Returns the keys of requests with new outputs, without waiting.
    fn ready(&self) -> Vec<u64> {
        self.outputs.ready().into_iter().map(|id| id.0).collect()
    }

    /// Returns the same as `ready`, after waiting for new outputs for at most `timeout` seconds.
    ///
    /// # Errors
    /// `EngineDeadError` if requests wait here and the engine has ended: no more outputs can arrive.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<u64>> {
        let timeout = seconds("timeout", timeout)?;
        let engine = self.handle.engine()?;
        // Checked before the wait, so that the wait returns everything that was delivered until then.
        let ended = engine.has_ended();
        let ready = py.detach(|| self.outputs.wait(timeout));
        py.check_signals()?;
        if ended && ready.is_empty() && self.outputs.num_requests() > 0 {
            return Err(Error::EngineDead { reason: "it was closed while requests were running".into() }.into());
        }
        Ok(ready.into_iter().map(|id| id.0).collect())
    }

    /// Takes the new outputs of a request; `None` if there are none.
    ///
    /// # Errors
    /// The error of a request that ended with one. Without `raise_errors`, only `EngineDeadError` is raised. All other
    /// errors are then reported in the sequences that they ended.
    #[pyo3(signature = (key, *, raise_errors=true))]
    fn take(&self, py: Python<'_>, key: u64, raise_errors: bool) -> PyResult<Option<PyRequestUpdate>> {
        let Some(update) = self.outputs.take(RequestId(key)) else { return Ok(None) };
        let tokenizer = self.handle.engine()?.tokenizer().ok().map(Arc::as_ref);
        Ok(Some(update.into_python(py, tokenizer, raise_errors)?))
    }

    /// Aborts a request, unless it has finished. It delivers no more outputs.
    fn forget(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        let engine = self.handle.engine()?;
        let id = RequestId(key);
        match self.outputs.forget(id) {
            true => Ok(py.detach(|| abort(engine, [id]))?),
            false => Ok(()),
        }
    }

    /// Aborts all requests that have not finished.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| abort(engine, self.outputs.close()))?)
    }

    /// Generated tokens of the requests that are still here.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.outputs.num_tokens()
    }

    fn __repr__(&self) -> String {
        format!("Inbox(num_requests={})", self.outputs.num_requests())
    }
}

/// A dropped inbox aborts its requests, since nobody waits for them. The usual cause is a closed event loop.
impl Drop for PyInbox {
    fn drop(&mut self) {
        // In a forked child the locks may be held forever, and the requests belong to the parent.
        if let Ok(engine) = self.handle.engine() {
            // Only a dead engine refuses, and it has ended its requests.
            let _ = abort(engine, self.outputs.close());
        }
    }
}

/// Aborts requests. A dead engine has already ended them.
pub(super) fn abort(engine: &Engine, ids: impl IntoIterator<Item = RequestId>) -> Result<()> {
    ids.into_iter().try_for_each(|id| match engine.abort_id(id) {
        Err(Error::EngineDead { .. }) => Ok(()),
        result => result,
    })
}
