//! Copies of contents between the pools and the host. They run on a separate stream, concurrently with the steps,
//! through page-locked memory. A separate thread (`host`) copies between that memory and the memory of the contents.

mod host;

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::stream::Event;
use crate::Result;
use crate::backend::contents::{split_off, wrong_size};
use crate::backend::{Content, Copied};
use crate::{Device, DeviceSlice, HostBuffer, Stream};

use host::{Done, HostThread, Job};

/// The bytes of each pool that copies to the device may have under way, and the fewest and the most contents.
const BACK_BYTES: u64 = 64 << 20;
const MIN_BACK: u64 = 2;
const MAX_BACK: u64 = 128;

pub(crate) struct Copies {
    /// First, because its drop waits for the copies that use the memory below.
    stream: Stream,
    host: HostThread,
    out: Idle,
    back: Idle,
    /// Copies to the host that the device makes, oldest first.
    leaving: VecDeque<Transfer>,
    /// The number of contents that the thread takes out of page-locked memory, and those that it has taken out.
    num_taken_out: usize,
    copied: VecDeque<Copied>,
    /// The parts of contents that the thread copies to page-locked memory, by their numbers.
    filling: HashMap<u64, Vec<DevicePart>>,
    /// Contents in page-locked memory whose copies are not queued yet.
    filled: VecDeque<Transfer>,
    /// Copies to the device that it makes, oldest first.
    arriving: VecDeque<Transfer>,
    /// The end of the steps that were queued before the copies, and the end of the copies before the next step.
    computed: Event,
    copied_out: Event,
    /// True if a step was queued that the stream does not wait for.
    is_behind: bool,
    /// True if the next step has to begin after the copies so far.
    is_awaited: bool,
}

/// Page-locked memory for one content, and the end of the copy that uses it.
struct Staging {
    memory: HostBuffer,
    end: Event,
}

/// Page-locked memory that no copy uses, by its bytes.
struct Idle(BTreeMap<usize, Vec<Staging>>);

/// A content in page-locked memory.
struct Transfer {
    number: u64,
    bytes: usize,
    staging: Staging,
}

/// A part of a content on the device: its address and its bytes.
type DevicePart = (u64, u64);

impl Idle {
    /// `numbers`: the bytes of contents, and how many of them may be under way.
    fn new(device: &Device, numbers: impl Iterator<Item = (u64, u64)>) -> Result<Self> {
        let mut idle = BTreeMap::<_, Vec<Staging>>::new();
        for (bytes, number) in numbers.filter(|(bytes, _)| *bytes > 0) {
            let bytes = usize::try_from(bytes).map_err(|_| wrong_size(usize::MAX))?;
            for _ in 0..number {
                let staging = Staging { memory: HostBuffer::new(device, bytes)?, end: Event::new(device)? };
                idle.entry(bytes).or_default().push(staging);
            }
        }
        Ok(Self(idle))
    }

    fn take(&mut self, bytes: usize) -> Option<Staging> {
        self.0.range_mut(bytes..).find_map(|(_, idle)| idle.pop())
    }

    fn give_back(&mut self, staging: Staging) {
        self.0.entry(staging.memory.as_slice().len()).or_default().push(staging);
    }
}

impl Copies {
    /// `staged`: the bytes of contents, and how many of them may be under way to the host.
    pub(crate) fn new(device: &Device, staged: &[(u64, usize)]) -> Result<Self> {
        let back = |(bytes, _): &(u64, usize)| (*bytes, (BACK_BYTES / (*bytes).max(1)).clamp(MIN_BACK, MAX_BACK));
        Ok(Self {
            stream: Stream::new(device)?,
            host: HostThread::start()?,
            out: Idle::new(device, staged.iter().map(|(bytes, number)| (*bytes, *number as u64)))?,
            back: Idle::new(device, staged.iter().map(back))?,
            leaving: VecDeque::new(),
            num_taken_out: 0,
            copied: VecDeque::new(),
            filling: HashMap::new(),
            filled: VecDeque::new(),
            arriving: VecDeque::new(),
            computed: Event::new(device)?,
            copied_out: Event::new(device)?,
            is_behind: false,
            is_awaited: false,
        })
    }

    /// Lets the step that is about to be queued on `steps` begin after the copies that it depends on.
    pub(crate) fn begin_step(&mut self, steps: &Stream) -> Result<()> {
        self.is_behind = true;
        if self.is_awaited {
            self.copied_out.record(&self.stream)?;
            steps.wait_for(&self.copied_out)?;
            self.is_awaited = false;
        }
        Ok(())
    }

    /// Lets the next copies begin after all steps that are queued on `steps`. A step counts as computed before it has
    /// run if nobody needs its results.
    fn follow(&mut self, steps: &Stream) -> Result<()> {
        if self.is_behind {
            self.computed.record(steps)?;
            self.stream.wait_for(&self.computed)?;
            self.is_behind = false;
        }
        Ok(())
    }

    pub(crate) fn order(&mut self) {
        self.is_awaited = true;
    }

