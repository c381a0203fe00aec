//! Weights in the host's memory for steps of many rows. Kernels that read them in place would read them over the bus
//! several times in such a step. Here each weight is copied once, to a buffer on the device, while the step still
//! computes with the weights before it.
//!
//! Copies have a stream of their own. It waits until kernels have read a buffer's last weight, and the step's stream
//! waits until the next one has arrived. Kernels and bytes are the same, so results are, too.

mod belt;

use std::sync::Arc;
use std::time::Instant;

use belt::{Belt, Fetch, Taken};

use super::unpack::Unpacker;
use crate::buffer::Staged;
use crate::buffer::packed::Packed;
use crate::{Device, DeviceBuffer, Event, Stream};
use crate::{Error, Result};

/// The fewest rows of a product whose weights are copied. With more rows the matrix kernels read a weight several
/// times, since a block computes 64 rows. With as many, a step uses most experts of a layer.
pub(crate) const STAGED_ROWS: usize = 64;

/// The number of buffers: a mixture multiplies with gate and up at once, while the third one is filled.
pub(crate) const BUFFERS: usize = 3;

/// Weights that are copied, in the order of their numbers.
#[derive(Default)]
pub(crate) struct StagedWeights {
    /// The buffers, of equal size; none if nothing is copied.
    pub buffers: Vec<DeviceBuffer>,
    weights: Vec<StagedWeight>,
}

/// A weight in the host's memory.
struct StagedWeight {
    memory: DeviceBuffer,
    /// Bytes of its tiles on the device.
    bytes: u64,
    /// The matrices of experts in the layout of the CPU's kernels.
    packed: Option<Arc<Packed>>,
}

/// A kind of step is the sum of what it copies: weights in the device's layout, and experts in that of the CPU.
const PLAIN: usize = 1;
const PACKED: usize = 2;

impl StagedWeight {
    fn is_copied_by(&self, kind: usize) -> bool {
        kind & if self.packed.is_some() { PACKED } else { PLAIN } != 0
    }
}

/// Returns the numbers of the weights that steps of each kind copy.
fn orders(weights: &[StagedWeight]) -> Vec<Vec<usize>> {
    let of_kind = |kind| (0..weights.len()).filter(|&weight| weights[weight].is_copied_by(kind)).collect();
    (0..=PLAIN + PACKED).map(of_kind).collect()
}

impl StagedWeights {
    /// Adds a weight in the host's memory. `None` if no buffer holds it.
    pub(crate) fn add(&mut self, weight: &DeviceBuffer) -> Option<Staged> {
        self.add_weight(StagedWeight { memory: weight.clone(), bytes: weight.bytes(), packed: None })
    }

    /// Like `add`, for matrices of experts in the layout of the CPU's kernels.
    pub(crate) fn add_packed(&mut self, memory: &DeviceBuffer, bytes: u64, packed: &Arc<Packed>) -> Option<Staged> {
        self.add_weight(StagedWeight { memory: memory.clone(), bytes, packed: Some(Arc::clone(packed)) })
    }

    fn add_weight(&mut self, weight: StagedWeight) -> Option<Staged> {
        self.buffers.first().filter(|buffer| weight.bytes <= buffer.bytes())?;
        self.weights.push(weight);
        Some(Staged(self.weights.len() - 1))
    }
}

/// The copies of a backend.
pub(crate) struct Staging {
    /// First: its drop waits for copies before their memory is freed.
    copies: Stream,
    buffers: Vec<StagingBuffer>,
    weights: Vec<StagedWeight>,
    unpacker: Option<Arc<Unpacker>>,
    belt: Belt,
    /// Recorded on the step's stream when a step begins.
    begun: Event,
    /// True during a step of many rows, and after one that failed, until its copies were waited for.
    is_active: bool,
}

struct StagingBuffer {
    memory: DeviceBuffer,
    /// Recorded after the last copy into it.
    arrived: Event,
    /// Recorded after the kernels that read it.
    read: Event,
}

impl Staging {
    /// Creates the copy stream; `None` if there is nothing to copy. `unpacker` is for packed weights.
    pub(crate) fn new(device: &Device, staged: StagedWeights, unpacker: Option<Arc<Unpacker>>) -> Result<Option<Self>> {
        let StagedWeights { buffers, weights } = staged;
        if weights.is_empty() {
            return Ok(None);
        }
        let buffer = |memory| Ok(StagingBuffer { memory, arrived: Event::new(device)?, read: Event::new(device)? });
        Ok(Some(Self {
            copies: Stream::new(device)?,
            belt: Belt::new(orders(&weights), buffers.len()),
            buffers: buffers.into_iter().map(buffer).collect::<Result<_>>()?,
            weights,
            unpacker,
            begun: Event::new(device)?,
            is_active: false,
        }))
    }

