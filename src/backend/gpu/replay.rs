//! The load-time test of recorded work: a chain of kernels as long as a step's is repeated with other numbers, which
//! each of them reads as the engine's kernels do and as a compiler would. Drivers whose repeated graphs read the
//! numbers of an earlier repetition are found here and not in a conversation. It takes tens of milliseconds on a GPU.

use super::args::{LINK_BLOCKS, LinkStepsArgs};
use super::kernel::{COPY_STEP, LINK_STEPS, ONCE};
use super::step::{COPY_HEADER, TokenIds, counted, launch_copy};
use super::{Device, DeviceBuffer, DevicePtr, DeviceSlice, Function, Graph, HostBuffer, Kernels, MappedBuffer, Stream};
use crate::{Error, Result};

/// Kernels of the chain: a step of a model of 8 billion parameters has up to 262, and faults began at 200.
const LINKS: usize = 300;
const REPETITIONS: u32 = 64;
/// Blocks of a link.
const BLOCKS: usize = LINK_BLOCKS as usize;
/// Bytes that a link stores: for each block a sum by plain loads, and one by the engine's.
const LINK_BYTES: usize = 4 * 2 * BLOCKS;
/// Words of the step: a pair, of which the first is the number.
const STEP_WORDS: usize = 2;
const STEP_BYTES: usize = 4 * STEP_WORDS;

/// Whether repeated graphs read their own numbers; else what was seen, which is no failure of the engine.
///
/// # Errors
/// `Error::EngineDead`.
pub(super) fn check(kernels: &Kernels, stream: &Stream) -> Result<std::result::Result<(), String>> {
    let checked = Chain::record(kernels, stream).and_then(|mut chain| chain.check(stream));
    match checked {
        Ok(found) => Ok(found),
        Err(error @ Error::EngineDead { .. }) => Err(error),
        Err(error) => Ok(Err(format!("repeating a graph failed: {error}"))),
    }
}

struct Chain {
    /// First, so that it has run when its memory goes.
    graph: Graph,
    step: MappedBuffer,
    sums: HostBuffer,
    memory: DeviceBuffer,
}

impl Chain {
    fn record(kernels: &Kernels, stream: &Stream) -> Result<Self> {
        let device: &Device = stream.device();
        let functions = [kernels.function(&COPY_STEP.id(ONCE))?, kernels.function(&LINK_STEPS.id(ONCE))?];
        let (step, sums) =
            (MappedBuffer::new(device, COPY_HEADER + STEP_BYTES)?, HostBuffer::new(device, LINKS * LINK_BYTES)?);
        let memory = DeviceBuffer::new(device, (STEP_BYTES + LINKS * LINK_BYTES) as u64)?;
        stream.begin_capture()?;
        let queued = queue(stream, &functions, step.slice(), memory.slice());
        let graph = stream.end_capture();
        queued?;
        Ok(Self { graph: graph?, step, sums, memory })
    }

    fn check(&mut self, stream: &Stream) -> Result<std::result::Result<(), String>> {
        for repetition in 1..=REPETITIONS {
            // No two numbers have a bit pattern in common.
            let number = repetition.wrapping_mul(0x9e37_79b9);
            counted(self.step.as_mut_slice(), STEP_WORDS)[0] = number.to_ne_bytes();
            // SAFETY: the graph's memory is the chain's; the host's is used again only after the stream was waited for.
            unsafe {
                stream.launch_graph(&self.graph)?;
                stream.copy_to_host(self.sums.as_mut_slice(), links(self.memory.slice())?)?;
            }
            stream.synchronize()?;
            if let Some(wrong) = wrong_link(self.sums.as_slice(), number) {
                return Ok(Err(format!("a repeated graph read old numbers ({wrong}, repetition {repetition})")));
            }
        }
        Ok(Ok(()))
    }
}

/// Place of the sums, behind the number.
fn links(memory: DeviceSlice<'_>) -> Result<DeviceSlice<'_>> {
    memory.after(STEP_BYTES as u64)
}

fn queue(
    stream: &Stream,
    [copy_step, link_steps]: &[Function; 2],
    from: DeviceSlice<'_>,
    memory: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: both sides have room for the pair of words, and live as long as the graph.
    unsafe { launch_copy(stream, copy_step, from, memory, STEP_WORDS, TokenIds { count: 0, chosen: memory })? };
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

/// The first link whose sums are not those of this number.
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
