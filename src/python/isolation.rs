//! Both ends of an engine in a child process. `RingInbox` submits the parent's requests to the engine there.
//! `RemoteInbox` keeps their outputs in the parent until they are taken, like `Inbox` in the engine's process.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::handle::Handle;
use super::outputs::merged::{LoopWaker, MergedOutputs};
use super::outputs::output::Progress;
use super::outputs::update::PyRequestUpdate;
use super::pooling::{PyParams, keeps_all};
use super::requests::{Options, abort, new_request};
use super::tokenizer::PyTokenizer;
use super::values::arrays::seconds;
use super::values::image::PyImage;
use crate::engine::{AcceptedRequest, RequestId, SequenceOutput};
use crate::isolation::{EndOfOutputs, OutputReader, RingFiles, RingSink};
use crate::{Error, Result};

/// The child's end: submits requests that the parent has named. Their outputs go into the ring.
#[pyclass(frozen, name = "RingInbox", module = "rocmforge._rocmforge")]
pub(super) struct PyRingInbox {
    handle: Arc<Handle>,
    sink: Arc<RingSink>,
}

impl PyRingInbox {
    pub(super) fn open(handle: Arc<Handle>, files: RingFiles) -> Result<Self> {
        Ok(Self { handle, sink: Arc::new(RingSink::open(files)?) })
    }
}

#[pymethods]
impl PyRingInbox {
    /// Hands over a request that the parent calls `key`; returns its request id and its prompt's token ids.
    #[pyo3(signature = (key, prompt, params, request_id=None, priority=None, timeout=None, cache_salt=None,
        client=None, images=Vec::new()), text_signature = "($self, key, prompt, params, request_id=None, priority=0, \
        timeout=None, cache_salt=None, client=None, images=())")]
    #[allow(clippy::too_many_arguments)] // they are the arguments of `Inbox.submit`
    fn submit(
        &self,
        py: Python<'_>,
        key: u64,
        prompt: &Bound<'_, PyAny>,
        params: PyParams<'_>,
        request_id: Option<&Bound<'_, PyString>>,
        priority: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        cache_salt: Option<&Bound<'_, PyString>>,
        client: Option<&Bound<'_, PyString>>,
        images: Vec<Bound<'_, PyImage>>,
    ) -> PyResult<(String, Vec<u32>)> {
        let engine = self.handle.engine()?;
        let options = Options { images, request_id, priority, timeout, cache_salt, client };
        let request = new_request(engine, self.sink.clone(), prompt, params.get(), options)?;
        let n = request.params.n();
        let accepted = py.detach(|| {
            let mut announced = None;
            let accepted = engine.add_request(request, |id| {
                self.sink.expect(id, key, n);
                announced = Some(id);
            });
            if let (Err(_), Some(id)) = (&accepted, announced) {
                self.sink.refuse(id);
            }
            accepted
        });
        let AcceptedRequest { name, prompt_token_ids, .. } = accepted?;
        Ok((name, prompt_token_ids.to_vec()))
    }

    /// Aborts a request by the parent's key, unless it has finished.
    fn forget(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| abort(engine, self.sink.find(key)))?)
    }
}

/// Low bits of a request's key, which count the requests of an inbox. The inbox's number is in the high bits.
const REQUEST_BITS: u32 = 40;

/// The inboxes of the parent by number.
#[derive(Default)]
struct Inboxes {
    next: AtomicU32,
    open: Mutex<HashMap<u32, Arc<MergedOutputs>>>,
}

impl Inboxes {
    /// Delivers outputs to their inboxes. Returns the keys of requests whose consumer is gone.
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> Vec<u64> {
        let mut parcels: Vec<(Arc<MergedOutputs>, Vec<SequenceOutput>)> = Vec::new();
        {
            let open = self.open.lock();
            for output in outputs {
                let Some(inbox) = open.get(&((output.request.0 >> REQUEST_BITS) as u32)) else { continue };
                match parcels.iter_mut().find(|(other, _)| Arc::ptr_eq(other, inbox)) {
                    Some((_, parcel)) => parcel.push(output),
                    None => parcels.push((Arc::clone(inbox), vec![output])),
                }
            }
        }
        let gone = parcels.into_iter().filter_map(|(inbox, parcel)| (!inbox.hand_over(parcel)).then_some(inbox));
        gone.flat_map(|inbox| inbox.close()).map(|id| id.0).collect()
    }
}

/// The outputs of engines in child processes. One child follows another.
#[pyclass(frozen, name = "RemoteOutputs", module = "rocmforge._rocmforge")]
pub(super) struct PyRemoteOutputs {
    inboxes: Arc<Inboxes>,
}

#[pymethods]
impl PyRemoteOutputs {
    #[new]
    fn new() -> Self {
        Self { inboxes: Arc::default() }
    }

    /// Returns an inbox, like `Engine.inbox`.
    #[pyo3(signature = (tokenizer=None, event_loop=None, callback=None))]
    fn inbox(
        &self,
        tokenizer: Option<Py<PyTokenizer>>,
        event_loop: Option<Py<PyAny>>,
        callback: Option<Py<PyAny>>,
    ) -> PyRemoteInbox {
        let waker = event_loop.zip(callback).map(|(event_loop, callback)| LoopWaker { event_loop, callback });
        let outputs = Arc::new(MergedOutputs::new(waker));
        let number = self.inboxes.next.fetch_add(1, Ordering::Relaxed);
        self.inboxes.open.lock().insert(number, Arc::clone(&outputs));
        let inboxes = Arc::clone(&self.inboxes);
        PyRemoteInbox { inboxes, outputs, number, num_submitted: AtomicU64::new(0), tokenizer }
    }

