//! Memory for matrices and scratch.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::backend::host_memory::HostMemory;
use crate::{Error, Result};

/// Size of a huge page on x86-64. Every step streams whole matrices, and 4 KiB pages would cost many address
/// translations.
const HUGE: usize = 2 << 20;

/// Bytes of a mapping that matrices share. It is large, so the unused end of its last page matters little.
const SHARED: usize = 256 << 20;

/// Maps zeroed, page-aligned memory of at least one byte, in huge pages if the system provides them.
///
/// # Errors
/// `Error::OutOfMemory`.
pub(super) fn map(bytes: usize, what: &str) -> Result<MmapMut> {
    let out_of_memory = |e: std::io::Error| Error::OutOfMemory {
        what: format!("{what} ({e})"),
        requested: bytes as u64,
        available: HostMemory::default().available().unwrap_or(0),
        advice: "use a smaller model, or a machine with more memory",
    };
    let memory = MmapMut::map_anon(bytes.max(1)).map_err(out_of_memory)?;
    #[cfg(target_os = "linux")]
    if bytes >= HUGE {
        // A system without huge pages may refuse the advice.
        let _refused = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}

/// Memory for the weights of a model. Matrices share a few mappings. In its own mapping a matrix would end in small
/// pages, and one smaller than a huge page would have only small pages.
#[derive(Debug, Default)]
pub struct WeightMemory {
    current: Option<Arc<MmapRaw>>,
    /// The offset of the current mapping's free part.
    used: usize,
}

/// The bytes of one matrix, which it owns, in memory that lives as long as its last matrix.
pub struct WeightBytes {
    start: NonNull<u8>,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: plain bytes with one owner, which changes them only through a mutable reference.
unsafe impl Send for WeightBytes {}
// SAFETY: as above.
unsafe impl Sync for WeightBytes {}

impl WeightBytes {
    /// Wraps memory of another owner.
    ///
    /// # Safety
    /// The bytes are initialised, zero, and stay at their place as long as the owner lives. Nothing else writes them.
    pub unsafe fn lent(owner: Arc<dyn Any + Send + Sync>, start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, _owner: owner }
    }

    /// Splits off the first `bytes` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn split_off_front(&mut self, bytes: usize) -> Self {
        assert!(bytes <= self.len, "{bytes} of {} bytes", self.len);
        let front = Self { start: self.start, len: bytes, _owner: Arc::clone(&self._owner) };
        // SAFETY: the offset is inside the memory, or at its end.
        self.start = unsafe { self.start.add(bytes) };
        self.len -= bytes;
        front
    }
}

impl fmt::Debug for WeightBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

impl WeightMemory {
    /// Returns `bytes` zeroed bytes from an address that is a multiple of 64.
    ///
    /// # Errors
    /// `Error::OutOfMemory`.
    pub(super) fn take(&mut self, bytes: usize) -> Result<WeightBytes> {
        let (mapping, start) = match &self.current {
            Some(mapping) if bytes <= mapping.len() - self.used => (Arc::clone(mapping), self.used),
            _ => {
                // The rest of a huge page is skipped in front, so matrices begin on a huge page.
                let mapping = MmapRaw::from(map(bytes.max(SHARED).saturating_add(HUGE), "a weight matrix")?);
                let start = mapping.as_ptr().align_offset(HUGE);
                (Arc::clone(self.current.insert(Arc::new(mapping))), start)
            }
        };
        self.used = (start + bytes).next_multiple_of(64).min(mapping.len());
        // SAFETY: the offset is inside the mapping, or at its end.
        let first = NonNull::new(unsafe { mapping.as_mut_ptr().add(start) });
        let first = first.ok_or_else(|| Error::internal("a mapping at address 0"))?;
        // SAFETY: the bytes of a mapping are zero, and `used` gives them to no other matrix.
        Ok(unsafe { WeightBytes::lent(mapping, first, bytes) })
    }
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes belong only to this value (`lent`), which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for WeightBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, but borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_share_mappings_and_no_bytes() {
        let mut memory = WeightMemory::default();
        let mut taken: Vec<_> = [100, 0, 64, SHARED + HUGE, 7].map(|bytes| memory.take(bytes).unwrap()).into();
        drop(memory);
        for (i, bytes) in taken.iter_mut().enumerate() {
            assert_eq!(bytes.as_ptr().addr() % 64, 0);
            assert!(bytes.iter().take(4096).all(|&byte| byte == 0));
            bytes.iter_mut().take(4096).for_each(|byte| *byte = 1 + i as u8);
        }
        for (i, bytes) in taken.iter().enumerate() {
            assert!(bytes.iter().take(4096).all(|&byte| byte == 1 + i as u8));
        }
        let [first, third, fourth] = [0, 2, 3].map(|i| &taken[i]._owner);
        assert!(Arc::ptr_eq(first, third));
        assert!(!Arc::ptr_eq(third, fourth), "it does not fit behind the others");
        assert_eq!(taken[3].as_ptr().addr() % HUGE, 0);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(matches!(WeightMemory::default().take(usize::MAX / 2), Err(Error::OutOfMemory { .. })));
    }
}
