//! The foreign functions that the backend calls, as tables filled at run time from the driver's libraries: nothing of
//! ROCm or CUDA is needed to build. The only place that spells `extern "C"`.

use std::ffi::{OsStr, c_void};

pub mod blaslt;
pub mod cuda;
pub mod hip;
pub mod rtc;

/// Opens a library that is never unmapped: the vendors' leave parts of themselves behind (LLVM's options, threads), which do
/// not bear being initialised again by the next engine of the process.
///
/// # Safety
/// The library's initialisers may run in this process.
pub unsafe fn open_library(path: impl AsRef<OsStr>) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the caller's promise.
    unsafe { Library::open(Some(path.as_ref()), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) }.map(Into::into)
}

/// What every call returns; 0 is success.
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

/// Opaque pointers of the driver.
macro_rules! handles {
    ($($name:ident)*) => {$(
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub *mut c_void);

        // SAFETY: both drivers document their handles as usable from any thread on which the device is current, and
        // every call goes through `Device`, which makes it current first. We never dereference the pointer.
        unsafe impl Send for $name {}
        // SAFETY: as above; calls on one handle from several threads are serialised by the driver.
        unsafe impl Sync for $name {}

        impl $name {
            pub const NULL: Self = Self(std::ptr::null_mut());
        }
    )*};
}

handles! { StreamHandle EventHandle ModuleHandle FunctionHandle GraphHandle GraphExecHandle ContextHandle ProgramHandle }

/// A table of functions of one library. The library stays open as long as the table: its field is dropped last.
macro_rules! api {
    ($(#[$doc:meta])* $name:ident { $(fn $function:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // the library's own names
        pub struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _library: libloading::Library,
        }

        impl $name {
            /// Looks up every function; an error names the first one that is missing.
            ///
            /// # Safety
            /// `library` is the library whose header the table was written from.
            pub unsafe fn load(library: libloading::Library) -> Result<Self, libloading::Error> {
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