    /// Reads a ring on a separate thread, until `RingReader.finish`. `gone` is called there with the keys of requests
    /// whose consumer is gone, `broken` with the ring's error.
    fn read(
        &self,
        memory: RawFd,
        written: RawFd,
        read: RawFd,
        gone: Py<PyAny>,
        broken: Py<PyAny>,
    ) -> PyResult<PyRingReader> {
        let reader = OutputReader::open(RingFiles { memory, written, read })?;
        let end = reader.end()?;
        let inboxes = Arc::clone(&self.inboxes);
        let body = move || read_ring(reader, &inboxes, &gone, &broken);
        let thread = std::thread::Builder::new().name("rocmforge-ring".into()).spawn(body).map_err(Error::internal)?;
        Ok(PyRingReader { end, thread: Mutex::new(Some(thread)) })
    }

    /// Ends every unfinished request with `EngineDeadError`.
    fn fail(&self, py: Python<'_>, reason: String) {
        let error = Error::EngineDead { reason };
        py.detach(|| {
            let open: Vec<_> = self.inboxes.open.lock().values().cloned().collect();
            open.iter().for_each(|inbox| inbox.fail(&error));
        });
    }
}

/// Reads until the ring ends or breaks.
fn read_ring(mut reader: OutputReader, inboxes: &Inboxes, gone: &Py<PyAny>, broken: &Py<PyAny>) {
    loop {
        // Without an interpreter there is nobody to notify.
        let (told, goes_on) = match reader.next_outputs() {
            Ok(None) => return,
            Ok(Some(outputs)) => match inboxes.deliver(outputs) {
                keys if keys.is_empty() => continue,
                keys => (Python::try_attach(|py| gone.call1(py, (keys,)).map(drop)), true),
            },
            Err(error) => (Python::try_attach(|py| broken.call1(py, (error.to_string(),)).map(drop)), false),
        };
        if let Some(Err(error)) = told {
            tracing::error!("the parent of an engine cannot be told of its outputs: {error}");
        }
        if !goes_on {
            return;
        }
    }
}

/// A thread that reads a ring.
#[pyclass(frozen, name = "RingReader", module = "rocmforge._rocmforge")]
pub(super) struct PyRingReader {
    end: EndOfOutputs,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[pymethods]
impl PyRingReader {
    /// Waits until everything written is read, then ends the thread.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.end.end()?;
            match self.thread.lock().take().map(JoinHandle::join) {
                Some(Err(_)) => Err(Error::internal("the thread that reads outputs panicked")),
                _ => Ok(()),
            }
        })?;
        Ok(())
    }
}

/// Outputs of a child process for one event loop or one call, merged per request until they are taken.
#[pyclass(frozen, name = "RemoteInbox", module = "rocmforge._rocmforge")]
pub(super) struct PyRemoteInbox {
    inboxes: Arc<Inboxes>,
    outputs: Arc<MergedOutputs>,
    number: u32,
    num_submitted: AtomicU64,
    tokenizer: Option<Py<PyTokenizer>>,
}

impl PyRemoteInbox {
    fn close_outputs(&self) -> Vec<u64> {
        self.inboxes.open.lock().remove(&self.number);
        self.outputs.close().into_iter().map(|id| id.0).collect()
    }
}

#[pymethods]
impl PyRemoteInbox {
    /// Adds an entry for a request that is about to be submitted; returns the key that names it in the child.
    #[pyo3(signature = (params, *, final_only=false))]
    fn expect(&self, params: PyParams<'_>, final_only: bool) -> u64 {
        let params = params.get();
        let count = self.num_submitted.fetch_add(1, Ordering::Relaxed);
        let key = u64::from(self.number) << REQUEST_BITS | count;
        let progress = Progress::new(&params, keeps_all(&params, final_only));
        self.outputs.expect(RequestId(key), progress);
        key
    }

    /// Returns the keys of requests with new outputs, without waiting.
    fn ready(&self) -> Vec<u64> {
        self.outputs.ready().into_iter().map(|id| id.0).collect()
    }

    /// Returns the same as `ready`, after waiting for new outputs for at most `timeout` seconds.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<u64>> {
        let timeout = seconds("timeout", timeout)?;
        let ready = py.detach(|| self.outputs.wait(timeout));
        py.check_signals()?;
        Ok(ready.into_iter().map(|id| id.0).collect())
    }

    /// Takes the new outputs of a request, like `Inbox.take`.
    #[pyo3(signature = (key, *, raise_errors=true))]
    fn take(&self, py: Python<'_>, key: u64, raise_errors: bool) -> PyResult<Option<PyRequestUpdate>> {
        let Some(update) = self.outputs.take(RequestId(key)) else { return Ok(None) };
        let tokenizer = self.tokenizer.as_ref().map(|tokenizer| tokenizer.get().tokenizer());
        Ok(Some(update.into_python(py, tokenizer, raise_errors)?))
    }

    /// Drops a request; returns true if it was still running.
    fn forget(&self, key: u64) -> bool {
        self.outputs.forget(RequestId(key))
    }

    /// Drops all requests; returns the keys of those that were still running.
    fn close(&self) -> Vec<u64> {
        self.close_outputs()
    }

    /// Generated tokens of the requests that are still here.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.outputs.num_tokens()
    }
}
