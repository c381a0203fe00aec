//! Both ends of an engine in a child process: `RingInbox` hands the parent's requests to the engine there, and
//! `RemoteInbox` keeps their outputs in the parent until they are taken, as `Inbox` does beside an engine.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::arrays::seconds;
use super::handle::Handle;
use super::merged::{LoopWaker, MergedOutputs};
use super::output::Progress;
use super::pooling::{PyParams, keeps_all};
use super::requests::{Options, abort, new_request};
use super::tokenizer::PyTokenizer;
use super::update::PyRequestUpdate;
use crate::engine::{AcceptedRequest, RequestId, SequenceOutput};
use crate::isolation::{EndOfOutputs, OutputReader, RingFiles, RingSink};
use crate::{Error, Result};

/// The child's end: requests that the parent has named, whose outputs go into the ring.
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
    /// Hands a request to the engine; its name there and its prompt.
    #[pyo3(signature = (key, prompt, params, request_id=None, priority=None, timeout=None, cache_salt=None,
        client=None), text_signature = "($self, key, prompt, params, request_id=None, priority=0, timeout=None, \
        cache_salt=None, client=None)")]
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
    ) -> PyResult<(String, Vec<u32>)> {
        let engine = self.handle.engine()?;
        let options = Options { request_id, priority, timeout, cache_salt, client };
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

    /// Aborts a request by the parent's name for it, unless it has finished.
    fn forget(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        let engine = self.handle.engine()?;
        Ok(py.detach(|| abort(engine, self.sink.find(key)))?)
    }
}

/// Bits of a request's key that count the requests of its inbox; the inbox's number is above them.
const REQUEST_BITS: u32 = 40;

/// The inboxes of the parent, by their numbers.
#[derive(Default)]
struct Inboxes {
    next: AtomicU32,
    open: Mutex<HashMap<u32, Arc<MergedOutputs>>>,
}

impl Inboxes {
    /// Hands outputs to their inboxes; returns the requests of those whose consumer is gone.
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

/// The parent's end: the outputs of an engine in a child process, or of several, one after the other.
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

    /// Makes an inbox, as `Engine.inbox` does.
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

    /// Reads a ring on a thread of its own, until `RingReader.finish`. `gone` is called there with the keys of requests
    /// that nobody waits for any more, `broken` with what is wrong with the ring.
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

    /// Ends every request of every inbox with `EngineDeadError`.
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
        // Without an interpreter nobody is left to be told.
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
    /// Waits until all that was written is read, and ends the thread.
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
    /// Makes the entry of a request that is about to be handed to the child; the key is its name there.
    #[pyo3(signature = (params, *, final_only=false))]
    fn expect(&self, params: PyParams<'_>, final_only: bool) -> u64 {
        let params = params.get();
        let count = self.num_submitted.fetch_add(1, Ordering::Relaxed);
        let key = u64::from(self.number) << REQUEST_BITS | count;
        let progress = Progress::new(&params, keeps_all(&params, final_only));
        self.outputs.expect(RequestId(key), progress);
        key
    }

    /// Ids of requests with news, at once.
    fn ready(&self) -> Vec<u64> {
        self.outputs.ready().into_iter().map(|id| id.0).collect()
    }

    /// Returns what `ready` does, after waiting for at most `timeout` seconds.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<u64>> {
        let timeout = seconds("timeout", timeout)?;
        let ready = py.detach(|| self.outputs.wait(timeout));
        py.check_signals()?;
        Ok(ready.into_iter().map(|id| id.0).collect())
    }

    /// Takes the news of a request, as `Inbox.take` does.
    #[pyo3(signature = (key, *, raise_errors=true))]
    fn take(&self, py: Python<'_>, key: u64, raise_errors: bool) -> PyResult<Option<PyRequestUpdate>> {
        let Some(update) = self.outputs.take(RequestId(key)) else { return Ok(None) };
        let tokenizer = self.tokenizer.as_ref().map(|tokenizer| tokenizer.get().tokenizer());
        Ok(Some(update.into_python(py, tokenizer, raise_errors)?))
    }

    /// Drops a request; whether it was still running.
    fn forget(&self, key: u64) -> bool {
        self.outputs.forget(RequestId(key))
    }

    /// Drops all requests; those that were still running.
    fn close(&self) -> Vec<u64> {
        self.close_outputs()
    }

    /// Generated tokens of the requests that have not been taken to their end.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.outputs.num_tokens()
    }
}
