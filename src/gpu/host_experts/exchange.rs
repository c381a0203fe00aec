//! The memory through which device and host exchange the rows of a layer's experts, and the host's call.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::HostCpu;
use crate::backend::ExpertSpec;
use crate::cpu::{LentWork, NO_EXPERT};
use crate::device::arena::aligned;
use crate::launch::args;
use crate::sys::HostWork;
use crate::{Device, DeviceBuffer, DeviceSlice};
use crate::{Error, Result};

/// The turn of a step that is not captured: it has no more rows than it says.
pub(crate) const NO_TURN: u32 = u32::MAX;

/// The mark of pairs that the device computes is one for both.
const _: () = assert!(args::NO_EXPERT == NO_EXPERT);

/// Words of a call: layer, rows, turn.
const CALL_WORDS: usize = 3;

/// Page-locked memory for up to `rows` rows. All layers use it, one after the other.
pub(crate) struct Exchange {
    memory: DeviceBuffer,
    /// The memory for the host.
    start: HostStart,
    places: Places,
    spec: ExpertSpec,
    rows: usize,
    cpu: Arc<HostCpu>,
    work: Mutex<LentWork>,
}

/// An address of page-locked memory.
struct HostStart(NonNull<u8>);

// SAFETY: plain memory, which the exchange owns; only queued work uses it, in the order of the stream.
unsafe impl Send for HostStart {}
// SAFETY: as above.
unsafe impl Sync for HostStart {}

/// The beginnings of the arrays, in bytes, and the end of the last one.
#[derive(Debug, Clone, Copy)]
struct Places {
    x: u64,
    experts: u64,
    weights: u64,
    out: u64,
    end: u64,
}

impl Places {
    fn of(spec: &ExpertSpec, rows: usize) -> Self {
        let words = |words: usize| aligned(4u64.saturating_mul(words as u64));
        let [of_rows, of_pairs] = [spec.hidden_size, spec.used].map(|cols| words(rows.saturating_mul(cols)));
        let x = words(CALL_WORDS);
        let experts = x.saturating_add(of_rows);
        let weights = experts.saturating_add(of_pairs);
        let out = weights.saturating_add(of_pairs);
        Self { x, experts, weights, out, end: out.saturating_add(of_rows) }
    }
}

impl Exchange {
    /// # Errors
    /// `Error::OutOfMemory`, `Error::Device`.
    pub(crate) fn new(device: &Device, cpu: &Arc<HostCpu>, spec: &ExpertSpec, rows: usize) -> Result<Self> {
        let places = Places::of(spec, rows);
        let memory = DeviceBuffer::on_host(device, places.end)?;
        Ok(Self {
            start: HostStart(memory.host_address()?),
            memory,
            places,
            spec: *spec,
            rows,
            cpu: Arc::clone(cpu),
            work: Mutex::new(LentWork::new(cpu.isa, spec, rows.min(cpu.rows_at_once(spec)))?),
        })
    }

    /// Returns the bytes of an exchange.
    pub(crate) fn bytes_of(spec: &ExpertSpec, rows: usize) -> u64 {
        Places::of(spec, rows).end
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.places.end
    }

    /// Returns the memory of the call, the rows, the experts and the weights, for the kernel that writes them.
    pub(crate) fn inputs(&self) -> Result<[DeviceSlice<'_>; 4]> {
        let Places { x, experts, weights, .. } = self.places;
        let at = |start: u64| self.memory.slice().after(start);
        Ok([at(0)?, at(x)?, at(experts)?, at(weights)?])
    }

    /// Returns the memory of the sums.
    pub(crate) fn sums(&self) -> Result<DeviceSlice<'_>> {
        self.memory.slice().after(self.places.out)
    }

    /// # Errors
    /// `Error::Internal` if there is no room for these rows.
    pub(crate) fn check_rows(&self, rows: usize) -> Result<()> {
        match rows <= self.rows {
            true => Ok(()),
            false => Err(Error::internal(format!("{rows} rows for the CPU's experts, room is for {}", self.rows))),
        }
    }

    /// Returns an array of the memory.
    ///
    /// # Safety
    /// `T` is f32 or u32, and the array is inside the memory. Nothing writes it meanwhile.
    unsafe fn array<T>(&self, start: u64, len: usize) -> &[T] {
        // SAFETY: initialised, aligned to 256 bytes, and the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr().add(start as usize).cast(), len) }
    }

    fn mix(&self) -> Result<()> {
        // SAFETY: the arrays are inside the memory (`Places`). Kernels that write them are before this call on the
        // stream, and those that read the sums are behind it.
        let (call, out) = unsafe {
            let out = self.start.0.as_ptr().add(self.places.out as usize).cast::<f32>();
            (self.array::<u32>(0, CALL_WORDS), std::slice::from_raw_parts_mut(out, self.rows * self.spec.hidden_size))
        };
        let [layer, rows, turn] = [call[0], call[1], call[2]].map(|word| word as usize);
        let experts = self.cpu.layer(layer).filter(|experts| *experts.spec() == self.spec && rows <= self.rows);
        let experts = experts.ok_or_else(|| Error::internal(format!("{rows} rows for layer {layer} of the CPU")))?;
        // Rows beyond those of the batch are padding.
        let rows = self.cpu.rows_of(turn).map_or(rows, |of_batch| rows.min(of_batch));
        let pairs = rows * self.spec.used;
        // SAFETY: as above.
        let (x, numbers, weights) = unsafe {
            (
                self.array(self.places.x, rows * self.spec.hidden_size),
                self.array(self.places.experts, pairs),
                self.array(self.places.weights, pairs),
            )
        };
        let out = &mut out[..rows * self.spec.hidden_size];
        experts.mix(x, numbers, weights, out, &mut self.work.lock(), &self.cpu.pool);
        Ok(())
    }
}

impl HostWork for Exchange {
    /// Computes the call. A failure is noted, and the step that it belongs to reports it.
    fn run(&self) {
        let failure = match catch_unwind(AssertUnwindSafe(|| self.mix())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            // The panic hook has logged it.
            Err(_) => Error::internal("the CPU's part of a step panicked; the log has the reason"),
        };
        tracing::error!(%failure, "experts on the CPU");
        self.cpu.fail(failure);
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("rows", &self.rows).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::driver::fake::Fake;

    /// A call that cannot be right is an error of its step, reported once.
    #[test]
    fn wrong_calls_are_failures_of_their_steps() {
        let spec = ExpertSpec::plain(2, 1, 32, 32);
        let device = Device::with_driver(Box::new(Fake::new()));
        let cpu = Arc::new(HostCpu::new(1, Isa::detect(), 2).unwrap());
        let exchange = Exchange::new(&device, &cpu, &spec, 4).unwrap();
        exchange.check_rows(4).unwrap();
        assert!(matches!(exchange.check_rows(5), Err(Error::Internal { .. })));
        cpu.check().unwrap();
        // There is no layer 0.
        exchange.run();
        assert!(matches!(cpu.check(), Err(Error::Internal { .. })));
        cpu.check().unwrap();
        // The step was given up for another reason.
        exchange.run();
        cpu.forget_failure();
        cpu.check().unwrap();
    }
}
