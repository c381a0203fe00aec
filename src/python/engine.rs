//! `Engine`: one loaded model. `rocmforge.LLM` and `rocmforge.AsyncLLM` are built on it.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use numpy::PyArray2;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::events::{EventTuple, tuples};
use super::handle::{Handle, SIGNAL_INTERVAL, wait};
use super::isolation::PyRingInbox;
use super::logging::{flush, prepare};
use super::outputs::merged::LoopWaker;
use super::outputs::snapshots::{self, ConfigFields};
use super::params::shortest;
use super::pooling::PyParams;
use super::requests::{PyInbox, prompt_argument};
use super::settings::args_with;
use super::tokenizer::{PyTokenizer, absolute};
use super::values::arrays::{BlockColumns, matrix, text, token_ids_up_to};
use super::values::image::{PyImage, pictures};
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
    /// `settings` are those of `settings.rs`. `progress(done, total)` counts bytes.
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
        // Messages about the model are logged before the model is used, or before the error is raised.
        flush(py);
        let engine = engine?;
        Ok(Self { handle: Handle::new(engine), model: absolute(model) })
    }

    /// Returns a queue on which outputs arrive. Without arguments, it serves one blocking call. With an event loop,
    /// `callback` is called there when requests have new outputs.
    #[pyo3(signature = (event_loop=None, callback=None))]
    fn inbox(&self, event_loop: Option<Py<PyAny>>, callback: Option<Py<PyAny>>) -> PyResult<PyInbox> {
        self.handle.engine()?;
        let waker = event_loop.zip(callback).map(|(event_loop, callback)| LoopWaker { event_loop, callback });
        Ok(PyInbox::new(Arc::clone(&self.handle), waker))
    }

    /// Returns an inbox for the requests of a parent process; their outputs go into a ring in shared memory.
    fn ring_inbox(&self, memory: RawFd, written: RawFd, read: RawFd) -> PyResult<PyRingInbox> {
        self.handle.engine()?;
        Ok(PyRingInbox::open(Arc::clone(&self.handle), RingFiles { memory, written, read })?)
    }

    /// Returns the token ids of a prompt, after a check that it can be served with these parameters.
    ///
    /// # Errors
    /// `InvalidRequestError` for a prompt that cannot be served. Nothing is queued.
    #[pyo3(signature = (prompt, params, images=Vec::new()), text_signature = "($self, prompt, params, images=())")]
    fn prepare(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        params: PyParams<'_>,
        images: Vec<Bound<'_, PyImage>>,
    ) -> PyResult<Vec<u32>> {
        let engine = self.handle.engine()?;
        let prompt = prompt_argument(engine, prompt)?;
        let (images, params) = (pictures(&images), params.get());
        Ok(py.detach(|| engine.prepare(prompt, images, &params))?)
    }

    /// Returns the path of the image encoder's file; `None` for a model that accepts only text.
    #[getter]
    fn mmproj(&self) -> PyResult<Option<PathBuf>> {
        Ok(self.handle.engine()?.images().map(|images| images.path().to_owned()))
    }

    /// Returns the number of tokens that an image takes in a prompt.
    ///
    /// # Errors
    /// `InvalidRequestError` for a shape that the encoder does not take, and for a model that accepts only text.
    fn image_tokens(&self, image: &Bound<'_, PyImage>) -> PyResult<u32> {
        Ok(self.handle.engine()?.image_tokens(image.get().picture())?)
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

    /// Returns the resolved configuration.
    fn config(&self) -> PyResult<ConfigFields> {
        Ok(ConfigFields::from(self.handle.engine()?.config()))
    }

    /// Returns the sampling settings that the file recommends, by their names in `SamplingParams`.
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

    /// Returns a `rocmforge.Stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.handle.engine()?;
        let stats = py.detach(|| engine.stats());
        snapshots::stats(py, &stats)
    }

    /// Returns a `rocmforge.RequestRecord`; `None` for a request that has not finished, or whose record is purged.
    fn record<'py>(&self, py: Python<'py>, request_id: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let engine = self.handle.engine()?;
        let name = text("request id", request_id)?;
        let record = py.detach(|| engine.record(&name));
        record.map(|record| snapshots::request_record(py, &record)).transpose()
    }

    /// Returns a `rocmforge.MemoryUsage`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let engine = self.handle.engine()?;
        let memory = py.detach(|| engine.memory());
        snapshots::memory_usage(py, &memory)
    }

    /// Returns an array per field of `rocmforge.stats.BLOCK_DTYPE`, by its name.
    fn block_map<'py>(&self, py: Python<'py>) -> PyResult<BlockColumns<'py>> {
        let engine = self.handle.engine()?;
        let blocks = py.detach(|| engine.block_map());
        Ok(BlockColumns::new(py, &blocks))
    }

    /// Returns the slots of recurrent states in the form of `block_map`.
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

    /// Returns tuples for `rocmforge.kv_events`, the earliest first.
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

    /// Returns the names of the waiting requests, each with the reason why it waits.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str)>> {
        let waiting = self.handle.interruptible(py, |engine| engine.waiting())?;
        Ok(waiting.into_iter().map(|(name, reason)| (name.to_string(), reason.as_str())).collect())
    }

    fn describe(&self) -> PyResult<String> {
        Ok(self.handle.engine()?.describe().to_owned())
    }

    /// Closes the engine; in a forked child there is nothing to close. After Ctrl-C the threads end on their own.
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

    /// True if `close` was called; false for an engine that died.
    #[getter]
    fn was_closed(&self) -> bool {
        self.handle.was_closed()
    }

    /// True if the engine is closed. In a forked child it is always closed, because it cannot serve there.
    #[getter]
    fn is_closed(&self) -> bool {
        self.handle.engine().map_or(true, Engine::is_closed)
    }
}

/// Time between two checks for signals, and between two calls of a progress callback.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` detached from the interpreter, and reports its progress to `callback(done, total)`. Ctrl-C, or an
/// exception of the callback, stops it and is raised.
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
