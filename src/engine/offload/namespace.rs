//! The name under which contents of a model are kept: a hash of all that they depend on besides their tokens.
//!
//! The model's files are read as a whole for it. Their hashes are kept in the folder, so that a later load need not
//! read the files again. The key of a hash is its file's device, inode, size and time of change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;

use super::folder::{known_digest, remember_digest};
use crate::config::EngineArgs;
use crate::gguf::GgufFile;
use crate::progress::LoadProgress;
use crate::{Error, Result};

/// Bytes that are hashed as a unit, so that several threads share a file.
const PIECE_BYTES: usize = 64 << 20;

/// A file that has changed less time ago may change again without another time.
const SETTLED: Duration = Duration::from_secs(2);

/// Returns the namespace of a model that is computed from these files. `layout` describes how the device computes and
/// stores keys, values and states. `folder` has the hashes of files that were read before. `progress` counts bytes.
///
/// # Errors
/// `Interrupted` if `progress` returned `false`.
pub(crate) fn namespace(
    args: &EngineArgs,
    folder: &Path,
    files: &[&GgufFile],
    layout: &str,
    threads: usize,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    // Another version may round differently.
    hasher.update(concat!("rocmforge kv namespace 2 ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    let settings = format!("{:?} {} {layout}", args.kv_cache_dtype, args.block_size);
    hasher.update(&(settings.len() as u64).to_le_bytes()).update(settings.as_bytes());
    let contents: Vec<(&[u8], &Metadata)> = files.iter().flat_map(|file| file.contents()).collect();
    let total = contents.iter().map(|(bytes, _)| bytes.len() as u64).sum();
    let mut before = 0;
    for (bytes, about) in contents {
        let name = name_of(about);
        let digest = match known_digest(folder, &name) {
            Some(digest) => digest,
            None => {
                let mut tell = |done: u64| progress(LoadProgress { done: before + done, total });
                let digest = digest(bytes, threads, &mut tell)?;
                let is_settled = about.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > SETTLED));
                if is_settled {
                    remember_digest(folder, &name, &digest);
                }
                digest
            }
        };
        before += bytes.len() as u64;
        hasher.update(&digest);
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Returns the name of a file in its present state.
fn name_of(about: &Metadata) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for number in [about.dev(), about.ino(), about.size()] {
        hasher.update(&number.to_le_bytes());
    }
    for number in [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.finalize()
}

/// Returns the hash of a file. `hashed` takes the number of bytes so far.
fn digest(bytes: &[u8], threads: usize, hashed: &mut dyn FnMut(u64) -> bool) -> Result<[u8; 32]> {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES).collect();
    let (next, (results, found)) = (AtomicUsize::new(0), unbounded());
    let mut digests = vec![[0; blake3::OUT_LEN]; pieces.len()];
    thread::scope(|scope| {
        for _ in 0..threads.min(pieces.len()).max(1) {
            let (results, next, pieces) = (results.clone(), &next, &pieces);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = pieces.get(at) else { return };
                    if results.send((at, *blake3::hash(piece).as_bytes())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let mut done = 0;
        for (at, digest) in &found {
            digests[at] = digest;
            done += pieces[at].len() as u64;
            if !hashed(done) {
                next.store(pieces.len(), Ordering::Relaxed);
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    })?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    for digest in &digests {
        hasher.update(digest);
    }
    Ok(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::{Store, prepare_folder};
    use crate::testdata;

    /// The hash of a file is computed once, with progress, and again once the file has changed. It can be stopped.
    #[test]
    fn files_are_hashed_once() {
        let folder = tempfile::tempdir().unwrap();
        let (model, kv) = (folder.path().join("m.gguf"), folder.path().join("kv"));
        std::fs::copy(&testdata::file("arch/llama_tied.gguf").0, &model).unwrap();
        let set_time = |seconds| {
            let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&model).unwrap().set_modified(time).unwrap();
        };
        prepare_folder(&kv).unwrap();
        set_time(1000);
        let name = |goes_on: bool| {
            let (args, file) = (EngineArgs::new(&model), GgufFile::open(&model).unwrap());
            let mut told = Vec::new();
            let mut progress = |progress: LoadProgress| {
                told.push((progress.done, progress.total));
                goes_on
            };
            (namespace(&args, &kv, &[&file], "layout", 2, &mut progress), told)
        };
        let (stopped, _) = name(false);
        assert!(matches!(stopped, Err(Error::Interrupted)));
        let bytes = std::fs::metadata(&model).unwrap().len();
        let (first, told) = name(true);
        let first = first.unwrap();
        assert_eq!(told, [(bytes, bytes)]);
        let (again, told) = name(false);
        assert_eq!((again.unwrap(), told.len()), (first, 0), "the folder has its hash");
        // Another time of change makes no other name.
        set_time(2000);
        let (again, told) = name(true);
        assert_eq!((again.unwrap(), told.len()), (first, 1));
        let mut changed = std::fs::read(&model).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&model, changed).unwrap();
        assert_ne!(name(true).0.unwrap(), first);
        // It has changed just now, so its hash is not kept.
        assert_eq!(name(true).1.len(), 1);
        // The hashes are no contents, and count as nothing else either.
        assert!(Store::open(&kv, first, 1 << 20).unwrap().scan().is_empty());
    }
}
