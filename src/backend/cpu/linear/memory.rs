//! Memory of matrices and scratch, and disjoint parts of it for the threads of a job.
#![allow(unsafe_code)] // threads write disjoint parts of one buffer

use std::marker::PhantomData;

use memmap2::MmapMut;

use crate::{Error, Result};

/// Zeroed, page-aligned memory of at least one byte, in huge pages where the system gives them (a matrix is streamed
/// from end to end at every step, and 4 KiB pages cost address translations).
///
/// # Errors
/// `Error::OutOfMemory`.
pub(super) fn map(bytes: usize, what: &str) -> Result<MmapMut> {
    let out_of_memory = |e: std::io::Error| Error::OutOfMemory {
        what: format!("{what} ({e})"),
        requested: bytes as u64,
        available: crate::backend::cpu::memory::available().unwrap_or(0),
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

/// Size of a huge page on x86-64.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// A slice that the threads of a job write disjoint parts of.
pub(super) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is borrowed exclusively, and `part` leaves it to its callers that threads take disjoint parts.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Elements `at..at + len`.
    ///
    /// # Safety
    /// No other part that overlaps it is alive.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: in bounds (checked), exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// A pointer to element `at`, for writes that interleave with those of other threads.
    pub(super) fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        self.start.wrapping_add(at)
    }
}
