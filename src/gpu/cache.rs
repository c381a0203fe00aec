//! A disk cache for compiled code and for verdicts on libraries. It is only a convenience. An unreadable entry is
//! recomputed and an unwritable one is dropped, with a log message in either case.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The first bytes of each file; the digit is the version of the file's layout.
const MAGIC: &[u8; 8] = b"RFKERN1\n";
const HASH_BYTES: usize = blake3::OUT_LEN;

pub(crate) struct Cache {
    /// `None`: the cache is off.
    directory: Option<PathBuf>,
    /// Permissions of the cache's files.
    mode: u32,
    /// True if only files owned by this process' user count.
    own: bool,
}

/// A hash over everything that the cached bytes depend on.
pub(super) type Key = blake3::Hash;

impl Cache {
    /// Returns the cache of compiled code. A machine's owner may fill it for all users.
    pub(crate) fn kernels(cache_dir: Option<&Path>) -> Self {
        Self { directory: cache_dir.map(|directory| directory.join("kernels")), mode: 0o666, own: false }
    }

    /// Returns the cache of verdicts on the vendor's libraries. It holds only this user's files.
    pub(crate) fn verdicts(cache_dir: Option<&Path>) -> Self {
        Self { directory: cache_dir.map(|directory| directory.join("verdicts")), mode: 0o600, own: true }
    }

    /// Returns the bytes stored under a key, if they are complete and undamaged.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut bytes = match self.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "reading a kept result; it is made again");
                return None;
            }
        };
        let image_at = MAGIC.len() + HASH_BYTES;
        let whole = bytes.len() > image_at
            && bytes.starts_with(MAGIC)
            && bytes[MAGIC.len()..image_at] == *blake3::hash(&bytes[image_at..]).as_bytes();
        if !whole {
            tracing::warn!(path = %path.display(), "a kept result is damaged; it is made again");
            return None;
        }
        bytes.drain(..image_at);
        Some(bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if self.own {
            let about = fs::symlink_metadata(path)?;
            // SAFETY: a plain system call.
            let user = unsafe { libc::geteuid() };
            if !about.is_file() || about.uid() != user {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file is not of this user"));
            }
        }
        fs::read(path)
    }

    pub(crate) fn store(&self, key: &Key, image: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(blake3::hash(image).as_bytes());
        bytes.extend(image);
        if let Err(error) = write_atomically(&path, &bytes, self.mode) {
            tracing::warn!(path = %path.display(), %error, "results cannot be kept; set ROCMFORGE_CACHE_DIR");
        }
    }

    /// Locks a key. Other threads and processes that want to compile the same code wait here and then find the stored
    /// result. `None` if files cannot be locked.
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

/// Held during a compilation.
pub(crate) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Processes that already wait for this file still get the lock after its removal. Later ones find the stored
        // code, or compile at the same time if nothing was stored.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(path = %self.path.display(), %error, "removing a lock");
        }
    }
}

/// Writes a temporary file and renames it, so a reader finds all of it or none, even with concurrent writers.
fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}.{number}.unfinished", std::process::id()));
    let written = File::options().write(true).create(true).truncate(true).mode(mode).open(&unfinished);
    let written = written.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // Do not leave incomplete files on a full disk.
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
        let cache = Cache::kernels(Some(directory.path()));
        let (key, other) = (blake3::hash(b"a"), blake3::hash(b"b"));
        assert_eq!(cache.load(&key), None);
        cache.store(&key, b"code");
        assert_eq!(cache.load(&key).unwrap(), b"code");
        assert_eq!(cache.load(&other), None);
        assert_eq!(fs::read_dir(directory.path().join("kernels")).unwrap().count(), 1);
    }

    /// Any damaged byte and any truncation is detected, and storing again repairs it.
    #[test]
    fn damage_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::kernels(Some(directory.path()));
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

    /// A verdict that another user owns, or that a symbolic link leads to, is not trusted.
    #[test]
    fn verdicts_are_this_users_alone() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::verdicts(Some(directory.path()));
        let key = blake3::hash(b"a");
        cache.store(&key, b"good");
        assert_eq!(cache.load(&key).unwrap(), b"good");
        let path = cache.path(&key).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Cache::kernels(Some(directory.path())).load(&key), None);
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert_eq!(cache.load(&key), None);
        // Storing replaces the link and keeps its target.
        cache.store(&key, b"bad");
        assert_eq!(cache.load(&key).unwrap(), b"bad");
        // Only root can change a file's owner.
        if chown(&path, Some(12345), None).is_ok() {
            assert_eq!(cache.load(&key), None);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::kernels(Some(file.path()));
        let key = blake3::hash(b"a");
        cache.store(&key, b"code");
        assert_eq!(cache.load(&key), None);
        Cache::kernels(None).store(&key, b"code");
    }
}
