//! Bytes as a file: the engine opens files by path and maps them, so bytes in memory would not reach its reader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that is removed when the value is dropped.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    /// Writes the file to memory if the system has such a folder: a disk would take longer than the test itself.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shared = PathBuf::from("/dev/shm");
        let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("rocmforge-fuzz-{}-{number}.gguf", process::id()));
        fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // The file may stay behind; the system's next clean-up removes it.
        fs::remove_file(&self.0).ok();
    }
}
