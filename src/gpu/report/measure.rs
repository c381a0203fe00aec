//! Measures how fast a device copies, reads and launches, to judge the speed of an engine on it.

use std::time::{Duration, Instant};

use crate::config::GpuOptions;
use crate::launch::args::ProbeArgs;
use crate::launch::catalog::{ONCE, PROBE_NOTHING, PROBE_READ, PROBE_THREADS};
use crate::{Device, DeviceBuffer, Function, Graph, HostBuffer, Kernels, Stream};
use crate::{Error, Result};

/// Bytes per second, the best of several passes.
#[derive(Debug, Clone, Copy)]
pub struct Bandwidth {
    /// Bytes of each device buffer, and of the page-locked host buffer.
    pub device_bytes: u64,
    pub host_bytes: u64,
    pub to_device: f64,
    pub to_host: f64,
    /// Bytes read plus bytes written.
    pub on_device: f64,
    /// Speed of a kernel that only reads.
    pub read: f64,
}

/// Times in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Launches {
    pub launches: usize,
    /// Time from one launch of an empty kernel to the next, with many queued one after the other.
    pub eager: f64,
    /// The host's part of `eager`: the time of the call.
    pub call: f64,
    /// Time that one more empty kernel adds to a graph, and time to launch a graph of one kernel.
    pub graph_node: f64,
    pub graph: f64,
}

const PASSES: usize = 5;
/// Blocks of the reading kernel per multiprocessor.
const BLOCKS: u32 = 32;
/// Nodes of the two graphs. The difference of their times is that of the additional nodes.
const FEW_NODES: usize = 1;
const MANY_NODES: usize = 300;
const BYTES_OF_A_PIECE: u64 = 16;

/// The stream and the kernels that copy and read, with their memory.
struct Probe {
    stream: Stream,
    nothing: Function,
    read: Function,
    data: DeviceBuffer,
    out: DeviceBuffer,
    blocks: u32,
}

impl Probe {
    fn new(device: &Device, options: &GpuOptions, bytes: u64) -> Result<Self> {
        let kernels = Kernels::new(device, options)?;
        let blocks = BLOCKS * device.properties().multiprocessors.max(1);
        let probe = Self {
            stream: Stream::new(device)?,
            nothing: kernels.function(&PROBE_NOTHING.id(ONCE))?,
            read: kernels.function(&PROBE_READ.id(ONCE))?,
            data: DeviceBuffer::new(device, bytes)?,
            out: DeviceBuffer::new(device, 4 * u64::from(blocks * PROBE_THREADS))?,
            blocks,
        };
        // SAFETY: the buffer is ours.
        unsafe { probe.stream.fill(probe.data.slice(), 0)? };
        probe.stream.synchronize()?;
        Ok(probe)
    }

    fn args(&self) -> ProbeArgs {
        let pieces = self.data.bytes() / BYTES_OF_A_PIECE;
        ProbeArgs { data: self.data.ptr(), out: self.out.ptr(), pieces, blocks: self.blocks }
    }

    /// Launches the reading kernel over the whole buffer.
    fn launch_read(&self) -> Result<()> {
        // SAFETY: the buffers are as large as the arguments say, live as long as the stream, and nobody else uses them.
        unsafe { self.stream.launch(&self.read, [self.blocks, 1, 1], &self.args()) }
    }

    fn launch_nothing(&self) -> Result<()> {
        // SAFETY: the kernel accesses no memory.
        unsafe { self.stream.launch(&self.nothing, [1, 1, 1], &self.args()) }
    }

    /// Returns the shortest time of several passes, after one warm-up pass.
    fn best(&self, mut queue: impl FnMut() -> Result<()>) -> Result<Duration> {
        let mut best = Duration::MAX;
        for pass in 0..=PASSES {
            let started = Instant::now();
            queue()?;
            self.stream.synchronize()?;
            if pass > 0 {
                best = best.min(started.elapsed());
            }
        }
        Ok(best)
    }
}

/// Copies and reads `bytes` of device memory, or a quarter of the free memory if that is less. A part of it is copied
/// to the host and back.
///
/// # Errors
/// The errors of the device; `Internal` if there is not even a little free memory.
pub fn bandwidth(device: &Device, options: &GpuOptions, bytes: u64, host_bytes: u64) -> Result<Bandwidth> {
    let bytes = bytes.min(device.free_memory()? / 4) / BYTES_OF_A_PIECE * BYTES_OF_A_PIECE;
    // The buffers come before the probe, so they are freed after it: its stream waits when it is dropped.
    let other = DeviceBuffer::new(device, bytes)?;
    let host_bytes = host_bytes.min(bytes);
    let mut host = HostBuffer::new(device, usize::try_from(host_bytes).map_err(Error::internal)?)?;
    let probe = Probe::new(device, options, bytes)?;
    let at = probe.data.slice().part(0, host_bytes)?;
    // SAFETY: `best` waits for the stream before anything else happens to the buffers.
    let to_device = probe.best(|| unsafe { probe.stream.copy_to_device(at, host.as_slice()) })?;
    // SAFETY: as above.
    let to_host = probe.best(|| unsafe { probe.stream.copy_to_host(host.as_mut_slice(), at) })?;
    // SAFETY: as above; two allocations do not overlap.
    let on_device = probe.best(|| unsafe { probe.stream.copy_on_device(other.slice(), probe.data.slice()) })?;
    let read = probe.best(|| probe.launch_read())?;
    let per_second = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64();
    Ok(Bandwidth {
        device_bytes: bytes,
        host_bytes,
        to_device: per_second(host_bytes, to_device),
        to_host: per_second(host_bytes, to_host),
        on_device: per_second(2 * bytes, on_device),
        read: per_second(bytes, read),
    })
}

