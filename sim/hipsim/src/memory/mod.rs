//! The memory of one device, or pinned memory of the host: its allocations and their content.

mod mapping;

use std::collections::{BTreeMap, VecDeque};

use mapping::Mapping;

use crate::status::{Result, Status};

/// Freed allocations whose addresses stay inaccessible, so that a use after free is a fault instead of an access to
/// other memory.
const QUARANTINE: usize = 64;

#[derive(Debug)]
pub(crate) struct Memory {
    live: BTreeMap<u64, Mapping>,
    freed: VecDeque<Mapping>,
    capacity: u64,
    used: u64,
}

impl Memory {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { live: BTreeMap::new(), freed: VecDeque::new(), capacity, used: 0 }
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64> {
        if bytes > self.capacity - self.used {
            return Err(Status::OUT_OF_MEMORY);
        }
        let mapping = usize::try_from(bytes).ok().and_then(Mapping::new).ok_or(Status::OUT_OF_MEMORY)?;
        let start = mapping.start();
        self.used += bytes;
        self.live.insert(start, mapping);
        Ok(start)
    }

    /// Frees the allocation that begins at `start`. The text describes a write outside it, if there was one.
    pub(crate) fn free(&mut self, start: u64) -> Result<Option<String>> {
        let mut mapping = self.live.remove(&start).ok_or(Status::INVALID_VALUE)?;
        let damage = describe_damage(&mapping);
        self.used -= mapping.bytes();
        mapping.close();
        self.freed.push_back(mapping);
        if self.freed.len() > QUARANTINE {
            self.freed.pop_front();
        }
        Ok(damage)
    }

    /// True if a whole range lies in one allocation.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        self.extent(address).is_some_and(|(_, end)| bytes <= end - address)
    }

    /// Returns the bounds of the allocation around `address`.
    pub(crate) fn extent(&self, address: u64) -> Option<(u64, u64)> {
        let (start, mapping) = self.live.range(..=address).next_back()?;
        let end = start + mapping.bytes();
        (address < end).then_some((*start, end))
    }

    /// True if an address lies in a recently freed allocation.
    pub(crate) fn was_freed(&self, address: u64) -> bool {
        self.freed.iter().any(|mapping| address.wrapping_sub(mapping.start()) < mapping.bytes().max(1))
    }

    /// Describes an invalid address.
    pub(crate) fn describe(&self, address: u64) -> String {
        if self.was_freed(address) {
            return format!("{address:#x} lies in an allocation that was freed");
        }
        let below = self.live.range(..=address).next_back();
        if let Some((start, mapping)) = below {
            let bytes = mapping.bytes();
            let offset = address - start;
            return format!("{address:#x} is at offset {offset} of an allocation of {bytes} bytes");
        }
        format!("{address:#x} is below every allocation")
    }

    /// Returns the first write outside an allocation, if any. Simulated code cannot make one; compiled kernels can.
    pub(crate) fn damage(&self) -> Option<String> {
        self.live.values().find_map(describe_damage)
    }

    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns a pointer to the bytes from `address` on.
    ///
    /// Callers access device memory only under the device's lock, which makes them the single stream processor.
    fn pointer(&self, address: u64, bytes: usize) -> Result<*mut u8> {
        if self.contains(address, bytes as u64) {
            Ok(std::ptr::with_exposed_provenance_mut(address as usize))
        } else {
            Err(Status::ILLEGAL_ADDRESS)
        }
    }

    /// # Safety
    /// `from` is readable for `bytes` bytes.
    pub(crate) unsafe fn write_from(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        let to = self.pointer(to, bytes)?;
        // SAFETY: the target lies in a live mapping, the source is the caller's promise; `copy` allows overlap.
        unsafe { from.copy_to(to, bytes) };
        Ok(())
    }

    /// # Safety
    /// `to` is writable for `bytes` bytes.
    pub(crate) unsafe fn read_to(&self, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        let from = self.pointer(from, bytes)?;
        // SAFETY: the source lies in a live mapping, the target is the caller's promise.
        unsafe { from.copy_to(to, bytes) };
        Ok(())
    }

    /// Returns bytes that lie in one allocation.
    pub(crate) fn read(&self, from: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut content = vec![0; bytes];
        // SAFETY: the target has that many bytes.
        unsafe { self.read_to(from, content.as_mut_ptr(), bytes) }.ok()?;
        Some(content)
    }

    pub(crate) fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<()> {
        let (to, from) = (self.pointer(to, bytes)?, self.pointer(from, bytes)?);
        // SAFETY: both lie in live mappings; `copy` allows overlap.
        unsafe { from.copy_to(to, bytes) };
        Ok(())
    }

    pub(crate) fn fill(&mut self, to: u64, byte: u8, bytes: usize) -> Result<()> {
        let to = self.pointer(to, bytes)?;
        // SAFETY: lies in a live mapping.
        unsafe { to.write_bytes(byte, bytes) };
        Ok(())
    }
}

