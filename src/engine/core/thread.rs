//! The engine thread: takes commands, runs a step, sends its outputs, and sleeps if there is nothing to do.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{Core, Launched};
use crate::backend::MemoryLedger;
use crate::error::panic_message;
use crate::output::FinishReason;
use crate::shared::Command;
use crate::threads::panics::{guarded, panicked};
use crate::{Error, Result};

/// The interval at which pending masks and deadlines are polled while there is nothing else to do.
const POLL: Duration = Duration::from_millis(1);

/// Tells the loop how to continue after a command.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    ShutDown,
}

/// Runs the engine thread: serves until it is told to stop or cannot continue, then ends everything.
pub(crate) fn run(mut core: Core, commands: &Receiver<Command>) {
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
    let is_intact = cause.is_none();
    shut_down(&mut core, commands, cause);
    if is_intact {
        let written =
            guarded(|| core.write_all()).unwrap_or_else(|payload| Err(panicked("offloading", payload.as_ref())));
        if let Err(error) = written {
            tracing::error!("the KV cache was not written to files: {error}");
        }
    }
    // After an internal failure the scheduler's last blocks are freed only here.
    let shared = Arc::clone(&core.shared);
    drop(core);
    shared.stats.write().kv_cache = shared.kv_cache.read().stats();
    *shared.memory.write() = MemoryLedger::default();
}

fn serve(core: &mut Core, commands: &Receiver<Command>) -> Result<()> {
    // The step in flight, while outputs are delivered and commands are taken.
    let mut running = None;
    loop {
        if running.is_none() && !core.has_requests() {
            core.finish_loads()?;
            #[cfg(debug_assertions)]
            core.check_integrity(None)?;
            core.rest();
            core.save_while(|| commands.is_empty())?;
            let Ok(command) = commands.recv() else { return Ok(()) };
            if handle(core, command, None) == Then::ShutDown {
                return Ok(());
            }
        } else if running.is_none() && core.waits_for_others {
            let then = match commands.recv_timeout(POLL) {
                Ok(command) => handle(core, command, None),
                Err(RecvTimeoutError::Timeout) => Then::GoOn,
                Err(RecvTimeoutError::Disconnected) => Then::ShutDown,
            };
            if then == Then::ShutDown {
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
        core.save_ahead()?;
    }
}

fn handle(core: &mut Core, command: Command, running: Option<&Launched>) -> Then {
    match command {
        Command::Add(admission) => core.admit(*admission),
        Command::Abort { id, asked } => {
            core.abort(id, asked);
            core.shared.watch.forget(id);
        }
        Command::Encoded(encoded) => core.encoded(encoded),
        Command::Files(event) => core.take_file_event(event),
        Command::SinkGone(sink) => core.abort_sink(&sink),
        Command::ResetPrefixCache(reply) => {
            let is_whole = core.finish_loads().is_ok();
            let done = is_whole && core.shared.kv_cache.write().reset_prefix_cache();
            if let Some(offload) = core.offload.as_mut().filter(|_| done) {
                offload.clear();
            }
            core.flush();
            let _ = reply.send(done);
        }
        Command::CheckIntegrity(reply) => {
            let result = core.finish_loads().and_then(|()| core.check_integrity(running));
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

/// Ends every request, including those still in the channel: as aborted, or with the error that killed the engine.
/// Nothing can follow, since `close` stopped the channel first.
fn shut_down(core: &mut Core, commands: &Receiver<Command>, cause: Option<Error>) {
    core.shared.close(cause.clone().unwrap_or_else(|| Error::EngineDead { reason: "it was closed".into() }));
    let reason = if cause.is_some() { FinishReason::Error } else { FinishReason::Abort };
    for command in commands.try_iter() {
        // Dropping the reply of another command tells its caller.
        if let Command::Add(admission) = command {
            let admitted = guarded(|| core.admit(*admission));
            if admitted.is_err() {
                tracing::error!("a request could not be admitted while the engine was closing");
            }
        }
    }
    for id in core.requests.ids() {
        let now = core.now();
        // The scheduler may be what failed; the consumers get their last outputs regardless.
        if guarded(|| core.end_request(id, reason, cause.clone(), now)).is_err() {
            core.abandon(id, reason, cause.clone());
        }
    }
    core.flush();
}
