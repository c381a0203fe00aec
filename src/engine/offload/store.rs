//! The files of contents. A folder has the files of many models, and several servers may use it at once.
//!
//! ```text
//! FOLDER/key                                  the key of all block hashes, 32 random bytes
//! FOLDER/FILE.digest                          the hash of a model's file (`namespace`)
//! FOLDER/NAMESPACE/1f/POOL-HASH.kv            a content; 1f are the first digits of its hash
//! FOLDER/NAMESPACE/1f/RANDOM.unfinished       a file that is being written
//! ```
//!
//! - The namespace is a hash of all that contents depend on besides the tokens (`namespace`).
//! - A file has a header and the content. Its checksum under the key covers the namespace, the pool and the hash, so a
//!   file is only accepted where it was written. It is written under another name and renamed, so a reader finds all of
//!   it or none.
//! - The time of a file's last change is that of its last use. If the folder has too many bytes, the files with the
//!   oldest use go first, whatever model they belong to.
//! - Damaged and foreign files are ignored, which is logged once.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Sender, unbounded};

use super::folder::{HASH_BYTES, create_unfinished, make_folder, prepare_folder, remove, shared_key};
use super::{Content, ReadContent};
use crate::kv_cache::{BlockHash, ContentKey};
use crate::{Error, Result};

/// The first bytes of each file; the digit is the version of the layout.
const MAGIC: &[u8; 8] = b"RFKVOF1\n";
const HEADER_BYTES: usize = MAGIC.len() + HASH_BYTES;

/// An unfinished file that is older belongs to a process that has died.
const ABANDONED: Duration = Duration::from_secs(600);

/// The time for which nothing is written after a lasting error, or after this number of failures in a row.
const PAUSE: Duration = Duration::from_secs(60);
const MANY_FAILURES: u32 = 8;

/// Divisors of the folder's limit. After as many bytes were written, the folder is measured again, since other servers
/// write there as well. If it has too many, that part is freed in addition.
const MEASURE_SHARE: u64 = 16;
const FREE_SHARE: u64 = 16;

/// Threads that read the contents of one request.
const READ_THREADS: usize = 8;

/// The fewest contents for a thread of their own.
const MIN_READS: usize = 8;

/// The fewest bytes of contents that are reported together while others are read.
const PIECE_BYTES: usize = 32 << 20;

/// Maximum bytes that are read before they are hashed.
const HASHED_BYTES: usize = 1 << 20;

pub(crate) struct Store {
    folder: PathBuf,
    namespace: [u8; HASH_BYTES],
    key: [u8; HASH_BYTES],
    /// Maximum bytes of all files in the folder.
    capacity: u64,
    /// The bytes of all files when they were last measured, and those written since.
    measured: u64,
    written: u64,
    /// Writes that have failed one after the other.
    num_failed: u32,
    /// The time before which nothing is written, since the disk is full or refuses writes.
    paused_until: Option<Instant>,
    /// True once a damaged or foreign file was reported.
    has_warned: bool,
    /// Contents whose files are damaged, to be written again.
    damaged: HashSet<ContentKey>,
}

/// A file of the folder.
struct Entry {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
    /// Its content, if it is of this namespace.
    key: Option<ContentKey>,
}

impl Store {
    /// Opens a folder (`prepare_folder`).
    ///
    /// # Errors
    /// See `prepare_folder`.
    pub(crate) fn open(folder: &Path, namespace: [u8; HASH_BYTES], capacity: u64) -> Result<Self> {
        let failed =
            |operation, error: &io::Error| Error::Io { operation, path: folder.to_owned(), message: error.to_string() };
        let user = prepare_folder(folder)?;
        let key = shared_key(folder, user).map_err(|error| failed("read or write `key` in kv_offload_dir", &error))?;
        let mut store = Self {
            folder: folder.to_owned(),
            namespace,
            key,
            capacity,
            measured: 0,
            written: 0,
            num_failed: 0,
            paused_until: None,
            has_warned: false,
            damaged: HashSet::new(),
        };
        make_folder(&store.of_namespace()).map_err(|error| failed("create a folder in kv_offload_dir", &error))?;
        store.remove_abandoned();
        Ok(store)
    }

    /// Returns the key of the block hashes.
    pub(crate) fn hash_key(&self) -> [u8; HASH_BYTES] {
        self.key
    }

    /// True while nothing is written, after writes have failed.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns the bytes of all files, as far as they are known.
    pub(super) fn bytes(&self) -> u64 {
        self.measured + self.written
    }

    /// Returns the contents of the namespace. Removes the oldest files if the folder has too many bytes.
    pub(super) fn scan(&mut self) -> Vec<ContentKey> {
        let gone = self.make_room(0);
        let entries = self.entries();
        entries.into_iter().filter_map(|entry| entry.key).filter(|key| !gone.contains(key)).collect()
    }

