//! The foreign functions that the backend calls, as tables filled at run time from the driver's libraries. Building
//! needs nothing of ROCm or CUDA. This is the only place with `extern "C"`.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(super) mod blaslt;
pub(super) mod cuda;
pub(super) mod hip;
pub(super) mod rtc;

/// Opens a library and never unmaps it. The vendors' libraries leave state behind (LLVM's options, threads), and a
/// second initialisation by the next engine of the process would fail.
///
/// # Safety
/// The library's initialisers may run in this process.
pub(super) unsafe fn open_library(
    path: impl AsRef<OsStr>,
    which: Opened,
) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    let only_loaded = if which == Opened::Already { libc::RTLD_NOLOAD } else { 0 };
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE | only_loaded;
    // SAFETY: the caller's promise.
    unsafe { Library::open(Some(path.as_ref()), flags) }.map(Into::into)
}

/// The libraries that `open_library` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// The library only if this process has already opened it.
    Already,
    Anew,
}

/// Returns the text of the system's loader, which the error's own text leaves out.
pub(super) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns the file that a function was loaded from.
pub(super) fn file_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: a look-up of an address, which may be any; `info` outlives the call.
    let found = unsafe { libc::dladdr(function, &raw mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: a text that ends with a zero byte and lives as long as its library, which is never unmapped.
    found.then(|| PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes())))
}

// Arguments with the same meaning and the same numbers in both drivers.
/// Flag of page-locked memory that kernels may also use.
pub(super) const HOST_MAPPED: c_uint = 2;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const CAPTURE_THREAD_LOCAL: c_int = 1;
pub(super) const FUNCTION_MAX_THREADS_PER_BLOCK: c_int = 0;

/// A function of the host that a stream calls.
pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Work of the host in the order of a stream. It may not call the driver.
pub(super) trait HostWork: Send + Sync {
    fn run(&self);
}

/// Runs the `T` that `work` points to. A panic may not leave a function that foreign code calls, so it ends here;
/// `HostWork::run` catches its own.
///
/// # Safety
/// `work` points to a living `T`.
pub(super) unsafe extern "C" fn run_host_work<T: HostWork>(work: *mut c_void) {
    // SAFETY: the caller's promise.
    let work = unsafe { &*work.cast::<T>() };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.run()));
}

/// The result of every call; 0 is success.
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(pub i32);

/// Opaque pointers of the driver.
macro_rules! handles {
    ($($name:ident)*) => {$(
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(pub *mut c_void);

        // SAFETY: both drivers document their handles as usable from any thread on which the device is current. Every
        // call goes through `Device`, which makes it current first. We never dereference the pointer.
        unsafe impl Send for $name {}
        // SAFETY: as above; calls on one handle from several threads are serialised by the driver.
        unsafe impl Sync for $name {}

        impl $name {
            pub(crate) const NULL: Self = Self(std::ptr::null_mut());
        }
    )*};
}

handles! { StreamHandle EventHandle ModuleHandle FunctionHandle GraphHandle GraphExecHandle ContextHandle ProgramHandle }

/// Defines a table of functions of one library. The library stays open as long as the table: its field is dropped last.
macro_rules! api {
    ($(#[$doc:meta])* $name:ident { $(fn $function:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // the library's own names
        pub(crate) struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _library: libloading::Library,
        }

        impl $name {
            /// Looks up every function; an error names the first missing one.
            ///
            /// # Safety
            /// `library` is the library whose header the table was written from.
            pub(crate) unsafe fn load(library: libloading::Library) -> Result<Self, libloading::Error> {
                $(
                    #[allow(non_snake_case)]
                    // SAFETY: the signature is the header's (the caller vouches for the library), and the pointer is
                    // kept beside the library that it points into.
                    let $function = unsafe { *library.get(concat!(stringify!($function), "\0"))? };
                )*
                Ok(Self { $($function,)* _library: library })
            }
        }
    };
}
use api;
