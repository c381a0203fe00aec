//! The name under which contents of a model are kept: a hash of all that they depend on besides their tokens.

use std::panic::resume_unwind;
use std::thread;

use crate::config::EngineArgs;
use crate::gguf::GgufFile;

/// Bytes that are hashed as a unit, so that several threads share a file.
const PIECE_BYTES: usize = 64 << 20;

/// Returns the namespace of a model that is computed from these files. `layout` describes how the device computes and
/// stores keys, values and states. The files are read as a whole.
pub(in crate::engine) fn namespace(args: &EngineArgs, files: &[&GgufFile], layout: &str, threads: usize) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    // Another version may round differently.
    hasher.update(concat!("rocmforge kv namespace 1 ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    let settings = format!("{:?} {} {layout}", args.kv_cache_dtype, args.block_size);
    hasher.update(&(settings.len() as u64).to_le_bytes()).update(settings.as_bytes());
    for file in files {
        for bytes in file.contents() {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            for digest in digests(bytes, threads) {
                hasher.update(digest.as_bytes());
            }
        }
    }
    *hasher.finalize().as_bytes()
}

/// Returns the hash of each piece.
fn digests(bytes: &[u8], threads: usize) -> Vec<blake3::Hash> {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES).collect();
    let of_thread = pieces.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let parts = pieces.chunks(of_thread);
        let hashing =
            parts.map(|part| scope.spawn(move || part.iter().map(|piece| blake3::hash(piece)).collect::<Vec<_>>()));
        // All threads are started before the first is waited for.
        let hashing: Vec<_> = hashing.collect();
        hashing.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
