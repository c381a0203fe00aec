//! Memory of the CPU backend: zeroed, aligned to cache lines, taken once, never grown.
#![allow(unsafe_code)] // Zeroed allocation that reports failure instead of aborting is not in safe `std`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use half::f16;

/// A cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;

/// Element types for which all-zero bytes are a value.
///
/// # Safety
/// Implementors must be valid when all their bytes are zero, and have nothing to drop.
pub unsafe trait Element: Copy {}
// SAFETY: 0.0.
unsafe impl Element for f32 {}
// SAFETY: a transparent u16; 0.0.
unsafe impl Element for f16 {}

/// A fixed number of elements, aligned to 64 bytes. The system maps its pages when they are first written.
pub struct Storage<T> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its elements, as a boxed slice does.
unsafe impl<T: Send> Send for Storage<T> {}
// SAFETY: shared access gives only shared references.
unsafe impl<T: Sync> Sync for Storage<T> {}

impl<T: Element> Storage<T> {
    /// `None` when the size overflows or the system has no such memory.
    pub(super) fn zeroed(len: usize) -> Option<Self> {
        let layout = layout::<T>(len)?;
        if layout.size() == 0 {
            return Some(Self { ptr: NonNull::<Line>::dangling().cast(), len });
        }
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr: ptr.cast(), len })
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val::<[T]>(self) as u64
    }
}

/// Gives empty storage its alignment.
#[repr(align(64))]
struct Line;

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len).ok()?.align_to(ALIGNMENT).ok()
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        if let Some(layout) = layout::<T>(self.len).filter(|layout| layout.size() > 0) {
            // SAFETY: allocated in `zeroed` with this very layout; elements have nothing to drop.
            unsafe { dealloc(self.ptr.as_ptr().cast(), layout) }
        }
    }
}

impl<T> Deref for Storage<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised (zeroed) elements, owned by self.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Storage<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Storage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_and_aligned() {
        for len in [0, 1, 3, 16, 1000] {
            let storage = Storage::<f32>::zeroed(len).unwrap();
            assert_eq!(&*storage, vec![0.0; len]);
            assert_eq!(storage.as_ptr().addr() % ALIGNMENT, 0);
            assert_eq!(storage.bytes(), 4 * len as u64);
        }
        assert_eq!(Storage::<f16>::zeroed(5).unwrap().bytes(), 10);
    }

    #[test]
    fn sizes_that_cannot_be_are_none() {
        assert!(Storage::<f32>::zeroed(usize::MAX).is_none());
        assert!(Storage::<f32>::zeroed(usize::MAX / 4).is_none());
        assert!(Storage::<f32>::zeroed(1 << 60).is_none());
    }
}
