//! Guards page-locked memory that a queued copy or kernel still has to read, or a copy has to write. Until then the
//! host may not write it, or not even access it.
//!
//! Its pages are protected until the operation runs. The signal handler records the first access that breaks the rule,
//! and makes the page accessible. The program continues, and the operation reports the access when it runs.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use crate::guarded_pages::{CHANGING, FREE, FREED, GUARDED, OPEN, PLACES, Place, open, protect};
use crate::log::say;

/// The kind of access of a queued operation to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    Writes,
}

/// Records a conflicting access of the host, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards a range within allocations of page-locked memory.
    pub(crate) fn new(start: usize, bytes: usize, copy: Use) -> Option<Self> {
        crate::cpu::install_handlers();
        let _changing = CHANGING.lock();
        let Some(index) = GUARDED.iter().position(|place| place.protection.load(Ordering::Acquire) == FREE) else {
            say(format_args!("more than {PLACES} copies of page-locked memory are queued: this one is not guarded"));
            return None;
        };
        let place = &GUARDED[index];
        place.start.store(start, Ordering::Relaxed);
        place.end.store(start + bytes, Ordering::Relaxed);
        place.touched.store(0, Ordering::Relaxed);
        let protection = if copy == Use::Reads { libc::PROT_READ } else { libc::PROT_NONE };
        place.protection.store(protection, Ordering::Release);
        protect(place.pages());
        Some(Self(index))
    }

    /// Returns the address that the host used too early, and the code that did.
    pub(crate) fn touched(&self) -> Option<(usize, String)> {
        let place = &GUARDED[self.0];
        let address = place.touched.load(Ordering::Acquire);
        (address != 0).then(|| (address, describe_code(place.code.load(Ordering::Relaxed))))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _changing = CHANGING.lock();
        let place = &GUARDED[self.0];
        // For the handler the pages stay guarded until they are accessible: another thread may be entering it.
        if place.protection.load(Ordering::Acquire) != FREED {
            place.protection.store(OPEN, Ordering::Release);
            protect(place.pages());
        }
        place.protection.store(FREE, Ordering::Release);
    }
}

/// Runs work of a stream that uses the host's memory: a function of the host, or a simulated kernel. Work behind it may
/// use the same memory, so nothing is guarded meanwhile.
pub(crate) fn suspended<T>(run: impl FnOnce() -> T) -> T {
    let changing = CHANGING.lock();
    let guarded: Vec<_> = GUARDED.iter().filter(|place| place.is_guarded()).map(Place::pages).collect();
    guarded.iter().cloned().for_each(open);
    let result = run();
    guarded.into_iter().for_each(protect);
    drop(changing);
    result
}

/// Ends all guards of an allocation before it is freed.
pub(crate) fn forget(allocation: std::ops::Range<u64>) {
    let _changing = CHANGING.lock();
    for place in GUARDED.iter().filter(|place| place.is_guarded()) {
        if allocation.contains(&(place.start.load(Ordering::Relaxed) as u64)) {
            place.protection.store(FREED, Ordering::Release);
            protect(place.pages());
        }
    }
}

/// Returns file and offset of an instruction, and its function if that is exported.
fn describe_code(address: usize) -> String {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: fills the structure in, or returns 0.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance(address), info.as_mut_ptr()) };
    // SAFETY: an all-zero structure is valid.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return format!("{address:#x}");
    }
    // SAFETY: a zero-terminated text of the loader's.
    let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    let name = match info.dli_sname.is_null() {
        true => String::new(),
        // SAFETY: as above.
        false => format!("{} in ", unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy()),
    };
    format!("{name}{file}+{:#x}", address - info.dli_fbase.addr())
}
