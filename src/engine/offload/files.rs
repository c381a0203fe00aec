//! The thread that reads and writes the files of contents, so that no step waits for a disk.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

use super::store::Store;
use super::{Content, ReadContent};
use crate::Result;
use crate::ids::RequestId;
use crate::kv_cache::ContentKey;
use crate::threads::panics::{guarded, panicked};
use crate::threads::spawn::spawn;

/// The bytes of contents that may wait to be written; one content always may. More are dropped.
const QUEUE_BYTES: u64 = 256 << 20;

/// The interval at which a closing engine reports how far the thread is.
const LOOK: Duration = Duration::from_millis(5);

/// A report of the thread to the engine.
#[derive(Debug)]
pub(crate) struct FileEvent {
    /// The number of times that the files had been cleared when this was asked for.
    num_clears: u64,
    pub(super) report: FileReport,
}

#[derive(Debug)]
pub(super) enum FileReport {
    /// Contents that are in files from now on, and contents that no longer are.
    Changed { present: Vec<ContentKey>, gone: Vec<ContentKey> },
    /// Contents that a request needs. `is_last`: the request needs no others.
    Read { request: RequestId, contents: Vec<ReadContent>, is_last: bool },
}

struct Read {
    num_clears: u64,
    request: RequestId,
    /// The contents, and the bytes of each.
    contents: Vec<(ContentKey, u64)>,
}

struct Write {
    num_clears: u64,
    what: What,
}

enum What {
    Content(ContentKey, Content),
    Clear,
}

/// Counters and gauges of the files.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Bytes that wait to be written.
    queued: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) read: AtomicU64,
    /// Contents that were not written: the queue was full, or the write failed.
    pub(super) dropped: AtomicU64,
    /// Files that had vanished or were damaged.
    pub(super) unreadable: AtomicU64,
}

/// The engine's end of the thread.
pub(super) struct Files {
    reads: Sender<Read>,
    writes: Sender<Write>,
    counters: Arc<Counters>,
    thread: JoinHandle<Store>,
    num_clears: u64,
}

impl Files {
    /// Starts the thread. It reports through `report`.
    ///
    /// # Errors
    /// `Internal` if the system cannot start a thread.
    pub(super) fn start(store: Store, report: impl Fn(FileEvent) + Send + 'static) -> Result<Self> {
        let ((reads, read_queue), (writes, write_queue)) = (unbounded(), unbounded());
        let counters = Arc::new(Counters::default());
        counters.bytes.store(store.bytes(), Ordering::Relaxed);
        let worker = Worker { store, counters: Arc::clone(&counters), report };
        let thread = spawn("rocmforge-kv-files", move || worker.run(&read_queue, &write_queue))?;
        Ok(Self { reads, writes, counters, thread, num_clears: 0 })
    }

    /// Has the contents of a request read. Reports follow.
    pub(super) fn read(&self, request: RequestId, contents: Vec<(ContentKey, u64)>) {
        // The thread ends only after this value.
        let _ = self.reads.send(Read { num_clears: self.num_clears, request, contents });
    }

    /// Has a content written. Returns it if too many are waiting.
    pub(super) fn write(&self, key: ContentKey, content: Content) -> Option<Content> {
        let bytes = content.len() as u64;
        let queued = self.counters.queued.load(Ordering::Relaxed);
        if queued > 0 && queued + bytes > QUEUE_BYTES {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            return Some(content);
        }
        self.counters.queued.fetch_add(bytes, Ordering::Relaxed);
        self.send(What::Content(key, content));
        None
    }

    /// Has all files of the namespace removed.
    pub(super) fn clear(&mut self) {
        self.num_clears += 1;
        self.send(What::Clear);
    }

    fn send(&self, what: What) {
        let _ = self.writes.send(Write { num_clears: self.num_clears, what });
    }

