//! The load-time test of a step's integers. A chain of kernels as long as a step's runs repeatedly with changing
//! numbers in page-locked memory. The first kernel copies them. The others read them like the engine's kernels, and
//! with plain loads.
//!
//! The test finds drivers that replay graphs with the numbers of an earlier replay, and devices that miss the host's
//! writes. It takes tens of milliseconds on a GPU, and a few if nothing is captured.

use crate::launch::args::{LINK_BLOCKS, LinkStepsArgs};
use crate::launch::catalog::{COPY_STEP, KernelId, LINK_STEPS, ONCE};
use crate::step::{COPY_HEADER, TokenIds, counted, launch_copy};
use crate::{DeviceBuffer, DevicePtr, DeviceSlice, Function, Graph, HostBuffer, Kernels, MappedBuffer, Stream};
use crate::{Error, Result};

/// Kernels of the chain: a step of an 8B model has up to 262, and faults began at 200.
const LINKS: usize = 300;
/// Repetitions of a graph, and of the chain launched kernel by kernel.
const REPETITIONS: u32 = 64;
pub(super) const EAGER_REPETITIONS: u32 = 4;
/// Blocks of a link.
const BLOCKS: usize = LINK_BLOCKS as usize;
/// Bytes that a link stores: for each block one sum by plain loads, and one by the engine's loads.
const LINK_BYTES: usize = 4 * 2 * BLOCKS;
/// Words of the step: a pair, whose first word is the number.
const STEP_WORDS: usize = 2;
const STEP_BYTES: usize = 4 * STEP_WORDS;

/// `Ok` if the kernels have read the right numbers; else the wrong ones.
pub(crate) type Found = std::result::Result<(), String>;

/// Checks that replayed graphs read their own numbers. If they do not, or if a replay fails, the engine works without
/// graphs.
///
/// # Errors
/// `Error::EngineDead`.
pub(crate) fn check_graphs(kernels: &Kernels, stream: &Stream) -> Result<Found> {
    let checked = functions(kernels)
        .and_then(|functions| Chain::new(functions, stream)?.captured(stream)?.check(stream, REPETITIONS))
        .map(|found| found.map_err(|wrong| format!("a repeated graph read old numbers ({wrong})")));
    match checked {
        Ok(found) => Ok(found),
        Err(error @ Error::EngineDead { .. }) => Err(error),
        Err(error) => Ok(Err(format!("repeating a graph failed: {error}"))),
    }
}

/// Checks that kernels read what the host has written into page-locked memory.
///
/// # Errors
/// The errors of the device.
pub(crate) fn check_eager(functions: [Function; 2], stream: &Stream, repetitions: u32) -> Result<Found> {
    let found = Chain::new(functions, stream)?.check(stream, repetitions)?;
    Ok(found.map_err(|wrong| format!("kernels read old numbers from page-locked memory ({wrong})")))
}

/// Returns the two kernels of the chain.
///
/// # Errors
/// The errors of `Kernels::function`.
pub(crate) fn functions(kernels: &Kernels) -> Result<[Function; 2]> {
    let [copy_step, link_steps] = kernel_ids();
    Ok([kernels.function(&copy_step)?, kernels.function(&link_steps)?])
}

/// Returns the ids of the two kernels, which are in one unit.
pub(crate) fn kernel_ids() -> [KernelId; 2] {
    [COPY_STEP.id(ONCE), LINK_STEPS.id(ONCE)]
}

struct Chain {
    /// First, since it must have run before its memory is freed. `None`: the kernels are launched one by one.
    graph: Option<Graph>,
    functions: [Function; 2],
    step: MappedBuffer,
    sums: HostBuffer,
    memory: DeviceBuffer,
}

impl Chain {
    fn new(functions: [Function; 2], stream: &Stream) -> Result<Self> {
        let device = stream.device();
        let step = MappedBuffer::new(device, COPY_HEADER + STEP_BYTES)?;
        let sums = HostBuffer::new(device, LINKS * LINK_BYTES)?;
        let memory = DeviceBuffer::new(device, (STEP_BYTES + LINKS * LINK_BYTES) as u64)?;
        Ok(Self { graph: None, functions, step, sums, memory })
    }

