//! The code object of a module in the program's memory. AMD's runtime does not copy it: while the module is loaded,
//! profilers and debuggers get its address.

use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Debug)]
pub(crate) struct Image {
    address: usize,
    bytes: usize,
    hash: u64,
}

impl Image {
    pub(crate) fn of(image: &[u8]) -> Self {
        Self { address: image.as_ptr().expose_provenance(), bytes: image.len(), hash: hash(image) }
    }

    /// True if the memory still holds the code object.
    pub(crate) fn is_there(&self) -> bool {
        let mut now = vec![0u8; self.bytes];
        let to = libc::iovec { iov_base: now.as_mut_ptr().cast(), iov_len: self.bytes };
        let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(self.address), iov_len: self.bytes };
        // SAFETY: the system call reads a process' memory as a debugger does: what is not mapped is an error of the
        // call. The two descriptions and the vector outlive it.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
        // A system that forbids the call gives no answer.
        let forbidden = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        (read < 0 && forbidden) || (read.cast_unsigned() == self.bytes && hash(&now) == self.hash)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_changes_or_goes_is_noticed() {
        // Large enough for its own mapping, which is unmapped when it is freed.
        let mut bytes = vec![7u8; 1 << 20];
        let image = Image::of(&bytes);
        assert!(image.is_there());
        bytes[1000] = 8;
        assert!(!image.is_there());
        bytes[1000] = 7;
        assert!(image.is_there());
        drop(bytes);
        assert!(!image.is_there());
    }
}
