//! The engine thread: commands, then a step, then what it gave; asleep when there is nothing to do.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Receiver;

use super::core::{Core, Launched};
use super::output::FinishReason;
use super::panics::{guarded, panic_message};
use super::shared::Command;
use crate::backend::MemoryLedger;
use crate::{Error, Result};

/// Starts a thread.
///
/// # Errors
/// `Internal` where the system gives none.
pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map_err(|e| Error::internal(format!("the system gives no thread for {name}: {e}")))
}

/// Tells the loop how to continue after a command.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    ShutDown,
}

/// The thread's life: serves until it is told to stop or cannot go on, then ends everything.
pub(super) fn run(mut core: Core, commands: &Receiver<Command>) {
    let served = guarded(|| serve(&mut core, commands)).unwrap_or_else(|payload| {
        let reason = format!("a panic in the engine: {}", panic_message(payload.as_ref()));
        Err(Error::EngineDead { reason })
    });
    let cause = served.err().map(|error| match error {
        Error::EngineDead { reason } => Error::EngineDead { reason },
        other => Error::EngineDead { reason: other.to_string() },
    });
    if let Some(error) = &cause {
        tracing::error!("{error}");
    }
    shut_down(&mut core, commands, cause);
    // The scheduler's last blocks come back only now, after an internal failure.
    let shared = Arc::clone(&core.shared);
    drop(core);
    shared.stats.write().kv_cache = shared.kv_cache.read().stats();
    *shared.memory.write() = MemoryLedger::default();
}

fn serve(core: &mut Core, commands: &Receiver<Command>) -> Result<()> {
    // The step that the device computes while outputs are delivered and commands are taken.
    let mut running = None;
    loop {
        if running.is_none() && !core.has_requests() {
            #[cfg(debug_assertions)]
            core.check_integrity(None)?;
            core.rest();
            let Ok(command) = commands.recv() else { return Ok(()) };
            if handle(core, command, None) == Then::ShutDown {
                return Ok(());
            }
        }
        while let Ok(command) = commands.try_recv() {
            if handle(core, command, running.as_ref()) == Then::ShutDown {
                return Ok(());
            }
        }
        if running.is_some() || core.has_requests() {
            running = core.step(running)?;
        }
        core.flush();
    }
}

fn handle(core: &mut Core, command: Command, running: Option<&Launched>) -> Then {
    match command {
        Command::Add(admission) => core.admit(*admission),
        Command::Abort { id, asked } => {
            core.abort(id, asked);
            core.shared.watch.forget(id);
        }
        Command::SinkGone(sink) => core.abort_sink(&sink),
        Command::ResetPrefixCache(reply) => {
            let done = core.shared.kv_cache.write().reset_prefix_cache();
            core.flush();
            let _ = reply.send(done);
        }
        Command::CheckIntegrity(reply) => {
            let result = core.check_integrity(running);
            core.flush();
            let _ = reply.send(result);
        }
        Command::Waiting(reply) => {
            let _ = reply.send(core.waiting());
        }
        Command::Shutdown => return Then::ShutDown,
    }
    Then::GoOn
}

/// Ends every request, those still in the channel included: as aborted, or with the error the engine died of. Nothing
/// comes after: `close` stopped the channel first.
fn shut_down(core: &mut Core, commands: &Receiver<Command>, cause: Option<Error>) {
    core.shared.close(cause.clone().unwrap_or_else(|| Error::EngineDead { reason: "it was closed".into() }));
    let reason = if cause.is_some() { FinishReason::Error } else { FinishReason::Abort };
    for command in commands.try_iter() {
        // Replies of the other commands are dropped, which their callers see.
        if let Command::Add(admission) = command {
            let admitted = guarded(|| core.admit(*admission));
            if admitted.is_err() {
                tracing::error!("a request could not be taken in while the engine was closing");
            }
        }
    }
    let ids: Vec<_> = core.requests.keys().copied().collect();
    for id in ids {
        let now = core.now();
        // The scheduler may be what broke; the consumers are told all the same.
        if guarded(|| core.end_request(id, reason, cause.clone(), now)).is_err() {
            core.abandon(id, reason, cause.clone());
        }
    }
    core.flush();
}