    pub(crate) fn copy_out(&mut self, number: u64, parts: &[DeviceSlice<'_>], steps: &Stream) -> Result<bool> {
        self.follow(steps)?;
        let bytes: u64 = parts.iter().map(|part| part.bytes()).sum();
        let bytes = usize::try_from(bytes).map_err(|_| wrong_size(usize::MAX))?;
        let Some(mut staging) = self.out.take(bytes) else { return Ok(false) };
        let copied = copy_parts_out(&self.stream, &mut staging, parts);
        // If the copy was not queued as a whole, a part of it may still write to the memory.
        let copied = copied.inspect_err(|_| drop(self.stream.synchronize()));
        match copied {
            Ok(bytes) => {
                self.leaving.push_back(Transfer { number, bytes, staging });
                Ok(true)
            }
            Err(error) => {
                self.out.give_back(staging);
                Err(error)
            }
        }
    }

    /// Takes the oldest content that is in memory of its own. With `wait`, waits for one if any is being copied.
    pub(crate) fn copied(&mut self, wait: bool) -> Result<Option<Copied>> {
        while let Some(oldest) = self.leaving.front()
            && oldest.staging.end.has_passed()?
        {
            self.take_out_oldest()?;
        }
        self.take_done(false)?;
        while wait && self.copied.is_empty() && (self.num_taken_out > 0 || !self.leaving.is_empty()) {
            if self.num_taken_out == 0
                && let Some(oldest) = self.leaving.front()
            {
                oldest.staging.end.synchronize()?;
                self.take_out_oldest()?;
            }
            self.take_done(true)?;
        }
        Ok(self.copied.pop_front())
    }

    fn take_out_oldest(&mut self) -> Result<()> {
        let Some(Transfer { number, bytes, staging }) = self.leaving.pop_front() else { return Ok(()) };
        self.num_taken_out += 1;
        self.host.send(Job::Out { number, bytes, staging })
    }

    /// Takes the results of the thread; with `wait`, at least one.
    fn take_done(&mut self, mut wait: bool) -> Result<()> {
        while let Some(done) = self.host.take(wait)? {
            wait = false;
            match done {
                Done::Out { number, content, staging } => {
                    self.num_taken_out -= 1;
                    self.out.give_back(staging);
                    self.copied.push_back((number, content));
                }
                Done::Back { number, bytes, staging } => self.filled.push_back(Transfer { number, bytes, staging }),
            }
        }
        Ok(())
    }

    pub(crate) fn copy_in(&mut self, number: u64, parts: &[DeviceSlice<'_>], content: &Content) -> Result<bool> {
        if parts.iter().map(|part| part.bytes()).sum::<u64>() != content.len() as u64 {
            return Err(wrong_size(content.len()));
        }
        let Some(staging) = self.back.take(content.len()) else { return Ok(false) };
        self.filling.insert(number, parts.iter().map(|part| (part.ptr().address(), part.bytes())).collect());
        self.host.send(Job::Back { number, content: content.clone(), staging })?;
        Ok(true)
    }

    /// Queues copies of contents that are in page-locked memory. Returns the number of one that has arrived, oldest
    /// first. With `wait`, waits for one if any is being copied.
    pub(crate) fn copied_in(&mut self, wait: bool, steps: &Stream) -> Result<Option<u64>> {
        self.take_done(false)?;
        self.queue_filled(steps)?;
        while wait && self.arriving.is_empty() && !self.filling.is_empty() {
            self.take_done(true)?;
            self.queue_filled(steps)?;
        }
        let Some(oldest) = self.arriving.front() else { return Ok(None) };
        if wait {
            oldest.staging.end.synchronize()?;
        } else if !oldest.staging.end.has_passed()? {
            return Ok(None);
        }
        let Some(Transfer { number, staging, .. }) = self.arriving.pop_front() else { return Ok(None) };
        self.back.give_back(staging);
        Ok(Some(number))
    }

    fn queue_filled(&mut self, steps: &Stream) -> Result<()> {
        while let Some(transfer) = self.filled.pop_front() {
            self.follow(steps)?;
            let parts = self.filling.remove(&transfer.number).unwrap_or_default();
            let queued = copy_parts_in(&self.stream, &transfer, &parts);
            // If the copy was not queued as a whole, a part of it may still read the memory.
            let queued = queued.inspect_err(|_| drop(self.stream.synchronize()));
            self.arriving.push_back(transfer);
            queued?;
        }
        Ok(())
    }

    /// Takes the memory of a content that is not needed any more.
    pub(crate) fn recycle(&self, content: Content) -> Result<()> {
        self.host.send(Job::Spare(content))
    }
}

fn copy_parts_in(stream: &Stream, Transfer { bytes, staging, .. }: &Transfer, parts: &[DevicePart]) -> Result<()> {
    let mut rest = staging.memory.as_slice().get(..*bytes).ok_or_else(|| wrong_size(*bytes))?;
    for &(address, bytes) in parts {
        let from = split_off(&mut rest, bytes as usize)?;
        // SAFETY: the address is that of a part of a pool, which lives as long as the copies, since both belong to one
        // model. The host writes the memory again only after the event below has passed. The copy comes after all steps
        // that were queued before, and no later one uses the block before the copy has ended.
        unsafe { stream.copy_to_address(address, from)? };
    }
    staging.end.record(stream)
}

fn copy_parts_out(stream: &Stream, staging: &mut Staging, parts: &[DeviceSlice<'_>]) -> Result<usize> {
    let mut rest = staging.memory.as_mut_slice();
    let mut bytes = 0;
    for &memory in parts {
        let len = memory.bytes() as usize;
        let (to, after) = std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(|| wrong_size(bytes + len))?;
        // SAFETY: the host reads `to` only after the event below was waited for, and the staging memory lives until the
        // stream was waited for. The copy comes after all queued steps. A later one writes the content only if its
        // block has a new owner, and then begins after the copy.
        unsafe { stream.copy_to_host(to, memory)? };
        (rest, bytes) = (after, bytes + len);
    }
    staging.end.record(stream)?;
    Ok(bytes)
}
