//! The order of operations: the memory that they use, and whether one of two must run before the other.
//!
//! Streams run as late as they may: an operation runs only when somebody waits for it. A waiting operation is ordered
//! only to its own stream and to streams that wait for a later event of it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::thread::{self, ThreadId};

use super::host_memory::host_memory;
use super::operation::{HostAddress, Launch, Operation};
use crate::guard::{Guard, Use};
use crate::memory::Memory;

/// Memory that an operation uses.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub range: Range<u64>,
    pub writes: bool,
    extent: Extent,
}

/// How much of an allocation an access uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A kernel may use all of it.
    Unknown,
    Part,
    Whole,
}

impl Access {
    /// Returns the first address at which the order of two accesses matters. A kernel may use other parts of an
    /// allocation than a copy does.
    fn conflict(&self, other: &Self) -> Option<u64> {
        if matches!((self.extent, other.extent), (Extent::Unknown, Extent::Part) | (Extent::Part, Extent::Unknown)) {
            return None;
        }
        let start = self.range.start.max(other.range.start);
        ((self.writes || other.writes) && start < self.range.end.min(other.range.end)).then_some(start)
    }
}

/// An operation that waits on a stream, and the call that enqueued it.
#[derive(Debug)]
pub(crate) struct Queued {
    pub operation: Operation,
    pub accesses: Vec<Access>,
    pub guards: Vec<Guard>,
    /// The bytes that a copy to the host has to find if kernels of other streams may use the rest of the allocation.
    pub expected: Option<Vec<u8>>,
    /// The number of the call among those that enqueue something on the device.
    call: u64,
    pub stream: u64,
    thread: ThreadId,
}

impl Queued {
    pub(crate) fn new(operation: Operation, memory: &Memory, stream: u64, call: u64) -> Self {
        let mut accesses = Vec::new();
        collect(&operation, memory, &mut accesses);
        let mut guards = Vec::new();
        guard(&operation, &mut guards);
        Self { operation, accesses, guards, expected: None, call, stream, thread: thread::current().id() }
    }

    /// Returns the first address that both use and one of them writes.
    pub(crate) fn conflict(&self, other: &Self) -> Option<u64> {
        let mut pairs = self.accesses.iter().flat_map(|access| other.accesses.iter().map(move |other| (access, other)));
        pairs.find_map(|(access, other)| access.conflict(other))
    }

    /// True if it may write to a range, for all that its accesses say.
    pub(crate) fn may_write(&self, range: &Range<u64>) -> bool {
        let overlaps = |access: &Access| access.range.start < range.end && range.start < access.range.end;
        self.accesses.iter().any(|access| access.writes && (access.extent == Extent::Unknown || overlaps(access)))
    }

    /// True if it uses any part of a range.
    pub(crate) fn uses(&self, range: &Range<u64>) -> bool {
        self.accesses.iter().any(|access| access.range.start < range.end && range.start < access.range.end)
    }
}

/// `call 12, thread 3, stream 2: copy of 64 bytes from the host's 0x1000 to 0x2000`
impl fmt::Display for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, stream, thread, operation, .. } = self;
        write!(f, "call {call}, {thread:?}, stream {stream}: {operation}")
    }
}

fn collect(operation: &Operation, memory: &Memory, accesses: &mut Vec<Access>) {
    let mut add = |start: u64, bytes: usize, writes: bool| {
        let range = start..start + bytes as u64;
        let is_part = memory.extent(start).is_some_and(|(first, end)| range.start > first || range.end < end);
        accesses.push(Access { range, writes, extent: if is_part { Extent::Part } else { Extent::Whole } });
    };
    match operation {
        Operation::ToDevice { to, from, bytes } => {
            add(*to, *bytes, true);
            add(from.0 as u64, *bytes, false);
        }
        Operation::ToHost { to, from, bytes } => {
            add(*from, *bytes, false);
            add(to.0 as u64, *bytes, true);
        }
        Operation::OnDevice { to, from, bytes } => {
            add(*to, *bytes, true);
            add(*from, *bytes, false);
        }
        Operation::Fill { to, bytes, .. } => add(*to, *bytes, true),
        // A kernel may do anything with its pointers, so each is taken as a write.
        Operation::Launch(launch) => {
            let pointers = pointers(launch).filter(|pointer| memory.contains(*pointer, 1));
            let access = |at| Access { range: at..at + 1, writes: true, extent: Extent::Unknown };
            accesses.extend(pointers.map(access));
        }
        Operation::Graph(operations) => {
            operations.iter().for_each(|operation| collect(operation, memory, accesses));
        }
        Operation::Product(product) => {
            add(product.a.at, product.a.bytes(), false);
            add(product.b.at, product.b.bytes(), false);
            add(product.d.at, product.d.bytes(), true);
        }
        // Nothing tells what memory a function of the host uses.
        Operation::Host(_) | Operation::Record | Operation::Wait(_) => {}
    }
}

/// Returns the words of a kernel's arguments that may be addresses.
fn pointers(launch: &Launch) -> impl Iterator<Item = u64> {
    let bytes = launch.arguments.iter().flat_map(|word| word.to_le_bytes()).take(launch.argument_bytes);
    let bytes: Vec<u8> = bytes.collect();
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.into_iter()
}

/// Returns the page-locked memory that a kernel's arguments point into, from each pointer on.
pub(crate) fn pinned_by(launch: &Launch) -> impl Iterator<Item = Range<u64>> {
    let host = host_memory().lock();
    let ranges = pointers(launch).filter_map(|pointer| Some(pointer..host.memory.extent(pointer)?.1));
    ranges.collect::<Vec<_>>().into_iter()
}

/// Guards an operation's page-locked memory; a kernel is taken to read it.
fn guard(operation: &Operation, guards: &mut Vec<Guard>) {
    let (HostAddress(host), bytes, copy) = match operation {
        Operation::ToDevice { from, bytes, .. } => (*from, *bytes, Use::Reads),
        Operation::ToHost { to, bytes, .. } => (*to, *bytes, Use::Writes),
        Operation::Launch(launch) => {
            let ranges = pinned_by(launch).map(|range| (range.start as usize, (range.end - range.start) as usize));
            return guards.extend(ranges.filter_map(|(start, bytes)| Guard::new(start, bytes, Use::Reads)));
        }
        Operation::Graph(operations) => return operations.iter().for_each(|operation| guard(operation, guards)),
        _ => return,
    };
    let is_pinned = host_memory().lock().memory.contains(host as u64, bytes as u64);
    if is_pinned {
        guards.extend(Guard::new(host, bytes, copy));
    }
}

/// The positions up to which operations of other streams precede the next queued operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(HashMap<u64, u64>);

impl Known {
    pub(crate) fn until(&self, stream: u64) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, stream: u64, position: u64) {
        let known = self.0.entry(stream).or_default();
        *known = (*known).max(position);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(stream, position)| self.add(*stream, *position));
    }
}
