//! Gives each chunk of a job its own part of a mutable slice.
#![allow(unsafe_code)] // The borrow checker cannot see that chunks write disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use super::pool::ThreadPool;

/// The fewest elements per chunk. For fewer, handing work to another thread costs more than it saves.
const MIN_CHUNK_ELEMENTS: usize = 4096;

/// A mutable slice shared by threads that write disjoint parts of it.
pub(super) struct Split<'a, T> {
    ptr: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: `part`'s contract gives each part to one thread only, which is like sending `&mut [T]`.
unsafe impl<T: Send> Sync for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// No two parts that live at the same time may overlap.
    ///
    /// # Panics
    /// If `range` is not inside the slice.
    #[allow(clippy::mut_from_ref)] // Exclusive by contract.
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: inside the slice, which is borrowed for 'a; not aliased, by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }

    /// Returns a pointer to element `at`, for writes that interleave with those of other threads.
    ///
    /// # Panics
    /// If `at` is past the end of the slice.
    pub(super) fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len, "element {at} of {}", self.len);
        self.ptr.wrapping_add(at)
    }
}

/// Processes rows `0..rows` in chunks on the thread pool: `job(first row, rows of data)`, with rows of `cols`.
pub(super) fn for_rows<T: Send>(pool: &ThreadPool, data: &mut [T], cols: usize, job: impl Fn(usize, &mut [T]) + Sync) {
    for_rows_of(pool, [data], cols, |first, [rows]| job(first, rows));
}

/// Like `for_rows`, with the same rows of several slices of one length.
pub(super) fn for_rows_of<T: Send, const N: usize>(
    pool: &ThreadPool,
    data: [&mut [T]; N],
    cols: usize,
    job: impl Fn(usize, [&mut [T]; N]) + Sync,
) {
    let rows = data.iter().map(|data| data.len()).min().and_then(|len| len.checked_div(cols)).unwrap_or(0);
    let fewest = MIN_CHUNK_ELEMENTS.div_ceil(cols.max(1));
    // A few more chunks than threads, so that a late thread costs little.
    let rows_per_chunk = rows.div_ceil(4 * pool.num_threads()).max(fewest);
    let data = data.map(Split::new);
    pool.run(rows.div_ceil(rows_per_chunk), &|chunk| {
        let start = chunk * rows_per_chunk;
        let part = start * cols..(start + rows_per_chunk).min(rows) * cols;
        // SAFETY: chunks have disjoint rows, and the pool runs each chunk once.
        unsafe { job(start, data.each_ref().map(|data| data.part(part.clone()))) }
    });
}
