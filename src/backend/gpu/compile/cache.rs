//! Compiled code on disk. It is a convenience: what cannot be read is compiled again, what cannot be written is not
//! kept, and either is said in the log.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The first bytes of each file; the number changes with the layout of the file.
const MAGIC: &[u8; 8] = b"RFKERN1\n";
const HASH_BYTES: usize = blake3::OUT_LEN;

pub(crate) struct Cache {
    /// `None`: nothing is kept.
    directory: Option<PathBuf>,
}

/// Names what was compiled from what, by whom and for what.
pub(super) type Key = blake3::Hash;

impl Cache {
    pub(crate) fn new(cache_dir: Option<&Path>) -> Self {
        Self { directory: cache_dir.map(|directory| directory.join("kernels")) }
    }

    /// The code stored under a key, if it is there and whole.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "reading a compiled kernel; it is compiled again");
                return None;
            }
        };
        let image_at = MAGIC.len() + HASH_BYTES;
        let whole = bytes.len() > image_at
            && bytes.starts_with(MAGIC)
            && bytes[MAGIC.len()..image_at] == *blake3::hash(&bytes[image_at..]).as_bytes();
        if !whole {
            tracing::warn!(path = %path.display(), "a compiled kernel is damaged; it is compiled again");
            return None;
        }
        bytes.drain(..image_at);
        Some(bytes)
    }

    pub(crate) fn store(&self, key: &Key, image: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(blake3::hash(image).as_bytes());
        bytes.extend(image);
        if let Err(error) = write_atomically(&path, &bytes) {
            tracing::warn!(path = %path.display(), %error, "compiled kernels cannot be kept; set ROCMFORGE_CACHE_DIR");
        }
    }

    /// Locks a key: until the lock is dropped, others who want to compile the same wait here, in other processes too,
    /// and then find what was stored. `None` where files cannot be locked.
    pub(crate) fn lock(&self, key: &Key) -> Option<Lock> {
        let path = self.path(key)?.with_extension("lock");
        let lock = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let file = File::options().write(true).create(true).truncate(false).open(&path)?;
            file.lock()?;
            io::Result::Ok(file)
        };
        let file = lock().inspect_err(|error| tracing::debug!(path = %path.display(), %error, "compiling unlocked"));
        Some(Lock { _file: file.ok()?, path })
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{}.bin", key.to_hex())))
    }
}

/// Held by whoever compiles.
pub(crate) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever waits for the file that is removed gets it all the same; whoever comes later finds what was stored,
        // and where nothing was, compiles beside those.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.path.display(), %error, "removing a lock");
        }
    }
}

/// Writes beside the file and renames: a reader finds all of it or none, whoever else writes at the same time.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}.{number}.unfinished", std::process::id()));
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // A full disk must not stay full of halves.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(directory.path()));
        let (key, other) = (blake3::hash(b"a"), blake3::hash(b"b"));
        assert_eq!(cache.load(&key), None);
        cache.store(&key, b"code");
        assert_eq!(cache.load(&key).unwrap(), b"code");
        assert_eq!(cache.load(&other), None);
        assert_eq!(fs::read_dir(directory.path().join("kernels")).unwrap().count(), 1);
    }

    /// Every single damaged byte and every cut is noticed, and storing anew mends it.
    #[test]
    fn damage_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(directory.path()));
        let key = blake3::hash(b"a");
        cache.store(&key, b"code");
        let path = cache.path(&key).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert_eq!(cache.load(&key), None, "byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert_eq!(cache.load(&key), None, "cut at {at}");
        }
        cache.store(&key, b"code");
        assert_eq!(cache.load(&key).unwrap(), b"code");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::new(Some(file.path()));
        let key = blake3::hash(b"a");
        cache.store(&key, b"code");
        assert_eq!(cache.load(&key), None);
        Cache::new(None).store(&key, b"code");
    }
}
