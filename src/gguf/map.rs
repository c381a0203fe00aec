//! The memory mapping of one file: the only unsafe code of this module.
#![allow(unsafe_code)] // mapping a file cannot be expressed safely: another process may change it

use std::fs::{File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};

/// A file mapped read-only.
#[derive(Debug)]
pub(super) struct MappedFile {
    pub(super) path: PathBuf,
    /// The file as it was when it was mapped.
    pub(super) about: Metadata,
    map: Mmap,
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl MappedFile {
    /// # Errors
    /// `InvalidRequest` for an empty path, `FileNotFound`, `Io` for anything that is not a readable regular file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(Error::invalid("model path", "an empty path", "the path of a .gguf file"));
        }
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::FileNotFound { path: path.to_owned() },
            _ => cannot_open(path, error.to_string()),
        };
        // Checked before opening, since opening a pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            return Err(cannot_open(path, format!("this is {kind}; give the path of a .gguf file")));
        }
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        // SAFETY: the mapping is private to this value, read-only, and only returned as a `&[u8]` that borrows it, so
        // it outlives every reference. Another process may still change the file meanwhile. `GgufFile` documents that,
        // as every program has to that maps a file.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { path: path.to_owned(), about, map })
    }

    /// Drops the resident pages that lie entirely inside `range`. Reading them again loads them from the file.
    #[cfg(unix)]
    pub(super) fn release(&self, range: Range<usize>) {
        /// A multiple of every page size in use (4, 16 and 64 KiB), so the page size need not be queried.
        const GRANULE: usize = 64 << 10;
        let (start, end) = (range.start.next_multiple_of(GRANULE), range.end.min(self.map.len()) / GRANULE * GRANULE);
        if start >= end {
            return;
        }
        // SAFETY: DONTNEED discards modifications of private pages and zeroes anonymous ones; these are file-backed
        // and never written, so a later read gives the same bytes.
        let advised =
            unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = advised {
            // This is only advice: the pages stay resident, and nothing else changes.
            tracing::debug!(path = %self.path.display(), %error, "madvise(DONTNEED) failed");
        }
    }

    #[cfg(not(unix))]
    pub(super) fn release(&self, _range: Range<usize>) {}
}

fn cannot_open(path: &Path, message: String) -> Error {
    Error::Io { operation: "cannot open", path: path.to_owned(), message }
}
