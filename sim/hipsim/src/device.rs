//! A device and all objects that programs created on it, behind one lock.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use amdsim::{Coherence, Order, ScalarCache};
use parking_lot::{Mutex, MutexGuard};

use super::streams::operation::{Launch, Mark, Operation};
use super::streams::order::Queued;
use super::streams::queue::{Event, Stream, Streams};
use crate::image::Image;
use crate::log::say;
use crate::memory::Memory;
use crate::module::{KernelInfo, Module};
use crate::settings::{DeviceSettings, Settings};
use crate::status::{Result, Status};
use crate::target::{MAX_GRID, MAX_THREADS_PER_BLOCK, Target};

/// The stream of a null handle. It is an ordinary stream: it does not wait for the others.
pub(crate) const NULL_STREAM: u64 = 0;

pub(crate) struct Device {
    pub index: usize,
    pub target: &'static Target,
    pub order: Order,
    pub coherence: Coherence,
    /// True if the device reports that it is part of a processor.
    pub integrated: bool,
    pub trace: bool,
    lost: Option<PathBuf>,
    eager: bool,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub memory: Memory,
    pub streams: Streams,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, Arc<Module>>,
    /// The code object that each module was loaded from.
    pub images: HashMap<u64, Image>,
    pub functions: HashMap<u64, Function>,
    pub graphs: HashMap<u64, Arc<[Operation]>>,
    pub executables: HashMap<u64, Arc<[Operation]>>,
    /// The first failure. From then on every call returns it, as on a lost device.
    pub fault: Option<(Status, String)>,
    /// Content that the last kernel left in the scalar cache, if caches are not coherent.
    pub scalar_cache: ScalarCache,
    /// True if the first operation of a graph runs after the others, as some drivers' copies before a graph did.
    pub late_graphs: bool,
    /// A kind of wait that does nothing, to test that its absence is detected.
    pub without: Option<Wait>,
    last_id: u64,
    /// The number of operations ever queued.
    queued: u64,
}

/// Calls that make a program wait.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// `hipStreamSynchronize`
    Stream = 1,
    /// `hipEventSynchronize`
    Event = 2,
    /// `hipStreamWaitEvent`
    StreamForEvent = 3,
}

impl Wait {
    pub(crate) fn parse(number: u32) -> Option<Self> {
        [Self::Stream, Self::Event, Self::StreamForEvent].into_iter().find(|wait| *wait as u32 == number)
    }
}

pub(crate) struct Function {
    pub module: u64,
    pub name: Arc<str>,
    pub info: KernelInfo,
}

impl Device {
    pub(crate) fn new(index: usize, device: &DeviceSettings, settings: &Settings) -> Self {
        let mut streams = Streams::default();
        streams.live.insert(NULL_STREAM, Stream::default());
        let memory = settings.memory_bytes.get(index).or(settings.memory_bytes.last()).copied();
        let state = State {
            memory: Memory::new(memory.unwrap_or_default()),
            streams,
            events: HashMap::new(),
            modules: HashMap::new(),
            images: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            fault: None,
            scalar_cache: ScalarCache::default(),
            late_graphs: false,
            without: None,
            last_id: 0,
            queued: 0,
        };
        let DeviceSettings { target, order, coherence } = *device;
        let integrated = settings.integrated.contains(&index);
        Self {
            index,
            target,
            order,
            integrated,
            coherence,
            trace: settings.trace,
            lost: settings.lost.clone(),
            eager: settings.eager,
            state: Mutex::new(state),
        }
    }

    /// Returns the device's state, even after a fault.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the state of a device without a fault.
    pub(crate) fn working(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if let Some((status, _)) = &state.fault {
            return Err(*status);
        }
        // The process that removes the file has lost its device; another process finds no file, and a working device.
        match &self.lost {
            Some(file) if std::fs::remove_file(file).is_ok() => {
                Err(self.fault(&mut state, Status::UNKNOWN, format!("lost, since {} was there", file.display())))
            }
            _ => Ok(state),
        }
    }

    /// Returns the state as `working` does, for a call that may not be made by a thread that captures.
    pub(crate) fn working_uncaptured(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.working()?;
        state.refuse_to_capturer()?;
        Ok(state)
    }

    /// Ends all work on the device, and records the known reason.
    pub(crate) fn fault(&self, state: &mut State, status: Status, text: String) -> Status {
        say(format_args!("device {} ({}): {text}", self.index, self.target.name));
        state.streams.clear();
        state.fault.get_or_insert((status, text)).0
    }

    pub(crate) fn enqueue(&self, state: &mut State, stream: u64, operation: Operation) -> Result<()> {
        let origin = state.stream(stream)?.capture.origin.unwrap_or(stream);
        let Some(operation) = state.stream(origin)?.capture.add(stream, operation)? else { return Ok(()) };
        state.queued += 1;
        let mut queued = Queued::new(operation, &state.memory, stream, state.queued);
        if let Some((other, address)) = state.unordered(&queued) {
            let text =
                format!("two streams use {address:#x} without an event or a wait between them: {queued}; and {other}");
            drop(queued);
            return Err(self.fault(state, Status::ILLEGAL_STATE, text));
        }
        queued.expected = state.expected(&queued);
        state.stream(stream)?.waiting.push_back(queued);
        if self.eager {
            self.synchronize(state, stream)?;
        }
        Ok(())
    }

