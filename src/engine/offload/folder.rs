//! The folder of contents as a whole: who may use it, the key of all block hashes, and the hashes of models' files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

pub(super) const HASH_BYTES: usize = blake3::OUT_LEN;

/// Creates a folder if it does not exist, and checks that it belongs to this user alone. Someone who knows its key
/// could forge contents. Returns the user.
///
/// # Errors
/// `InvalidRequest` for a folder of others, or that others may use; `Io` if it cannot be read or written.
pub(crate) fn prepare_folder(folder: &Path) -> Result<u32> {
    let failed = |error: io::Error| Error::Io {
        operation: "create or read the folder of kv_offload_dir",
        path: folder.to_owned(),
        message: error.to_string(),
    };
    make_folder(folder).map_err(failed)?;
    let about = fs::metadata(folder).map_err(failed)?;
    let expected = "a folder for KV contents alone: a new one, or one of mode 700 (chmod 700) that this user owns";
    let refused =
        |problem: String| Error::invalid("kv_offload_dir", format!("{}, {problem}", folder.display()), expected);
    let mode = about.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(refused(format!("which other users may use (mode {mode:o})")));
    }
    match user(folder).map_err(failed)? {
        user if user != about.uid() => Err(refused(format!("which belongs to user {}, not {user}", about.uid()))),
        user => Ok(user),
    }
}

/// Returns the key of all servers of this user that use the folder. The first of them draws it.
pub(super) fn shared_key(folder: &Path, user: u32) -> io::Result<[u8; HASH_BYTES]> {
    let path = folder.join("key");
    // A link counts as well, and is refused below.
    let exists = || fs::symlink_metadata(&path).is_ok();
    if !exists() {
        let mut key = [0; HASH_BYTES];
        getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
        let (mut file, unfinished) = create_unfinished(folder)?;
        let written = file.write_all(&key).and_then(|()| file.sync_all());
        // Unlike a rename, this keeps the key of a server that was faster.
        let linked = written.and_then(|()| fs::hard_link(&unfinished, &path));
        remove(&unfinished);
        linked.or_else(|error| if exists() { Ok(()) } else { Err(error) })?;
    }
    let wrong = |problem: String| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{problem}; remove it, and the contents with it"))
    };
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != user {
        return Err(wrong("`key` is not a regular file of this user".into()));
    }
    let mut key = Vec::new();
    file.take(HASH_BYTES as u64 + 1).read_to_end(&mut key)?;
    key.try_into().map_err(|key: Vec<u8>| wrong(format!("`key` has {} bytes, expected {HASH_BYTES}", key.len())))
}

/// Returns the user whose files this process makes.
fn user(folder: &Path) -> io::Result<u32> {
    let (file, path) = create_unfinished(folder)?;
    let about = file.metadata();
    remove(&path);
    Ok(about?.uid())
}

/// Returns the hash that the folder has for a file of a model.
pub(super) fn known_digest(folder: &Path, file: &blake3::Hash) -> Option<[u8; HASH_BYTES]> {
    fs::read(digest_path(folder, file)).ok()?.try_into().ok()
}

/// Keeps the hash of a file of a model in the folder. Without it, a later load reads the file again.
pub(super) fn remember_digest(folder: &Path, file: &blake3::Hash, digest: &[u8; HASH_BYTES]) {
    let path = digest_path(folder, file);
    let written = create_unfinished(folder).and_then(|(mut to, unfinished)| {
        let written = to.write_all(digest).and_then(|()| fs::rename(&unfinished, &path));
        written.inspect_err(|_| remove(&unfinished))
    });
    if let Err(error) = written {
        tracing::debug!(path = %path.display(), %error, "keeping the hash of a model's file");
    }
}

fn digest_path(folder: &Path, file: &blake3::Hash) -> PathBuf {
    folder.join(format!("{}.digest", file.to_hex()))
}

/// Creates a folder for this user alone, unless it exists.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    match folder.is_dir() {
        true => Ok(()),
        false => DirBuilder::new().recursive(true).mode(0o700).create(folder),
    }
}

/// Creates a file under a name that no other process uses, even one of another container.
pub(super) fn create_unfinished(folder: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let mut name = [0; 8];
        getrandom::fill(&mut name).map_err(|error| io::Error::other(error.to_string()))?;
        let path = folder.join(format!("{:016x}.unfinished", u64::from_le_bytes(name)));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((file?, path)),
        }
    }
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), %error, "removing a KV file");
    }
}