    /// Reads contents, and notes their use. `report` takes them in pieces, while others are read. `None` stands for a
    /// content that has no file or a damaged one. A content of no bytes needs none. Several threads read, so that a
    /// long prompt waits less.
    pub(super) fn read_all(&mut self, contents: &[(ContentKey, u64)], report: &mut dyn FnMut(Vec<ReadContent>)) {
        let (next, (results, found)) = (AtomicUsize::new(0), unbounded());
        let store = &*self;
        let read_some = |results: Sender<_>| {
            while let Some((key, bytes)) = contents.get(next.fetch_add(1, Ordering::Relaxed)) {
                let content = match bytes {
                    0 => Ok(Content::default()),
                    _ => store.read_file(&store.path(*key), *key, *bytes),
                };
                // Nobody else has the other end.
                let _ = results.send((*key, content));
            }
        };
        let read_some = &read_some;
        let mut problems = Vec::new();
        thread::scope(|scope| {
            let num_threads = (contents.len() / MIN_READS).min(READ_THREADS);
            let begin = |_: &usize| {
                let results = results.clone();
                Builder::new().spawn_scoped(scope, move || read_some(results)).is_ok()
            };
            // A system that cannot start a thread leaves the work to this one.
            if (0..num_threads).filter(begin).count() == 0 {
                read_some(results.clone());
            }
            drop(results);
            let (mut piece, mut bytes) = (Vec::new(), 0);
            for (key, content) in found {
                let content = content.map_err(|error| problems.push((key, error))).ok();
                bytes += content.as_ref().map_or(0, |content| content.len());
                piece.push((key, content));
                if bytes >= PIECE_BYTES {
                    report(std::mem::take(&mut piece));
                    bytes = 0;
                }
            }
            if !piece.is_empty() {
                report(piece);
            }
        });
        for (key, error) in problems.into_iter().filter(|(_, error)| error.kind() != io::ErrorKind::NotFound) {
            self.warn(&self.path(key), &error.to_string());
            self.damaged.insert(key);
        }
    }

    fn read_file(&self, path: &Path, key: ContentKey, bytes: u64) -> io::Result<Content> {
        let damaged = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem.to_owned());
        // Not a link, and without waiting for the writer of a pipe.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() || about.len() != HEADER_BYTES as u64 + bytes {
            return Err(damaged("the file has another size than a content of this model"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let len = usize::try_from(bytes).map_err(|_| damaged("the file is too large"))?;
        let mut content = Vec::new();
        content.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // Bytes are hashed right after they were read, while they are in the CPU's cache.
        let mut hasher = self.hasher(key);
        while content.len() < len {
            let start = content.len();
            (&file).take(HASHED_BYTES.min(len - start) as u64).read_to_end(&mut content)?;
            if content.len() == start {
                return Err(damaged("the file has become shorter"));
            }
            hasher.update(&content[start..]);
        }
        if header[..MAGIC.len()] != *MAGIC || header[MAGIC.len()..] != *hasher.finalize().as_bytes() {
            return Err(damaged("the checksum is not that of the content"));
        }
        // A user who may read a file may not always change its time.
        if let Err(error) = file.set_modified(SystemTime::now()) {
            tracing::debug!(path = %path.display(), %error, "noting the use of a KV file");
        }
        Ok(content.into())
    }

    /// Writes a content. Returns the contents whose files were removed to make room. A content that has a file counts
    /// as used; then it returns `None`. If the disk is full, nothing is written for a while.
    ///
    /// # Errors
    /// The reason why the content has no file.
    pub(super) fn write(&mut self, key: ContentKey, content: &[u8]) -> io::Result<Option<Vec<ContentKey>>> {
        let bytes = (HEADER_BYTES + content.len()) as u64;
        if !self.damaged.remove(&key) && self.touch(key, bytes) {
            return Ok(None);
        }
        if self.is_paused() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if bytes > self.capacity {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let is_unknown = self.written > self.capacity / MEASURE_SHARE;
        let gone = match is_unknown || self.bytes() + bytes > self.capacity {
            true => self.make_room(bytes),
            false => Vec::new(),
        };
        match self.write_file(key, content) {
            Ok(()) => {
                self.written += bytes;
                self.num_failed = 0;
                Ok(Some(gone))
            }
            Err(error) => {
                self.num_failed += 1;
                if is_lasting(&error) || self.num_failed >= MANY_FAILURES {
                    self.paused_until = Some(Instant::now() + PAUSE);
                    let (folder, seconds) = (self.folder.display(), PAUSE.as_secs());
                    tracing::warn!(%folder, %error, "no KV contents are written to files for {seconds} s");
                }
                Err(error)
            }
        }
    }

    /// Notes a use of a content; false if it has no file of `bytes` bytes.
    fn touch(&self, key: ContentKey, bytes: u64) -> bool {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(self.path(key)) else { return false };
        let is_whole = file.metadata().is_ok_and(|about| about.is_file() && about.len() == bytes);
        is_whole && file.set_modified(SystemTime::now()).is_ok()
    }

    /// Removes all contents of the namespace.
    pub(super) fn clear(&mut self) {
        for entry in self.entries().into_iter().filter(|entry| entry.key.is_some()) {
            remove(&entry.path);
        }
        (self.measured, self.written) = (self.entries().iter().map(|entry| entry.bytes).sum(), 0);
    }

    fn write_file(&self, key: ContentKey, content: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let Some(folder) = path.parent() else { return Err(io::ErrorKind::InvalidFilename.into()) };
        make_folder(folder)?;
        let (mut file, unfinished) = create_unfinished(folder)?;
        let mut write = || {
            file.write_all(MAGIC)?;
            file.write_all(self.checksum(key, content).as_bytes())?;
            file.write_all(content)?;
            fs::rename(&unfinished, &path)
        };
        let written = write();
        if written.is_err() {
            remove(&unfinished);
        }
        written
    }

    fn checksum(&self, key: ContentKey, content: &[u8]) -> blake3::Hash {
        self.hasher(key).update(content).finalize()
    }

    /// Returns the beginning of the checksum of a content.
    fn hasher(&self, ContentKey { pool, hash }: ContentKey) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.namespace).update(&(pool as u64).to_le_bytes()).update(hash.as_bytes());
        hasher
    }

