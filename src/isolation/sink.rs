//! The sink of an engine in a child process: writes all of its outputs to one ring, with the parent's request ids.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::ring::{OutputWriter, RingFiles};
use crate::engine::{OutputSink, RequestId, SequenceOutput};
use crate::{Error, Result};

/// Writes outputs for the parent process. It is the only sink of its engine. While the ring is full, the output thread
/// waits here, and the engine's mailbox merges new outputs.
pub struct RingSink {
    writer: Mutex<OutputWriter>,
    /// Requests that have not ended. It has its own lock, since one may be announced while the writer waits.
    requests: Mutex<HashMap<RequestId, Announced>>,
}

struct Announced {
    /// The parent's id of the request.
    key: u64,
    num_unfinished: usize,
}

impl RingSink {
    /// # Errors
    /// `Internal` if the files do not form a ring.
    pub fn open(files: RingFiles) -> Result<Self> {
        let writer = OutputWriter::open(files).map_err(Error::internal)?;
        Ok(Self { writer: Mutex::new(writer), requests: Mutex::default() })
    }

    /// Notes a request of `n` sequences. Must be called before its first output can arrive.
    pub fn expect(&self, id: RequestId, key: u64, n: usize) {
        self.requests.lock().insert(id, Announced { key, num_unfinished: n });
    }

    /// Forgets a request that the engine has rejected.
    pub fn refuse(&self, id: RequestId) {
        self.requests.lock().remove(&id);
    }

    /// Returns the request with this id of the parent; `None` once it has ended.
    pub fn find(&self, key: u64) -> Option<RequestId> {
        self.requests.lock().iter().find(|(_, announced)| announced.key == key).map(|(id, _)| *id)
    }

    fn rename(&self, outputs: &mut Vec<SequenceOutput>) {
        let mut requests = self.requests.lock();
        outputs.retain_mut(|output| {
            let id = output.request;
            let Some(announced) = requests.get_mut(&id) else { return false };
            output.request = RequestId(announced.key);
            if output.finish_reason.is_some() {
                announced.num_unfinished -= 1;
                if announced.num_unfinished == 0 {
                    requests.remove(&id);
                }
            }
            true
        });
    }
}

impl OutputSink for RingSink {
    fn deliver(&self, mut outputs: Vec<SequenceOutput>) -> bool {
        self.rename(&mut outputs);
        let written = outputs.is_empty() || self.writer.lock().write(&outputs).is_ok();
        if !written {
            tracing::error!("outputs cannot be sent to the parent process");
        }
        written
    }
}
