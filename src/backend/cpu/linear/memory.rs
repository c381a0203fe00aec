//! Memory of matrices and scratch.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::backend::host_memory::HostMemory;
use crate::{Error, Result};

/// Size of a huge page on x86-64. A matrix is streamed from end to end at every step, and pages of 4 KiB cost address
/// translations.
const HUGE: usize = 2 << 20;

/// Bytes of a mapping that matrices share: many, so that the page that is begun at its end is little of it.
const SHARED: usize = 256 << 20;

/// Zeroed, page-aligned memory of at least one byte, in huge pages where the system gives them.
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
        // Advice that a system without huge pages may refuse.
        let _refused = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}

/// Memory for the weights of a model. Matrices lie one behind the other in few mappings, since one that has a mapping
/// of its own ends in small pages, and one that is smaller than a huge page has no others.
#[derive(Debug, Default)]
pub struct WeightMemory {
    current: Option<Arc<MmapRaw>>,
    /// Bytes at which the current mapping's free part begins.
    used: usize,
}

/// The bytes of one matrix, nobody else's, in a mapping that lives as long as its last matrix.
#[derive(Debug)]
pub(super) struct WeightBytes {
    mapping: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl WeightMemory {
    /// Takes `bytes`, which are zero, from an address that is a multiple of 64.
    ///
    /// # Errors
    /// `Error::OutOfMemory`.
    pub(super) fn take(&mut self, bytes: usize) -> Result<WeightBytes> {
        let (mapping, start) = match &self.current {
            Some(mapping) if bytes <= mapping.len() - self.used => (Arc::clone(mapping), self.used),
            _ => {
                // Up to a huge page is left out in front, so that the rest begins with one.
                let mapping = MmapRaw::from(map(bytes.max(SHARED).saturating_add(HUGE), "a weight matrix")?);
                let start = mapping.as_ptr().align_offset(HUGE);
                (Arc::clone(self.current.insert(Arc::new(mapping))), start)
            }
        };
        self.used = (start + bytes).next_multiple_of(64).min(mapping.len());
        Ok(WeightBytes { mapping, start, len: bytes })
    }
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `take` gave these bytes of the mapping to this value alone, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for WeightBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_mut_ptr().add(self.start), self.len) }
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
        assert!(Arc::ptr_eq(&taken[0].mapping, &taken[2].mapping));
        assert!(!Arc::ptr_eq(&taken[2].mapping, &taken[3].mapping), "it does not fit behind the others");
        assert_eq!(taken[3].as_ptr().addr() % HUGE, 0);
    }

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(matches!(WeightMemory::default().take(usize::MAX / 2), Err(Error::OutOfMemory { .. })));
    }
}
