//! Runs the operations of streams when something must be complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amdsim::ScalarCache;

use super::streams::host_memory::host_memory;
use super::streams::operation::{HostAddress, HostFunction, Launch, Mark, Operation};
use super::streams::order::pinned_by;
use super::streams::queue::Progress;
use crate::cpu::CpuObject;
use crate::device::{Device, State};
use crate::guard::{self, Guard};
use crate::log::say;
use crate::memory::View;
use crate::module::Module;
use crate::status::{Result, Status};

/// The state of the scalar cache before a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Invalidated {
    ByLaunch,
    /// A kernel in a graph finds the previous content.
    Never,
}

impl Device {
    /// Runs all operations of a stream, and those of others that it waits for, but nothing else.
    pub(crate) fn synchronize(&self, state: &mut State, stream: u64) -> Result<()> {
        while !state.stream(stream)?.waiting.is_empty() {
            self.step(state, stream)?;
        }
        Ok(())
    }

    pub(crate) fn synchronize_all(&self, state: &mut State) -> Result<()> {
        let streams: Vec<u64> = state.streams.live.keys().copied().collect();
        streams.into_iter().try_for_each(|stream| self.synchronize(state, stream))
    }

    /// Runs a stream up to a mark but no further.
    pub(crate) fn run_until(&self, state: &mut State, mark: Mark) -> Result<()> {
        loop {
            match state.streams.progress(mark) {
                Progress::Done => return Ok(()),
                Progress::Waiting => self.step(state, mark.stream)?,
                Progress::Lost => {
                    let text = "waiting for an event of a stream that was destroyed before it came to it".to_owned();
                    return Err(self.fault(state, Status::ILLEGAL_STATE, text));
                }
            }
        }
    }

    fn step(&self, state: &mut State, stream: u64) -> Result<()> {
        let Some(mut queued) = state.stream(stream)?.waiting.pop_front() else { return Ok(()) };
        let result = match queued.guards.iter().find_map(Guard::touched) {
            Some((address, code)) => {
                let text =
                    format!("the host used {address:#x} before it had waited for what does, in {code}; {queued}");
                Err(self.fault(state, Status::ILLEGAL_STATE, text))
            }
            // Waits among operations cannot form a cycle: each refers to a record that was enqueued before it.
            None => {
                // The operation itself may use the memory.
                queued.guards.clear();
                self.execute(state, &queued.operation, Invalidated::ByLaunch)
            }
        };
        let result = match (result, state.changed_copy()) {
            (Ok(()), Some(copy)) => {
                let text = format!("{queued} wrote what a waiting copy was to find: {copy}");
                Err(self.fault(state, Status::ILLEGAL_STATE, text))
            }
            (result, _) => result,
        };
        if let Ok(stream) = state.stream(stream) {
            stream.done += 1;
        }
        result
    }

    fn execute(&self, state: &mut State, operation: &Operation, scalar_cache: Invalidated) -> Result<()> {
        match operation {
            Operation::Record => Ok(()),
            Operation::Wait(mark) => self.run_until(state, *mark),
            Operation::Graph(operations) => {
                let (late, others) = operations.split_at(usize::from(state.late_graphs).min(operations.len()));
                others.iter().chain(late).try_for_each(|operation| self.execute(state, operation, Invalidated::Never))
            }
            Operation::Launch(launch) => {
                if scalar_cache == Invalidated::ByLaunch {
                    state.scalar_cache = ScalarCache::default();
                }
                self.launch(state, launch)
            }
            Operation::Host(HostFunction { function, data: HostAddress(data) }) => {
                let data = std::ptr::with_exposed_provenance_mut(*data);
                // SAFETY: the program promised that the function may be called with this argument until the stream has
                // passed the call, and in each replay of a graph.
                guard::suspended(|| unsafe { function(data) });
                Ok(())
            }
            Operation::Product(product) => {
                let result = product.run(&mut state.memory);
                self.check_copy(state, result, operation)
            }
            Operation::ToDevice { .. } | Operation::ToHost { .. } => self.transfer(state, operation),
            Operation::OnDevice { to, from, bytes } => {
                let result = state.memory.copy(*to, *from, *bytes);
                self.check_copy(state, result, operation)
            }
            Operation::Fill { to, byte, bytes } => {
                let result = state.memory.fill(*to, *byte, *bytes);
                self.check_copy(state, result, operation)
            }
        }
    }

