//! The table of guarded ranges, and the protection of their pages. The SIGSEGV handler reads it without a lock.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use parking_lot::Mutex;

const PAGE: usize = 4096;

/// A guarded range, which the handler can read without a lock.
pub(crate) struct Place {
    /// Protection of the range's pages, or `FREE`, or `FREED`: the guard exists, but its memory does not.
    pub protection: AtomicI32,
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    /// The first forbidden access, and the code that made it; 0 for none.
    pub touched: AtomicUsize,
    pub code: AtomicUsize,
}

/// Protection of unguarded pages.
pub(crate) const OPEN: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const FREE: i32 = -1;
pub(crate) const FREED: i32 = -2;
pub(crate) const PLACES: usize = 256;

pub(crate) static GUARDED: [Place; PLACES] = [const {
    Place {
        protection: AtomicI32::new(FREE),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        touched: AtomicUsize::new(0),
        code: AtomicUsize::new(0),
    }
}; PLACES];

/// Held while ranges are added and removed; the handler does not need it.
pub(crate) static CHANGING: Mutex<()> = Mutex::new(());

impl Place {
    pub(crate) fn pages(&self) -> std::ops::Range<usize> {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        start & !(PAGE - 1)..end.next_multiple_of(PAGE)
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.protection.load(Ordering::Acquire) >= 0
    }
}

/// Gives pages the strictest protection that any of their guards requires.
pub(crate) fn protect(pages: std::ops::Range<usize>) {
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
        // The usual case, for copies of any size.
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

/// Makes guarded pages accessible.
pub(crate) fn open(pages: std::ops::Range<usize>) {
    // SAFETY: pages of one allocation, which is alive: it is guarded.
    unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(pages.start), pages.len(), OPEN) };
}

/// Makes a guarded page accessible. Returns true if the address lies on such a page. `by_host` is false for a kernel of
/// the CPU, which may read page-locked memory like a GPU.
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
