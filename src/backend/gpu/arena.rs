//! A range of device memory that is handed out from its start.

use super::DevicePtr;

/// What is handed out begins at multiples of this.
pub const ALIGN: u64 = 256;

/// Bytes that `bytes` take where something follows them.
pub fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

/// The range, which somebody else owns, and how much of it is taken. An empty one has room for nothing.
#[derive(Default)]
pub struct Arena {
    start: DevicePtr,
    bytes: u64,
    used: u64,
}

impl Arena {
    pub fn new(start: DevicePtr, bytes: u64) -> Self {
        Self { start, bytes, used: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Room for `bytes`, or `None` where so many are not left.
    pub fn take(&mut self, bytes: u64) -> Option<DevicePtr> {
        let at = aligned(self.used);
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes)?;
        self.used = end;
        Some(self.start.offset(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_aligned_apart_and_inside() {
        let mut arena = Arena::new(DevicePtr(4096), 700);
        assert_eq!(arena.take(300), Some(DevicePtr(4096)));
        assert_eq!(arena.take(100), Some(DevicePtr(4096 + 512)));
        assert_eq!(arena.take(1), None);
        assert_eq!(arena.take(u64::MAX), None);
        assert_eq!(Arena::default().take(1), None);
    }
}