    fn transfer(&self, state: &mut State, operation: &Operation) -> Result<()> {
        let (Operation::ToDevice { from: host, bytes, .. } | Operation::ToHost { to: host, bytes, .. }) = operation
        else {
            return Ok(());
        };
        // Pinned memory must not change until the copy has run.
        let pinned = host_memory().lock();
        if let Err(problem) = pinned.check(*host, *bytes) {
            return Err(self.fault(state, Status::ILLEGAL_ADDRESS, format!("{operation:x?}: {problem}")));
        }
        let result = match operation {
            Operation::ToDevice { to, from: HostAddress(from), bytes } => {
                let from = std::ptr::with_exposed_provenance(*from);
                // SAFETY: the program promised that the source stays readable until the stream has passed this copy.
                unsafe { state.memory.write_from(*to, from, *bytes) }
            }
            Operation::ToHost { to: HostAddress(to), from, bytes } => {
                let to = std::ptr::with_exposed_provenance_mut(*to);
                // SAFETY: the program promised that the target stays writable, and its alone, until then.
                unsafe { state.memory.read_to(*from, to, *bytes) }
            }
            _ => Ok(()),
        };
        self.check_copy(state, result, operation)
    }

    fn check_copy(&self, state: &mut State, result: Result<()>, operation: &Operation) -> Result<()> {
        result.map_err(|status| {
            let text = format!("{operation:x?}: outside the device's memory, perhaps freed since it was enqueued");
            self.fault(state, status, text)
        })
    }

    fn launch(&self, state: &mut State, launch: &Launch) -> Result<()> {
        let found = state
            .functions
            .get(&launch.function)
            .and_then(|function| Some((function.name.clone(), Arc::clone(state.modules.get(&function.module)?))));
        let Some((name, module)) = found else {
            let text = "a kernel's module was unloaded before its launch ran".to_owned();
            return Err(self.fault(state, Status::LAUNCH_FAILURE, text));
        };
        let start = Instant::now();
        let result = match &*module {
            Module::Amd(object) => self.launch_simulated(state, object, &name, launch),
            Module::Cpu(object) => self.launch_compiled(state, object, &name, launch),
        };
        if self.trace {
            self.report(&name, launch, start.elapsed(), result.as_ref().ok().copied());
        }
        match result {
            Ok(_) => Ok(()),
            Err(text) => Err(self.fault(state, Status::LAUNCH_FAILURE, text)),
        }
    }

    /// Returns the number of wave instructions.
    fn launch_simulated(
        &self,
        state: &mut State,
        object: &amdsim::CodeObject,
        name: &str,
        launch: &Launch,
    ) -> std::result::Result<u64, String> {
        let kernel = object.kernel(name).ok_or_else(|| format!("no kernel {name}"))?;
        let mut arguments: Vec<u8> = launch.arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
        arguments.truncate(launch.argument_bytes);
        let simulated = amdsim::Launch {
            kernel,
            grid: launch.grid,
            block: launch.block,
            dynamic_lds: launch.shared_bytes,
            kernarg: &arguments,
            order: self.order,
            coherence: self.coherence,
        };
        let State { memory, scalar_cache, .. } = state;
        let pinned: Vec<_> = pinned_by(launch).map(|range| (range.start, range.end)).collect();
        let uses_host = !pinned.is_empty();
        let run = || amdsim::run_after(object, &simulated, &mut View::new(memory, pinned), scalar_cache);
        let result = if uses_host { guard::suspended(run) } else { run() };
        result.map(|stats| stats.wave_instructions).map_err(|trap| match trap.fault {
            amdsim::Fault::OutOfBounds { space: amdsim::Space::Global, address, .. } => {
                format!("{trap}; {}", state.memory.describe(address))
            }
            _ => trap.to_string(),
        })
    }

    fn launch_compiled(
        &self,
        state: &mut State,
        object: &CpuObject,
        name: &str,
        launch: &Launch,
    ) -> std::result::Result<u64, String> {
        let kernel = object.kernel(name).ok_or_else(|| format!("no kernel {name}"))?;
        if launch.shared_bytes != 0 || launch.block[1..] != [1, 1] {
            return Err(format!("{name}: on the CPU, blocks have one dimension and no dynamic shared memory"));
        }
        if launch.block[0] != kernel.threads {
            return Err(format!("{name}: launched with {} threads, written for {}", launch.block[0], kernel.threads));
        }
        // SAFETY: the launch was checked to bring at least as many bytes of arguments as the kernel has.
        let result = unsafe { object.run(&kernel, launch.grid, launch.block[0], &launch.arguments, self.order) };
        result.map_err(|text| format!("{name}: {text}"))?;
        state.memory.damage().map_or(Ok(0), |damage| Err(format!("{name}: {damage}")))
    }

    fn report(&self, name: &str, launch: &Launch, time: Duration, instructions: Option<u64>) {
        let Launch { grid, block, .. } = launch;
        let outcome = match instructions {
            None => "failed".to_owned(),
            Some(0) => String::new(),
            Some(count) => format!("{count} wave instructions"),
        };
        say(format_args!("device {}: {name} grid {grid:?} block {block:?} {time:.1?} {outcome}", self.index));
    }
}
