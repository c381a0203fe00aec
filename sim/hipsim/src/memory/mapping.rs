//! Memory from the operating system with inaccessible pages around it, poisoned without being touched.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

/// The content of unwritten memory, for each pair of bytes: a NaN as f16, bf16, f32 and f64, and an index far out of
/// range.
pub(crate) const POISON: u16 = 0x7fff;

const PAGE: usize = 4096;
/// Inaccessible bytes on each side.
const FENCE: usize = 1 << 20;
/// The poison comes from a file of this size, which is mapped privately many times: a page uses memory only once it is
/// written.
const CHUNK: usize = 16 << 20;
/// The alignment of allocations, as for hipMalloc.
const ALIGNMENT: usize = 256;

/// `bytes` bytes that end, up to the alignment, at an inaccessible page.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut c_void,
    reserved: usize,
    start: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread has it.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let body = rounded.checked_next_multiple_of(PAGE)?;
        let reserved = body.checked_add(2 * FENCE)?;
        let poison = poison_file()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh range of addresses, chosen by the system.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mapping = Self { base, reserved, start: base.expose_provenance() + FENCE + body - rounded, bytes };
        for offset in (0..body).step_by(CHUNK) {
            let at = base.wrapping_byte_add(FENCE + offset);
            let length = CHUNK.min(body - offset);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: inside the range that was just reserved and is used by nobody yet.
            if unsafe { libc::mmap(at, length, protection, flags, poison.as_raw_fd(), 0) } == libc::MAP_FAILED {
                return None;
            }
        }
        Some(mapping)
    }

    pub(crate) fn start(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Makes every access a fault and releases the memory; only the addresses stay reserved.
    pub(crate) fn close(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces this mapping by itself; its owner has given it up. Failing, it stays as it is, still mapped.
        unsafe { libc::mmap(self.base, self.reserved, libc::PROT_NONE, flags, -1, 0) };
    }

    /// Returns the first written address outside the allocation but inside its accessible pages.
    pub(crate) fn written_outside(&self) -> Option<u64> {
        let end = self.start + self.bytes;
        let before = (self.start & !(PAGE - 1))..self.start;
        let after = end..end.next_multiple_of(PAGE);
        let expected = POISON.to_le_bytes();
        [before, after].into_iter().find_map(|range| {
            let pointer = std::ptr::with_exposed_provenance::<u8>(range.start);
            // SAFETY: between the first and the last accessible page, and outside what anyone was given.
            let bytes = unsafe { std::slice::from_raw_parts(pointer, range.len()) };
            let first = range.start % 2;
            let written = bytes.iter().enumerate().position(|(i, byte)| *byte != expected[(first + i) % 2])?;
            Some((range.start + written) as u64)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range that `new` reserved; nothing refers to it any more.
        unsafe { libc::munmap(self.base, self.reserved) };
    }
}

fn poison_file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        // SAFETY: a plain system call with a literal name.
        let descriptor = unsafe { libc::memfd_create(c"hipsim poison".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return None;
        }
        // SAFETY: the descriptor was just opened and nobody else has it.
        let mut file = unsafe { File::from_raw_fd(descriptor) };
        file.write_all(&POISON.to_le_bytes().repeat(CHUNK / 2)).ok()?;
        Some(file)
    });
    file.as_ref()
}