    fn captured(mut self, stream: &Stream) -> Result<Self> {
        stream.begin_capture()?;
        let queued = self.queue(stream);
        let graph = stream.end_capture();
        queued?;
        self.graph = Some(graph?);
        Ok(self)
    }

    fn check(&mut self, stream: &Stream, repetitions: u32) -> Result<Found> {
        for repetition in 1..=repetitions {
            // No two numbers share a bit pattern.
            let number = repetition.wrapping_mul(0x9e37_79b9);
            counted(self.step.as_mut_slice(), STEP_WORDS)[0] = number.to_ne_bytes();
            let queued = self.repeat(stream);
            // Wait after an error, too: queued kernels use the memory.
            let waited = stream.synchronize();
            if waited.is_err() {
                // A failed wait says nothing about the kernels, and the memory is freed next.
                let _ = stream.synchronize();
            }
            waited?;
            queued?;
            if let Some(wrong) = wrong_link(self.sums.as_slice(), number) {
                return Ok(Err(format!("{wrong}, repetition {repetition}")));
            }
        }
        Ok(Ok(()))
    }

    fn repeat(&mut self, stream: &Stream) -> Result<()> {
        match &self.graph {
            // SAFETY: the graph's memory is the chain's; the host's is used again only after the stream was waited for.
            Some(graph) => unsafe { stream.launch_graph(graph)? },
            None => self.queue(stream)?,
        }
        // SAFETY: as above.
        unsafe { stream.copy_to_host(self.sums.as_mut_slice(), links(self.memory.slice())?) }
    }

    fn queue(&self, stream: &Stream) -> Result<()> {
        let ([copy_step, link_steps], memory) = (&self.functions, self.memory.slice());
        let token_ids = TokenIds { count: 0, chosen: memory };
        // SAFETY: both sides have room for the pair of words, and live as long as the graph, or until the stream was
        // waited for.
        unsafe { launch_copy(stream, copy_step, self.step.slice(), memory, STEP_WORDS, token_ids)? };
        let mut before = DevicePtr::NULL;
        for link in 0..LINKS {
            let out = links(memory)?.part((link * LINK_BYTES) as u64, LINK_BYTES as u64)?.ptr();
            let args = LinkStepsArgs { step: memory.ptr(), before, out };
            // SAFETY: as above; each link has its own place.
            unsafe { stream.launch(link_steps, [BLOCKS as u32, 1, 1], &args)? };
            before = out;
        }
        Ok(())
    }
}

/// Returns the memory of the sums, which follow the number.
fn links(memory: DeviceSlice<'_>) -> Result<DeviceSlice<'_>> {
    memory.after(STEP_BYTES as u64)
}

/// Names the first link whose sums do not match this number.
fn wrong_link(sums: &[u8], number: u32) -> Option<String> {
    for (link, sums) in (1..).zip(sums.chunks_exact(LINK_BYTES)) {
        let expected = number.wrapping_mul(link);
        for (at, &sum) in sums.as_chunks().0.iter().enumerate() {
            if u32::from_ne_bytes(sum) != expected {
                let how = if at % 2 == 0 { "plain" } else { "atomic" };
                return Some(format!("kernel {link} of {LINKS}, by {how} loads"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_link_is_named() {
        let sums = |number: u32| (1..=LINKS as u32).flat_map(move |link| [number.wrapping_mul(link); 2 * BLOCKS]);
        let bytes = |sums: Vec<u32>| sums.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>();
        let right: Vec<u32> = sums(7).collect();
        assert_eq!(wrong_link(&bytes(right.clone()), 7), None);
        for (at, text) in [(2, "kernel 1 of 300, by plain loads"), (2 * BLOCKS + 1, "kernel 2 of 300, by atomic loads")]
        {
            let mut wrong = right.clone();
            wrong[at] += 1;
            wrong[2 * BLOCKS * 5] += 1;
            assert_eq!(wrong_link(&bytes(wrong), 7).as_deref(), Some(text));
        }
    }
}