    /// Checks a launch as the driver does before accepting it.
    pub(crate) fn check_launch(&self, state: &State, launch: &Launch) -> Result<()> {
        let function = state.functions.get(&launch.function).ok_or(Status::INVALID_HANDLE)?;
        let product = |sizes: [u32; 3]| sizes.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
        let threads = product(launch.block).filter(|threads| (1..=MAX_THREADS_PER_BLOCK).contains(threads));
        let threads = threads.ok_or(Status::INVALID_VALUE)?;
        let grid_fits = launch
            .grid
            .iter()
            .zip(launch.block)
            .all(|(blocks, threads)| (1..=MAX_GRID).contains(blocks) && blocks.checked_mul(threads).is_some());
        let shared = function.info.shared_bytes.checked_add(launch.shared_bytes);
        let shared_fits = shared.is_some_and(|bytes| bytes <= self.target.lds_bytes);
        let arguments_fit = launch.argument_bytes >= function.info.argument_bytes();
        if threads > function.info.max_threads || !grid_fits || !shared_fits || !arguments_fit {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    }

    pub(crate) fn record(&self, state: &mut State, event: u64, stream: u64) -> Result<()> {
        if !state.events.contains_key(&event) {
            return Err(Status::INVALID_HANDLE);
        }
        let origin = state.stream(stream)?.capture.origin.unwrap_or(stream);
        let capture = &state.stream(origin)?.capture;
        if capture.is_active() {
            let captured = Some(capture.point(origin, stream));
            state.events.insert(event, Event { captured, ..Event::default() });
            return Ok(());
        }
        let queue = state.stream(stream)?;
        let mark = Mark { stream, position: queue.next_position() };
        let known = queue.known.clone();
        state.events.insert(event, Event { mark: Some(mark), known, ..Event::default() });
        self.enqueue(state, stream, Operation::Record)
    }

    pub(crate) fn wait(&self, state: &mut State, stream: u64, event: u64) -> Result<()> {
        let Event { mark, known, captured, .. } = state.events.get(&event).ok_or(Status::INVALID_HANDLE)?.clone();
        if let Some(point) = captured {
            if state.stream(point.origin)?.capture.wait(stream, point)? {
                state.stream(stream)?.capture.origin = Some(point.origin);
            }
            return Ok(());
        }
        let queue = state.stream(stream)?;
        queue.capture.refuse()?;
        match mark {
            // Within a stream operations are already ordered; an event that was never recorded is complete.
            Some(mark) if mark.stream != stream => {
                queue.known.merge(&known);
                queue.known.add(mark.stream, mark.position);
                self.enqueue(state, stream, Operation::Wait(mark))
            }
            _ => Ok(()),
        }
    }
}

impl State {
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn stream(&mut self, id: u64) -> Result<&mut Stream> {
        self.streams.live.get_mut(&id).ok_or(Status::INVALID_HANDLE)
    }

    /// Returns an operation of another stream that conflicts with this one in memory and is not ordered to it, and the
    /// address.
    fn unordered(&self, queued: &Queued) -> Option<(&Queued, u64)> {
        self.beside(queued.stream).find_map(|other| Some((other, queued.conflict(other)?)))
    }

    /// Returns the operations of other streams that are not ordered to what is enqueued next.
    fn beside(&self, stream: u64) -> impl Iterator<Item = &Queued> {
        let own = self.streams.live.get(&stream);
        let others = self.streams.live.iter().filter(move |(id, _)| **id != stream);
        others.flat_map(move |(id, stream)| {
            let known = own.map_or(0, |own| own.known.until(*id));
            stream.positions().filter(move |(position, _)| *position >= known).map(|(_, other)| other)
        })
    }

    /// Returns the bytes that a copy to the host has to find if an operation beside it may use the rest of the
    /// allocation. `None` if nothing does, or if the copy's own stream may still change them.
    fn expected(&self, queued: &Queued) -> Option<Vec<u8>> {
        let Operation::ToHost { from, bytes, .. } = queued.operation else { return None };
        let (start, end) = self.memory.extent(from)?;
        let mut own = self.streams.live.get(&queued.stream)?.waiting.iter();
        let is_settled = !own.any(|other| other.may_write(&(from..from + bytes as u64)));
        let is_shared = self.beside(queued.stream).any(|other| other.uses(&(start..end)));
        if is_settled && is_shared { self.memory.read(from, bytes) } else { None }
    }

    /// Returns a copy to the host that would not find what it has to.
    pub(crate) fn changed_copy(&self) -> Option<&Queued> {
        let is_changed = |queued: &&Queued| {
            let Operation::ToHost { from, bytes, .. } = queued.operation else { return false };
            queued.expected.as_ref().is_some_and(|expected| self.memory.read(from, bytes).as_ref() != Some(expected))
        };
        self.streams.live.values().flat_map(|stream| &stream.waiting).find(is_changed)
    }

    /// Returns an operation that has not run and uses the allocation that begins at an address.
    pub(crate) fn user_of(&self, start: u64) -> Option<&Queued> {
        let (start, end) = self.memory.extent(start)?;
        let mut waiting = self.streams.live.values().flat_map(|stream| &stream.waiting);
        waiting.find(|queued| queued.uses(&(start..end)))
    }

    /// Returns an error if the calling thread captures on one of the device's streams.
    pub(crate) fn refuse_to_capturer(&mut self) -> Result<()> {
        let thread = thread::current().id();
        self.streams.live.values_mut().try_for_each(|stream| stream.capture.refuse_to(thread))
    }
}
