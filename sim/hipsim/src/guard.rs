//! Page-locked memory that a queued copy or kernel is still to read, or a copy to write: the host may not write, or not
//! even touch, it before.
//!
//! Its pages are protected until that runs. The first access that breaks the rule is noted by the handler of the
//! signal, which then gives the page free: the program goes on, and the operation, when it runs, tells of it.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::log::say;

const PAGE: usize = 4096;

/// A range that is guarded, where the handler can read it without a lock.
struct Place {
    /// Protection of the range's pages, or `FREE`, or `FREED`: the guard is there, but not its memory.
    protection: AtomicI32,
    start: AtomicUsize,
    end: AtomicUsize,
    /// The first forbidden access, and the code that made it; 0 for none.
    touched: AtomicUsize,
    code: AtomicUsize,
}

/// Protection of pages that nothing guards.
const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FREE: i32 = -1;
const FREED: i32 = -2;
const PLACES: usize = 256;

static GUARDED: [Place; PLACES] = [const {
    Place {
        protection: AtomicI32::new(FREE),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        touched: AtomicUsize::new(0),
        code: AtomicUsize::new(0),
    }
}; PLACES];

/// Held while ranges come and go; the handler does not need it.
static CHANGING: Mutex<()> = Mutex::new(());

impl Place {
    fn pages(&self) -> std::ops::Range<usize> {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        start & !(PAGE - 1)..end.next_multiple_of(PAGE)
    }

    fn is_guarded(&self) -> bool {
        self.protection.load(Ordering::Acquire) >= 0
    }
}

/// The use that a queued operation makes of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    Writes,
}

/// Notes an access of the host that conflicts with the operation, until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards a range that lies in whole allocations of page-locked memory.
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

    /// The address that the host used too early, and the code that did.
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
        // The handler knows the pages as guarded until they are usable: another thread may be on its way there.
        if place.protection.load(Ordering::Acquire) != FREED {
            place.protection.store(OPEN, Ordering::Release);
            protect(place.pages());
        }
        place.protection.store(FREE, Ordering::Release);
    }
}

/// Ends all guards of an allocation that is about to be freed.
pub(crate) fn forget(allocation: std::ops::Range<u64>) {
    let _changing = CHANGING.lock();
    for place in GUARDED.iter().filter(|place| place.is_guarded()) {
        if allocation.contains(&(place.start.load(Ordering::Relaxed) as u64)) {
            place.protection.store(FREED, Ordering::Release);
            protect(place.pages());
        }
    }
}

/// Gives pages the strictest protection that any guard of them asks for.
fn protect(pages: std::ops::Range<usize>) {
    let overlapping = |pages: &std::ops::Range<usize>| {
        let found = GUARDED.iter().filter(|place| place.is_guarded());
        let found = found.filter(|place| place.pages().start < pages.end && pages.start < place.pages().end);
        found.map(|place| place.protection.load(Ordering::Acquire)).collect::<Vec<_>>()
    };
    let set = |pages: std::ops::Range<usize>, guards: &[i32]| {
        let protection = guards.iter().copied().min().unwrap_or(OPEN);
        // SAFETY: pages of one allocation, which is alive: it is guarded, or was until now.
        unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(pages.start), pages.len(), protection) };
    };
    match overlapping(&pages) {
        // The usual case, however large the copy.
        guards if guards.len() <= 1 => set(pages, &guards),
        _ => {
            for start in pages.step_by(PAGE) {
                let page = start..start + PAGE;
                let guards = overlapping(&page);
                set(page, &guards);
            }
        }
    }
}

/// Tells the handler of SIGSEGV whether the address lies on a guarded page, which is usable afterwards. `by_host` is
/// false for a kernel of the CPU, which may read page-locked memory as a GPU may.
pub(crate) fn release_page(address: usize, code: usize, by_host: bool) -> bool {
    let mut found = false;
    for place in GUARDED.iter().filter(|place| place.is_guarded()) {
        if !place.pages().contains(&address) {
            continue;
        }
        found = true;
        let range = place.start.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed);
        if by_host && range.contains(&address) && place.touched.load(Ordering::Relaxed) == 0 {
            place.code.store(code, Ordering::Relaxed);
            place.touched.store(address, Ordering::Release);
        }
    }
    if found {
        let page = std::ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
        // SAFETY: a page that `protect` has protected.
        unsafe { libc::mprotect(page, PAGE, OPEN) };
    }
    found
}

/// File and offset of an instruction, and its function where it is exported.
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