    /// Removes the files with the oldest use until there is room for `bytes` more and some in addition. Returns those
    /// of this namespace.
    fn make_room(&mut self, bytes: u64) -> Vec<ContentKey> {
        let mut entries = self.entries();
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut gone = Vec::new();
        if total + bytes > self.capacity {
            entries.sort_by_key(|entry| entry.used);
            let most = (self.capacity - self.capacity / FREE_SHARE).saturating_sub(bytes);
            for entry in entries {
                if total <= most {
                    break;
                }
                remove(&entry.path);
                total -= entry.bytes;
                gone.extend(entry.key);
            }
        }
        (self.measured, self.written) = (total, 0);
        gone
    }

    /// Returns the files of all namespaces. Files with other names are not ours.
    fn entries(&mut self) -> Vec<Entry> {
        let own = self.of_namespace();
        let mut entries = Vec::new();
        for file in files_below(&self.folder) {
            let Some(key) = content_of(&file) else {
                let is_other = file.extension().is_some_and(|kind| kind == "unfinished" || kind == "digest");
                if !is_other && file != self.folder.join("key") {
                    self.warn(&file, "its name is not that of a content");
                }
                continue;
            };
            // Another server may have removed it.
            let Ok(about) = fs::symlink_metadata(&file) else { continue };
            if about.is_file() {
                let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let key = file.starts_with(&own).then_some(key);
                entries.push(Entry { path: file, used, bytes: about.len(), key });
            }
        }
        entries
    }

    fn remove_abandoned(&mut self) {
        for file in files_below(&self.folder) {
            let is_unfinished = file.extension().is_some_and(|extension| extension == "unfinished");
            let changed = fs::symlink_metadata(&file).and_then(|about| about.modified());
            // A time in the future is from before the clock was set back.
            let is_old = changed.is_ok_and(|changed| changed.elapsed().map_or(true, |age| age > ABANDONED));
            if is_unfinished && is_old {
                remove(&file);
            }
        }
    }

    fn warn(&mut self, path: &Path, problem: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            let path = path.display();
            tracing::warn!(%path, "a KV file is ignored: {problem}; others like it are not reported");
        }
    }

    fn of_namespace(&self) -> PathBuf {
        self.folder.join(hex(&self.namespace))
    }

    fn path(&self, ContentKey { pool, hash }: ContentKey) -> PathBuf {
        let digits = hex(hash.as_bytes());
        self.of_namespace().join(&digits[..2]).join(format!("{pool}-{digits}.kv"))
    }
}

/// Returns the content that a file's name stands for.
fn content_of(file: &Path) -> Option<ContentKey> {
    let (pool, digits) = file.file_name()?.to_str()?.strip_suffix(".kv")?.split_once('-')?;
    let hash = *blake3::Hash::from_hex(digits).ok()?.as_bytes();
    let is_in_place = file.parent()?.file_name()?.to_str()? == digits.get(..2)?;
    is_in_place.then_some(ContentKey { pool: pool.parse().ok()?, hash: BlockHash::from_bytes(hash) })
}

/// Returns the files in the folder, in its namespaces and in their folders. What cannot be read is left out.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < 2 => folders.push((entry.path(), depth + 1)),
                Ok(kind) if kind.is_dir() => {}
                _ => files.push(entry.path()),
            }
        }
    }
    files
}

/// True for errors that the next writes will have as well.
fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | PermissionDenied | FileTooLarge)
}

fn hex(bytes: &[u8; HASH_BYTES]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}