fn describe_damage(mapping: &Mapping) -> Option<String> {
    let address = mapping.written_outside()?;
    let offset = address.wrapping_sub(mapping.start()).cast_signed();
    Some(format!("a write outside an allocation of {} bytes, at its offset {offset}", mapping.bytes()))
}

/// The memory as seen by simulated code. Most accesses are to the same allocation as the previous one.
pub(crate) struct View<'a> {
    memory: &'a mut Memory,
    /// Bounds of the page-locked allocations that the arguments point into.
    pinned: Vec<(u64, u64)>,
    recent: (u64, u64),
}

impl<'a> View<'a> {
    pub(crate) fn new(memory: &'a mut Memory, pinned: Vec<(u64, u64)>) -> Self {
        Self { memory, pinned, recent: (0, 0) }
    }
}

impl amdsim::Memory for View<'_> {
    fn around(&mut self, address: u64) -> Option<(u64, &mut [u8])> {
        if !(self.recent.0..self.recent.1).contains(&address) {
            let pinned = || self.pinned.iter().find(|(start, end)| (*start..*end).contains(&address));
            self.recent = self.memory.extent(address).or_else(|| pinned().copied())?;
        }
        let (start, end) = self.recent;
        let pointer = std::ptr::with_exposed_provenance_mut(start as usize);
        // SAFETY: all of a live mapping, which nothing unmaps while this view borrows the memory. Nobody else has a
        // reference into it, and copies to or from it borrow the memory. For page-locked memory the program promised
        // that it does not change until the kernel has run.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer, (end - start) as usize) };
        Some((start, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(memory: &Memory, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        // SAFETY: the vector has that many bytes.
        unsafe { memory.read_to(at, bytes.as_mut_ptr(), count) }.unwrap();
        bytes
    }

    #[test]
    fn fresh_memory_is_nan_and_bounded() {
        let mut memory = Memory::new(1 << 30);
        for size in [1, 255, 256, 4097, (16 << 20) + 6] {
            let at = memory.allocate(size).unwrap();
            assert_eq!(at % 256, 0);
            assert!(memory.contains(at, size) && !memory.contains(at, size + 1) && !memory.contains(at - 1, 1));
            let last = bytes(&memory, at, size as usize);
            let value = f32::from_le_bytes(last.get(..4).map_or([0xff; 4], |bytes| bytes.try_into().unwrap()));
            assert!(value.is_nan());
            assert_eq!(last[last.len() - 1], if size % 2 == 0 { 0x7f } else { 0xff });
            assert_eq!(memory.free(at), Ok(None));
            assert!(memory.was_freed(at) && !memory.contains(at, 1));
            assert_eq!(memory.free(at), Err(Status::INVALID_VALUE));
        }
        assert_eq!((memory.count(), memory.used()), (0, 0));
    }

    #[test]
    fn capacity_is_kept() {
        let mut memory = Memory::new(1000);
        let first = memory.allocate(600).unwrap();
        assert_eq!(memory.allocate(401), Err(Status::OUT_OF_MEMORY));
        assert_eq!(memory.allocate(u64::MAX), Err(Status::OUT_OF_MEMORY));
        memory.free(first).unwrap();
        memory.allocate(1000).unwrap();
    }

    #[test]
    fn a_write_outside_is_found() {
        let mut memory = Memory::new(1 << 20);
        for offset in [-1i64, 100, 255] {
            let at = memory.allocate(100).unwrap();
            assert_eq!(memory.damage(), None);
            let outside = std::ptr::with_exposed_provenance_mut::<u8>((at as i64 + offset) as usize);
            // SAFETY: outside the allocation but inside its pages, as a kernel's overrun would be.
            unsafe { outside.write(1) };
            let damage = memory.damage().unwrap();
            assert!(damage.ends_with(&format!("at its offset {offset}")), "{damage}");
            assert_eq!(memory.free(at), Ok(Some(damage)));
        }
    }

    #[test]
    fn copies_and_fills_keep_to_allocations() {
        let mut memory = Memory::new(1 << 20);
        let (a, b) = (memory.allocate(64).unwrap(), memory.allocate(64).unwrap());
        memory.fill(a, 7, 64).unwrap();
        memory.copy(b + 32, a, 32).unwrap();
        assert_eq!(bytes(&memory, b + 32, 32), [7; 32]);
        assert_eq!(memory.copy(b + 33, a, 32), Err(Status::ILLEGAL_ADDRESS));
        assert_eq!(memory.fill(a - 1, 0, 1), Err(Status::ILLEGAL_ADDRESS));
        let mut view = View::new(&mut memory, Vec::new());
        let mut around =
            |address| amdsim::Memory::around(&mut view, address).map(|(start, bytes)| (start, bytes.to_vec()));
        assert_eq!(around(a + 60), Some((a, vec![7; 64])));
        assert_eq!(around(a + 64), None);
        assert_eq!(around(b - 1), None);
    }
}
