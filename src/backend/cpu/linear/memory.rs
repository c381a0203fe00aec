//! Memory of matrices and scratch.

use memmap2::MmapMut;

use crate::backend::host_memory::HostMemory;
use crate::{Error, Result};

/// Zeroed, page-aligned memory of at least one byte, in huge pages where the system gives them (a matrix is streamed
/// from end to end at every step, and 4 KiB pages cost address translations).
///
/// # Errors
/// `Error::OutOfMemory`.
pub(super) fn map(bytes: usize, what: &str) -> Result<MmapMut> {
    let out_of_memory = |e: std::io::Error| Error::OutOfMemory {
        what: format!("{what} ({e})"),
        requested: bytes as u64,
        available: HostMemory::default().available().unwrap_or(0),
        advice: "use a smaller model, or a machine with more memory",
    };
    let memory = MmapMut::map_anon(bytes.max(1)).map_err(out_of_memory)?;
    #[cfg(target_os = "linux")]
    if bytes >= HUGE {
        // Advice that a system without huge pages may refuse.
        let _refused = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}

/// Size of a huge page on x86-64.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;