    /// True if the files have not been cleared since the event's work was asked for.
    pub(super) fn is_current(&self, event: &FileEvent) -> bool {
        event.num_clears == self.num_clears
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Ends the thread once everything is written. `report` takes the number of files written so far. `None` if the
    /// thread has panicked.
    pub(super) fn finish(self, report: &dyn Fn(u64)) -> Option<(Store, Arc<Counters>)> {
        let Self { reads, writes, counters, thread, num_clears: _ } = self;
        drop((reads, writes));
        while !thread.is_finished() {
            report(counters.written.load(Ordering::Relaxed));
            std::thread::sleep(LOOK);
        }
        Some((thread.join().ok()?, counters))
    }
}

struct Worker<R> {
    store: Store,
    counters: Arc<Counters>,
    report: R,
}

impl<R: Fn(FileEvent)> Worker<R> {
    fn run(mut self, reads: &Receiver<Read>, writes: &Receiver<Write>) -> Store {
        loop {
            // A request waits for each read.
            select_biased! {
                recv(reads) -> read => match read {
                    Ok(read) => self.read(read),
                    Err(_) => break,
                },
                recv(writes) -> write => match write {
                    Ok(write) => self.write(write),
                    Err(_) => break,
                },
            }
        }
        writes.iter().for_each(|write| self.write(write));
        self.store
    }

    fn read(&mut self, Read { num_clears, request, contents }: Read) {
        let mut left: HashSet<ContentKey> = contents.iter().map(|(key, _)| *key).collect();
        let Self { store, counters, report } = self;
        let mut take = |contents: Vec<ReadContent>| {
            for (key, content) in &contents {
                left.remove(key);
                match content {
                    None => counters.unreadable.fetch_add(1, Ordering::Relaxed),
                    Some(content) => counters.read.fetch_add(u64::from(!content.is_empty()), Ordering::Relaxed),
                };
            }
            report(FileEvent { num_clears, report: FileReport::Read { request, contents, is_last: left.is_empty() } });
        };
        let read = guarded(|| store.read_all(&contents, &mut take));
        if let Err(payload) = read {
            panicked("reading KV files", payload.as_ref());
            // The request has to go on.
            counters.unreadable.fetch_add(left.len() as u64, Ordering::Relaxed);
            let contents = left.into_iter().map(|key| (key, None)).collect();
            report(FileEvent { num_clears, report: FileReport::Read { request, contents, is_last: true } });
        }
    }

    fn write(&mut self, write: Write) {
        if let Err(payload) = guarded(|| self.run_write(write)) {
            panicked("writing KV files", payload.as_ref());
        }
    }

    fn run_write(&mut self, Write { num_clears, what }: Write) {
        match what {
            What::Content(key, content) => {
                let written = write_content(&mut self.store, &self.counters, key, &content);
                self.counters.queued.fetch_sub(content.len() as u64, Ordering::Relaxed);
                // Another server may have removed its file, or filled the disk.
                let (present, gone) = written.map_or((vec![], vec![key]), |gone| (vec![key], gone));
                let report = FileReport::Changed { present, gone };
                (self.report)(FileEvent { num_clears, report });
            }
            What::Clear => self.store.clear(),
        }
        self.note_bytes();
    }

    fn note_bytes(&self) {
        self.counters.bytes.store(self.store.bytes(), Ordering::Relaxed);
    }
}

/// Writes a content and counts it. Returns the contents that were removed for it; `None` if it has no file.
pub(super) fn write_content(
    store: &mut Store,
    counters: &Counters,
    key: ContentKey,
    content: &[u8],
) -> Option<Vec<ContentKey>> {
    let written = store.write(key, content);
    match &written {
        Ok(Some(_)) => counters.written.fetch_add(1, Ordering::Relaxed),
        Ok(None) => 0,
        Err(_) => counters.dropped.fetch_add(1, Ordering::Relaxed),
    };
    written.ok().map(Option::unwrap_or_default)
}
