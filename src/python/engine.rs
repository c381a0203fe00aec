//! `Engine`: one loaded model. `rocmforge.LLM` and `rocmforge.AsyncLLM` are built on it.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use numpy::PyArray2;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::arrays::{BlockColumns, matrix, text, token_ids_up_to};
use super::events::{EventTuple, tuples};
use super::handle::{Handle, SIGNAL_INTERVAL, wait};
use super::isolation::PyRingInbox;
use super::logging::{flush, prepare};
use super::merged::LoopWaker;
use super::params::shortest;
use super::pooling::PyParams;
use super::requests::{PyInbox, prompt_argument};
use super::settings::args_with;
use super::snapshots::{self, ConfigFields};
use super::tokenizer::{PyTokenizer, absolute};
use crate::engine::{Engine, LoadProgress};
use crate::isolation::RingFiles;
use crate::{Error, Result};

#[pyclass(frozen, name = "Engine", module = "rocmforge._rocmforge")]
pub(super) struct PyEngine {
    handle: Arc<Handle>,
    model: PathBuf,
}

#[pymethods]
impl PyEngine {
    /// `settings` are those of `settings.rs`; `progress(done, total)` counts bytes.
    #[new]
    #[pyo3(signature = (model, *, progress=None, **settings))]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        progress: Option<Py<PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        prepare(py)?;
        let args = args_with(py, model.clone(), settings)?;
        let engine = with_progress(py, progress, |report| Engine::load(args, report));
        // Messages about the model are logged before it is used, or before its error is raised.
        flush(py);
        let engine = engine?;
        Ok(Self { handle: Handle::new(engine), model: absolute(model) })
    }

    /// Makes an inbox, without arguments for one blocking call. With an event loop, `callback` is called there when
    /// requests have news.
    #[pyo3(signature = (event_loop=None, callback=None))]
    fn inbox(&self, event_loop: Option<Py<PyAny>>, callback: Option<Py<PyAny>>) -> PyResult<PyInbox> {
        self.handle.engine()?;
        let waker = event_loop.zip(callback).map(|(event_loop, callback)| LoopWaker { event_loop, callback });
        Ok(PyInbox::new(Arc::clone(&self.handle), waker))
    }

    /// Makes what hands the requests of a parent process to the engine, and writes their outputs into a ring.
    fn ring_inbox(&self, memory: RawFd, written: RawFd, read: RawFd) -> PyResult<PyRingInbox> {
        self.handle.engine()?;
        Ok(PyRingInbox::open(Arc::clone(&self.handle), RingFiles { memory, written, read })?)
    }

    /// Token ids of a prompt that can be served with these parameters.
    ///
    /// # Errors
    /// `InvalidRequestError` for one that cannot; nothing is queued.
    fn prepare(&self, py: Python<'_>, prompt: &Bound<'_, PyAny>, params: PyParams<'_>) -> PyResult<Vec<u32>> {
        let engine = self.handle.engine()?;
        let prompt = prompt_argument(engine, prompt)?;
        let params = params.get();
        Ok(py.detach(|| engine.prepare(prompt, &params))?)
    }

    fn abort(&self, py: Python<'_>, request_id: &Bound<'_, PyString>) -> PyResult<bool> {
        let engine = self.handle.engine()?;
        let name = text("request id", request_id)?;
        Ok(py.detach(|| engine.abort(&name))?)
    }

    #[getter]
    fn tokenizer(&self) -> PyResult<PyTokenizer> {
        let engine = self.handle.engine()?;
        Ok(PyTokenizer::new(Arc::clone(engine.tokenizer()?), engine.chat_template().cloned(), self.model.clone()))
    }

    /// The resolved configuration.
    fn config(&self) -> PyResult<ConfigFields> {
        Ok(ConfigFields::from(self.handle.engine()?.config()))
    }

    /// The settings that the file recommends, by the names of `SamplingParams`.
    fn sampling_defaults<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let defaults = self.handle.engine()?.config().sampling_defaults;
        let dict = PyDict::new(py);
        let reals = [
            ("temperature", defaults.temperature),
            ("top_p", defaults.top_p),
            ("min_p", defaults.min_p),
            ("repetition_penalty", defaults.repetition_penalty),
        ];
        for (name, value) in reals {
            if let Some(value) = value {
                dict.set_item(name, shortest(value))?;
            }
        }
        if let Some(top_k) = defaults.top_k {
            dict.set_item("top_k", top_k)?;
        }
        Ok(dict)
    }

    /// A `rocmforge.Stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.handle.engine()?;
        let stats = py.detach(|| engine.stats());
        snapshots::stats(py, &stats)
    }

    /// A `rocmforge.RequestRecord`; `None` for a request that has not finished, or is forgotten.
    fn record<'py>(&self, py: Python<'py>, request_id: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let engine = self.handle.engine()?;
        let name = text("request id", request_id)?;
        let record = py.detach(|| engine.record(&name));
        record.map(|record| snapshots::request_record(py, &record)).transpose()
    }

    /// A `rocmforge.MemoryUsage`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.handle.engine()?;
        let memory = py.detach(|| engine.memory());
        snapshots::memory_usage(py, &memory)
    }

    /// An array per field of `rocmforge.stats.BLOCK_DTYPE`, by its name.
    fn block_map<'py>(&self, py: Python<'py>) -> PyResult<BlockColumns<'py>> {
        let engine = self.handle.engine()?;
        let blocks = py.detach(|| engine.block_map());
        Ok(BlockColumns::new(py, &blocks))
    }

    /// Describes the slots of recurrent states as `block_map` describes blocks.
    fn state_map<'py>(&self, py: Python<'py>) -> PyResult<BlockColumns<'py>> {
        let engine = self.handle.engine()?;
        let slots = py.detach(|| engine.state_map());
        Ok(BlockColumns::new(py, &slots))
    }

    fn reset_prefix_cache(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.interruptible(py, |engine| engine.reset_prefix_cache())
    }

    fn record_kv_events(&self, py: Python<'_>, max_events: usize) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| engine.record_kv_events(max_events))?)
    }

    fn stop_kv_events(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| engine.stop_kv_events())?)
    }

    /// Tuples as `rocmforge.kv_events` reads them, the earliest first.
    fn take_kv_events(&self, py: Python<'_>) -> PyResult<Vec<Option<EventTuple>>> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| engine.take_kv_events().map(tuples))?)
    }

    fn prompt_logits<'py>(
        &self,
        py: Python<'py>,
        prompt_token_ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let engine = self.handle.engine()?;
        let ids = token_ids_up_to("token_ids", prompt_token_ids, engine.config().max_model_len, "max_model_len")?;
        let rows = ids.len();
        let pending = py.detach(|| engine.start_prompt_logits(ids))?;
        let values = wait(py, pending.answer())?;
        matrix(py, values, rows)
    }

    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.interruptible(py, |engine| engine.check_integrity())
    }

    /// The requests that wait, by name, and what each waits for.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str)>> {
        let waiting = self.handle.interruptible(py, |engine| engine.waiting())?;
        Ok(waiting.into_iter().map(|(name, reason)| (name.to_string(), reason.as_str())).collect())
    }

    fn describe(&self) -> PyResult<String> {
        Ok(self.handle.engine()?.describe().to_owned())
    }

    /// Closes the engine; in a forked child there is nothing to close. After Ctrl-C the threads end unobserved.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.note_close();
        match self.handle.engine() {
            Ok(engine) => {
                while !py.detach(|| engine.close_within(SIGNAL_INTERVAL)) {
                    py.check_signals()?;
                }
            }
            Err(Error::Forked { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Whether `close` was called: not so for an engine that died.
    #[getter]
    fn was_closed(&self) -> bool {
        self.handle.was_closed()
    }

    /// Whether the engine is closed; it is in a forked child, where it can never serve.
    #[getter]
    fn is_closed(&self) -> bool {
        self.handle.engine().map_or(true, Engine::is_closed)
    }
}

/// Time between two looks at signals and calls of a Python progress callback.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` detached from the interpreter; its progress goes to `callback(done, total)`. Ctrl-C, or an exception of
/// the callback, stops it and is raised.
pub(super) fn with_progress<T: Send>(
    py: Python<'_>,
    callback: Option<Py<PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(LoadProgress) -> bool) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised: Option<PyErr> = None;
    let mut last = Instant::now();
    let mut report = |progress: LoadProgress| {
        if last.elapsed() < REPORT_INTERVAL && progress.done < progress.total {
            return true;
        }
        last = Instant::now();
        let reported = Python::attach(|py| {
            py.check_signals()?;
            callback.as_ref().map_or(Ok(()), |callback| callback.call1(py, (progress.done, progress.total)).map(drop))
        });
        raised = reported.err();
        raised.is_none()
    };
    let result = py.detach(|| work(&mut report));
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