/// Launches empty kernels, one by one and in graphs.
///
/// # Errors
/// The errors of the device.
pub fn launches(device: &Device, options: &GpuOptions, count: usize) -> Result<Launches> {
    let probe = Probe::new(device, options, BYTES_OF_A_PIECE)?;
    let mut call = Duration::MAX;
    let eager = probe.best(|| {
        let started = Instant::now();
        for _ in 0..count {
            probe.launch_nothing()?;
        }
        call = call.min(started.elapsed());
        Ok(())
    })?;
    let graph_of = |nodes: usize| -> Result<Graph> {
        probe.stream.begin_capture()?;
        let launched = (0..nodes).try_for_each(|_| probe.launch_nothing());
        // The capture is ended after an error, too, to make the stream usable again.
        let graph = probe.stream.end_capture();
        launched.and(graph)
    };
    let repetitions = (count / MANY_NODES).max(1);
    let time_of = |nodes: usize| -> Result<f64> {
        let graph = graph_of(nodes)?;
        let best = probe.best(|| {
            for _ in 0..repetitions {
                // SAFETY: the kernels access no memory, and their module lives as long as the probe.
                unsafe { probe.stream.launch_graph(&graph)? };
            }
            Ok(())
        })?;
        Ok(best.as_secs_f64() / repetitions as f64)
    };
    let (few, many) = (time_of(FEW_NODES)?, time_of(MANY_NODES)?);
    Ok(Launches {
        launches: count,
        eager: eager.as_secs_f64() / count as f64,
        call: call.as_secs_f64() / count as f64,
        graph_node: (many - few).max(0.0) / (MANY_NODES - FEW_NODES) as f64,
        graph: few,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::devices::{self, AMD_TARGET, CPU_TARGETS};

    /// Checks that the reader skips no data, or it would measure a wrong speed.
    pub(crate) fn check_reads(target: &str) {
        let Some((device, options)) = devices::open(target) else { return };
        for pieces in [1, 511, 2048, 30_007] {
            let blocks = 2;
            let probe = Probe { blocks, ..Probe::new(&device, &options, BYTES_OF_A_PIECE * pieces).unwrap() };
            let mut host = HostBuffer::new(&device, probe.data.bytes() as usize).unwrap();
            let mut expected = 0;
            for (i, word) in host.as_mut_slice().as_chunks_mut().0.iter_mut().enumerate() {
                let value = (i as u32 + 1).wrapping_mul(2_654_435_761);
                expected ^= value;
                *word = value.to_ne_bytes();
            }
            // SAFETY: waited for below.
            unsafe { probe.stream.copy_to_device(probe.data.slice(), host.as_slice()).unwrap() };
            probe.launch_read().unwrap();
            let mut found = HostBuffer::new(&device, 4 * (blocks * PROBE_THREADS) as usize).unwrap();
            // SAFETY: waited for below.
            unsafe { probe.stream.copy_to_host(found.as_mut_slice(), probe.out.slice()).unwrap() };
            probe.stream.synchronize().unwrap();
            let words = found.as_slice().as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word));
            assert_eq!(words.fold(0, |sum, word| sum ^ word), expected, "{pieces} pieces on {target}");
        }
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn every_piece_is_read_once() {
        for target in [CPU_TARGETS[0], CPU_TARGETS[2], AMD_TARGET] {
            check_reads(target);
        }
    }

    #[test]
    fn speeds_are_measured_and_nothing_stays() {
        let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
        let speeds = bandwidth(&device, &options, 1 << 20, 1 << 18).unwrap();
        assert_eq!((speeds.device_bytes, speeds.host_bytes), (1 << 20, 1 << 18));
        for speed in [speeds.to_device, speeds.to_host, speeds.on_device, speeds.read] {
            assert!(speed.is_finite() && speed > 0.0, "{speeds:?}");
        }
        let times = launches(&device, &options, 20).unwrap();
        assert!(times.eager > 0.0 && times.eager >= times.call && times.graph > 0.0, "{times:?}");
        assert!(times.graph_node >= 0.0, "{times:?}");
        assert_eq!(device.allocated_bytes(), 0);
    }
}
