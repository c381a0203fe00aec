//! Copies of contents between the pools and the host. They run on a stream of their own, beside the steps, through
//! page-locked memory.

use std::collections::{BTreeMap, VecDeque};

use super::stream::Event;
use super::{Device, DeviceSlice, HostBuffer, Stream};
use crate::backend::Copied;
use crate::backend::contents::{joined, split_off, wrong_size};
use crate::{Error, Result};

/// The bytes that copies to the device may have under way, and the fewest and the most contents.
const STAGING_BYTES: u64 = 32 << 20;
const MIN_STAGED: u64 = 2;
const MAX_STAGED: u64 = 64;

pub(super) struct Copies {
    /// First, because its drop waits for the copies that use the memory below.
    stream: Stream,
    /// For copies to the host, by its bytes.
    idle: BTreeMap<usize, Vec<Staging>>,
    under_way: VecDeque<UnderWay>,
    /// For copies to the device, oldest first.
    back: VecDeque<Staging>,
    /// The end of the steps that were queued before the copies, and the end of the copies before the next step.
    computed: Event,
    copied: Event,
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

struct UnderWay {
    number: u64,
    bytes: usize,
    staging: Staging,
}

impl Staging {
    fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(Self { memory: HostBuffer::new(device, bytes)?, end: Event::new(device)? })
    }
}

impl Copies {
    /// `staged`: the bytes of contents, and how many of them may be under way to the host.
    pub(super) fn new(device: &Device, staged: &[(u64, usize)]) -> Result<Self> {
        let largest = staged.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0).max(1);
        let new = |bytes: u64| {
            let bytes = usize::try_from(bytes).map_err(|_| Error::internal("contents without bounds"))?;
            Staging::new(device, bytes)
        };
        let mut idle = BTreeMap::<_, Vec<Staging>>::new();
        for &(bytes, number) in staged.iter().filter(|(bytes, _)| *bytes > 0) {
            for staging in (0..number).map(|_| new(bytes)) {
                let staging = staging?;
                idle.entry(staging.memory.as_slice().len()).or_default().push(staging);
            }
        }
        let num_back = (STAGING_BYTES / largest).clamp(MIN_STAGED, MAX_STAGED);
        Ok(Self {
            stream: Stream::new(device)?,
            idle,
            under_way: VecDeque::new(),
            back: (0..num_back).map(|_| new(largest)).collect::<Result<_>>()?,
            computed: Event::new(device)?,
            copied: Event::new(device)?,
            is_behind: false,
            is_awaited: false,
        })
    }

    /// Lets the step that is about to be queued on `steps` begin after the copies that it depends on.
    pub(super) fn begin_step(&mut self, steps: &Stream) -> Result<()> {
        self.is_behind = true;
        if std::mem::take(&mut self.is_awaited) {
            self.copied.record(&self.stream)?;
            steps.wait_for(&self.copied)?;
        }
        Ok(())
    }

    /// Lets the next copies begin after all steps that are queued on `steps`. A step counts as computed before it has
    /// run if nobody needs its results.
    fn follow(&mut self, steps: &Stream) -> Result<()> {
        if std::mem::take(&mut self.is_behind) {
            self.computed.record(steps)?;
            self.stream.wait_for(&self.computed)?;
        }
        Ok(())
    }

    pub(super) fn order(&mut self) {
        self.is_awaited = true;
    }

    pub(super) fn copy_out(&mut self, number: u64, parts: &[DeviceSlice<'_>], steps: &Stream) -> Result<bool> {
        self.follow(steps)?;
        let bytes: u64 = parts.iter().map(|part| part.bytes()).sum();
        let bytes = usize::try_from(bytes).map_err(|_| Error::internal("contents without bounds"))?;
        let idle = self.idle.range_mut(bytes..).next().map(|(_, idle)| idle);
        let Some(mut staging) = idle.and_then(Vec::pop) else { return Ok(false) };
        let copied = copy_parts_out(&self.stream, &mut staging, parts);
        // If the copy was not queued as a whole, a part of it may still write to the memory.
        let copied = copied.inspect_err(|_| drop(self.stream.synchronize()));
        match copied {
            Ok(bytes) => {
                self.under_way.push_back(UnderWay { number, bytes, staging });
                Ok(true)
            }
            Err(error) => {
                self.give_back(staging);
                Err(error)
            }
        }
    }

    /// Takes the oldest content, once its copy has ended.
    pub(super) fn copied(&mut self, wait: bool) -> Result<Option<Copied>> {
        let Some(oldest) = self.under_way.front() else { return Ok(None) };
        if wait {
            oldest.staging.end.synchronize()?;
        } else if !oldest.staging.end.has_passed()? {
            return Ok(None);
        }
        let Some(UnderWay { number, bytes, staging }) = self.under_way.pop_front() else { return Ok(None) };
        let content = joined(&[staging.memory.as_slice().get(..bytes).ok_or_else(|| wrong_size(bytes))?]);
        self.give_back(staging);
        Ok(Some((number, content)))
    }

    fn give_back(&mut self, staging: Staging) {
        self.idle.entry(staging.memory.as_slice().len()).or_default().push(staging);
    }

    pub(super) fn copy_in(&mut self, parts: &[DeviceSlice<'_>], content: &[u8], steps: &Stream) -> Result<()> {
        self.follow(steps)?;
        self.is_awaited = true;
        let Some(mut staging) = self.back.pop_front() else { return Err(Error::internal("no memory for copies back")) };
        // An earlier copy may still read the memory.
        let copied = staging.end.synchronize().and_then(|()| copy_parts_in(&self.stream, &mut staging, parts, content));
        self.back.push_back(staging);
        copied
    }
}

fn copy_parts_in(stream: &Stream, staging: &mut Staging, parts: &[DeviceSlice<'_>], content: &[u8]) -> Result<()> {
    let wrong = || wrong_size(content.len());
    staging.memory.as_mut_slice().get_mut(..content.len()).ok_or_else(wrong)?.copy_from_slice(content);
    let mut rest = &staging.memory.as_slice()[..content.len()];
    let mut fill = |memory: DeviceSlice<'_>| -> Result<()> {
        let from = split_off(&mut rest, memory.bytes() as usize)?;
        // SAFETY: the host writes the memory again only after the event below was waited for. The copy comes after all
        // queued steps, and before the next one.
        unsafe { stream.copy_to_device(memory, from) }
    };
    let filled = parts.iter().copied().try_for_each(&mut fill);
    staging.end.record(stream)?;
    filled?;
    if rest.is_empty() { Ok(()) } else { Err(wrong()) }
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
