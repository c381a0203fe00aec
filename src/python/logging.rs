//! Forwards the engine's `tracing` events to Python's `logging`.
//!
//! The engine's thread may emit events, and it must not wait for the interpreter. So an event goes into a bounded
//! queue, and another thread passes it to `logging`. That thread starts with the first event, and again after a fork,
//! which does not inherit threads. It ends before the interpreter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::RwLock;
use pyo3::prelude::*;
use tracing::{Event, Level};

use crate::config::{LogLevel, log_level};
use crate::diagnose::events::{Listener, event_text};

const QUEUE_LENGTH: usize = 1024;
/// The lock is held only while a thread starts, unless its holder was lost in a fork.
const LOCK_LIMIT: Duration = Duration::from_millis(20);
/// Handlers are foreign code, and may be slow.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
const THREAD_NAME: &str = "rocmforge-log";

enum Message {
    Record {
        level: u8,
        logger: String,
        text: String,
    },
    /// Answered when everything sent before it is done.
    Flush(Sender<()>),
}

enum State {
    Idle,
    Running {
        process: u32,
        sender: Sender<Message>,
    },
    /// The interpreter is about to end.
    Closed,
}

static STATE: RwLock<State> = RwLock::new(State::Idle);
/// Events that did not fit into the queue and are not reported yet.
static LOST: AtomicU64 = AtomicU64::new(0);
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Sends events to `logging` from now on. The interpreter's exit waits for queued events.
pub(super) fn install(py: Python<'_>) -> PyResult<()> {
    let close = wrap_pyfunction!(close_log, py)?;
    py.import("atexit")?.call_method1("register", (close,))?;
    // A program that embeds the crate may have a subscriber, which then stays.
    let _ = tracing::subscriber::set_global_default(Listener(emit));
    Ok(())
}

/// Queues an event; never waits for the interpreter.
fn emit(event: &Event<'_>) {
    let metadata = event.metadata();
    let level = match *metadata.level() {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warning,
        Level::INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    let record = Message::Record { level: number(level), logger: logger(metadata.target()), text: event_text(event) };
    if running().is_none_or(|sender| sender.try_send(record).is_err()) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the name of a module's logger. Parts of the engine that are crates have the names of its modules.
fn logger(module: &str) -> String {
    module.replacen("rocmforge_", "rocmforge.", 1).replace("::", ".")
}

/// Returns the number of a level in `logging`; for `Off`, a number above all levels.
fn number(level: LogLevel) -> u8 {
    match level {
        LogLevel::Debug => 10,
        LogLevel::Info => 20,
        LogLevel::Warning => 30,
        LogLevel::Error => 40,
        LogLevel::Off => 51,
    }
}

/// Returns the queue of this process; `None` if it cannot have one.
fn running() -> Option<Sender<Message>> {
    if let Some(sender) = existing() {
        return Some(sender);
    }
    let mut state = STATE.try_write_for(LOCK_LIMIT)?;
    match &*state {
        State::Closed => return None,
        // Another thread was faster.
        State::Running { process, sender } if *process == std::process::id() => return Some(sender.clone()),
        State::Running { .. } | State::Idle => {}
    }
    let (sender, receiver) = bounded(QUEUE_LENGTH);
    std::thread::Builder::new().name(THREAD_NAME.into()).spawn(move || forward(&receiver)).ok()?;
    let inherited =
        std::mem::replace(&mut *state, State::Running { process: std::process::id(), sender: sender.clone() });
    // Locks inside the parent's channel may be held forever.
    std::mem::forget(inherited);
    Some(sender)
}

fn existing() -> Option<Sender<Message>> {
    match &*STATE.try_read_for(LOCK_LIMIT)? {
        State::Running { process, sender } if *process == std::process::id() => Some(sender.clone()),
        _ => None,
    }
}

fn forward(receiver: &Receiver<Message>) {
    for message in receiver {
        let handed_over = match message {
            Message::Flush(done) => {
                // The waiting thread may have given up.
                let _ = done.send(());
                continue;
            }
            Message::Record { level, logger, text } => Python::try_attach(|py| {
                let logged = match LOST.swap(0, Ordering::Relaxed) {
                    0 => Ok(()),
                    lost => log(
                        py,
                        number(LogLevel::Warning),
                        "rocmforge",
                        &format!("{lost} messages were lost: they came too fast"),
                    ),
                };
                // `logging` reports errors of a handler itself.
                if let Err(error) = logged.and_then(|()| log(py, level, &logger, &text)) {
                    error.write_unraisable(py, None);
                }
            }),
        };
        if handed_over.is_none() {
            return;
        }
    }
}

fn log(py: Python<'_>, level: u8, logger: &str, text: &str) -> PyResult<()> {
    py.import("logging")?.call_method1("getLogger", (logger,))?.call_method1("log", (level, text)).map(drop)
}

/// Imports `logging` and sets the level in `ROCMFORGE_LOG`, unless `set_log_level` was called. Must be called before
/// anything that may log. The forwarding thread must not import it: if a process forks while another thread imports a
/// module, the child can never import it.
pub(super) fn prepare(py: Python<'_>) -> PyResult<()> {
    if PREPARED.load(Ordering::Relaxed) {
        return Ok(());
    }
    py.import("logging")?;
    if let Some(level) = log_level()? {
        show(py, level)?;
    }
    PREPARED.store(true, Ordering::Relaxed);
    Ok(())
}

fn show(py: Python<'_>, level: LogLevel) -> PyResult<()> {
    py.import("rocmforge.log")?.call_method1("show", (number(level),)).map(drop)
}

/// Shows messages from this level on: `debug`, `info`, `warning`, `error`, or `off`.
#[pyfunction]
pub(super) fn set_log_level(py: Python<'_>, level: &str) -> PyResult<()> {
    show(py, LogLevel::named("level", level)?)?;
    PREPARED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Returns the level in `ROCMFORGE_LOG`; `None` if it is not set.
#[pyfunction]
#[pyo3(name = "log_level")]
pub(super) fn py_log_level() -> PyResult<Option<&'static str>> {
    Ok(log_level()?.map(LogLevel::name))
}

/// Waits until `logging` has all events so far.
pub(super) fn flush(py: Python<'_>) {
    // A handler that loads a model would wait for itself.
    if std::thread::current().name() == Some(THREAD_NAME) {
        return;
    }
    py.detach(|| {
        if let Some(sender) = existing() {
            let (done, answer) = bounded(1);
            // A slow handler cannot delay the caller forever.
            let _ = sender.send_timeout(Message::Flush(done), FLUSH_LIMIT).map(|()| answer.recv_timeout(FLUSH_LIMIT));
        }
    });
}

#[pyfunction]
fn close_log(py: Python<'_>) {
    flush(py);
    if let Some(mut state) = STATE.try_write_for(LOCK_LIMIT) {
        let last = std::mem::replace(&mut *state, State::Closed);
        if matches!(&last, State::Running { process, .. } if *process != std::process::id()) {
            std::mem::forget(last);
        }
    }
}
