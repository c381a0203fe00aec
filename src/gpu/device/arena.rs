//! A bump allocator: hands out one device allocation from its start.

use crate::DeviceBuffer;

/// Alignment in bytes of every part.
pub(crate) const ALIGN: u64 = 256;

/// Returns the bytes that `bytes` take when another part follows.
pub(crate) fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

/// The allocation, and how many of its bytes are in use. Without an allocation there is no room.
#[derive(Default)]
pub(crate) struct Arena {
    memory: Option<DeviceBuffer>,
    used: u64,
}

impl Arena {
    pub(crate) fn new(memory: DeviceBuffer) -> Self {
        Self { memory: Some(memory), used: 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceBuffer::bytes)
    }

    /// Returns room for `bytes`, or `None` if less is left.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<DeviceBuffer> {
        let at = aligned(self.used);
        let taken = self.memory.as_ref()?.part(at, bytes).ok()?;
        self.used = at + bytes;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::driver::fake::Fake;

    #[test]
    fn what_is_taken_is_aligned_apart_and_inside() {
        let device = Device::with_driver(Box::new(Fake::new()));
        let memory = DeviceBuffer::new(&device, 700).unwrap();
        let start = memory.ptr().address();
        let mut arena = Arena::new(memory);
        let (first, second) = (arena.take(300).unwrap(), arena.take(100).unwrap());
        assert_eq!((first.ptr().address(), first.bytes()), (start, 300));
        assert_eq!((second.ptr().address(), second.bytes()), (start + 512, 100));
        assert!(arena.take(1).is_none());
        assert!(arena.take(u64::MAX).is_none());
        assert!(Arena::default().take(1).is_none());
        // A part keeps the allocation alive.
        drop((arena, first));
        assert_eq!(device.allocated_bytes(), 700);
        drop(second);
        assert_eq!(device.allocated_bytes(), 0);
    }
}
