//! Memory of the CPU backend: zeroed, page-aligned, allocated once and never resized.
#![allow(unsafe_code)] // the bytes of a mapping are read as numbers

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use half::f16;
use memmap2::MmapMut;

/// Element types for which every bit pattern is a value.
///
/// # Safety
/// Implementors must be valid for any bytes, need no alignment beyond a page's, and have nothing to drop.
pub unsafe trait Element: Copy {}
// SAFETY: any 32 bits are an f32.
unsafe impl Element for f32 {}
// SAFETY: a transparent u16.
unsafe impl Element for f16 {}
// SAFETY: any 8 bits are an i8.
unsafe impl Element for i8 {}

/// A fixed number of elements. The system maps their pages at the first write, so a large KV pool only costs what is
/// used of it. An aligned `alloc_zeroed` would write everything at once.
pub struct Storage<T> {
    map: MmapMut,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Storage<T> {
    /// Returns `None` if the size overflows or the system has too little memory.
    pub(super) fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok())?;
        // An empty mapping is an error.
        let map = MmapMut::map_anon(bytes.max(1)).ok()?;
        Some(Self { map, len, elements: PhantomData })
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val::<[T]>(self) as u64
    }

    /// Returns the bytes of part `index`, of `len` elements each. `None` if it is not in the storage.
    pub(super) fn part(&self, index: usize, len: usize) -> Option<&[u8]> {
        self.map.get(self.bytes_of(index, len)?)
    }

    /// Like `part`, to be written.
    pub(super) fn part_mut(&mut self, index: usize, len: usize) -> Option<&mut [u8]> {
        let range = self.bytes_of(index, len)?;
        self.map.get_mut(range)
    }

    fn bytes_of(&self, index: usize, len: usize) -> Option<Range<usize>> {
        let end = index.checked_add(1)?.checked_mul(len).filter(|&end| end <= self.len)?;
        Some((end - len) * size_of::<T>()..end * size_of::<T>())
    }
}

impl<T: Element> Deref for Storage<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds at least `len` elements, starts at a page, and any bytes are elements.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Storage<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
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
            assert_eq!(storage.as_ptr().addr() % 64, 0);
            assert_eq!(storage.bytes(), 4 * len as u64);
        }
        assert_eq!(Storage::<f16>::zeroed(5).unwrap().bytes(), 10);
    }

    #[test]
    fn parts_are_the_bytes_of_their_elements() {
        let mut storage = Storage::<f32>::zeroed(6).unwrap();
        storage.part_mut(1, 2).unwrap().copy_from_slice([2.0f32, 3.0].map(f32::to_ne_bytes).as_flattened());
        assert_eq!(*storage, [0.0, 0.0, 2.0, 3.0, 0.0, 0.0]);
        assert_eq!(storage.part(1, 2).unwrap(), [2.0f32, 3.0].map(f32::to_ne_bytes).as_flattened());
        assert!(storage.part(3, 2).is_none() && storage.part(usize::MAX, 2).is_none());
    }

    #[test]
    fn sizes_that_cannot_be_are_none() {
        assert!(Storage::<f32>::zeroed(usize::MAX).is_none());
        assert!(Storage::<f32>::zeroed(usize::MAX / 4).is_none());
        assert!(Storage::<f32>::zeroed(1 << 60).is_none());
    }
}