    /// Waits for the copies of a step that failed.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.is_active {
            self.unpacker.as_ref().map_or(Ok(()), |unpacker| unpacker.synchronize())?;
            self.copies.synchronize()?;
            self.is_active = false;
        }
        Ok(())
    }

    /// Begins a step on this stream, and queues the first copies if this many rows read any: of experts in the CPU's
    /// layout from `copied_rows` on.
    pub(crate) fn begin(&mut self, stream: &Stream, rows: usize, copied_rows: usize) -> Result<()> {
        let kind = usize::from(rows >= STAGED_ROWS) * PLAIN + usize::from(rows >= copied_rows) * PACKED;
        if !self.weights.iter().any(|weight| weight.is_copied_by(kind)) {
            return Ok(());
        }
        self.is_active = true;
        self.belt.begin(kind);
        // Copies do not compete for the bus with a step that still runs.
        self.begun.record(stream)?;
        self.copies.wait_for(&self.begun)?;
        self.fetch()
    }

    /// Returns the weight's copy, which is there for kernels queued from now on. `None` outside of a step of many rows.
    pub(crate) fn take(&mut self, stream: &Stream, Staged(weight): Staged) -> Result<Option<DeviceBuffer>> {
        if !self.is_active {
            return Ok(None);
        }
        let Some(Taken { buffer, is_there }) = self.belt.take(weight) else { return Ok(None) };
        if !is_there {
            self.copy(Fetch { weight, buffer })?;
        }
        stream.wait_for(&self.buffers[buffer].arrived)?;
        self.fetch()?;
        self.buffers[buffer].memory.part(0, self.weights[weight].bytes).map(Some)
    }

    /// True if there are experts in the CPU's layout among the weights.
    pub(crate) fn copies_packed(&self) -> bool {
        self.weights.iter().any(|weight| weight.packed.is_some())
    }

    /// Returns the seconds that the copy of a byte of experts in the CPU's layout takes, from a copy of one of their
    /// matrices. Call it before the first step.
    pub(crate) fn seconds_per_packed_byte(&self) -> Result<Option<f64>> {
        let mut all = self.weights.iter().enumerate();
        let Some((weight, measured)) = all.find(|(_, weight)| weight.packed.is_some()) else { return Ok(None) };
        let mut seconds = 0.0;
        // The first copy pays for what only a first one needs.
        for _ in 0..2 {
            let start = Instant::now();
            self.copy(Fetch { weight, buffer: 0 })?;
            self.copies.synchronize()?;
            seconds = start.elapsed().as_secs_f64();
        }
        Ok(Some(seconds / measured.memory.bytes() as f64))
    }

    /// True during a step of many rows.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Gives back all copies that were taken. The kernels that read them are queued.
    pub(crate) fn release(&mut self, stream: &Stream) -> Result<()> {
        if self.belt.held().is_empty() {
            return Ok(());
        }
        self.belt.held().iter().try_for_each(|&buffer| self.buffers[buffer].read.record(stream))?;
        self.belt.release();
        self.fetch()
    }

    /// Ends a step. The stream then also waits for copies that nothing used.
    pub(crate) fn end(&mut self, stream: &Stream) -> Result<()> {
        if self.is_active {
            self.belt.unused().try_for_each(|buffer| stream.wait_for(&self.buffers[buffer].arrived))?;
            self.is_active = false;
        }
        Ok(())
    }

    /// Queues copies into all free buffers.
    fn fetch(&mut self) -> Result<()> {
        while let Some(fetch) = self.belt.fetch() {
            self.copy(fetch)?;
        }
        Ok(())
    }

    fn copy(&self, Fetch { weight, buffer }: Fetch) -> Result<()> {
        let StagingBuffer { memory, arrived, read } = &self.buffers[buffer];
        self.copies.wait_for(read)?;
        // SAFETY: nothing writes weights after the load. The stream has passed all kernels that read the buffer, and
        // others wait for `arrived`. Both allocations live until this stream was waited for.
        unsafe {
            match &self.weights[weight] {
                StagedWeight { memory: from, packed: None, .. } => {
                    self.copies.copy_to_device(memory.slice(), from.host_bytes()?)?;
                }
                StagedWeight { memory: from, packed: Some(packed), .. } => {
                    let unpacker = self.unpacker.as_ref();
                    let unpacker = unpacker.ok_or_else(|| Error::internal("packed experts without an unpacker"))?;
                    unpacker.copy(&self.copies, packed, from, 0..packed.scales.len(), memory.slice())?;
                }
            }
        }
        arrived.record(&self.copies)
    }
}
