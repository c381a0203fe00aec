//! Kernels compiled for the CPU: a shared object of `kernels/host/gpu_cpu.h`, loaded and called in this process.

mod fault;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io::Write;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use amdsim::Order;
use parking_lot::Mutex;

use fault::Escape;
pub(crate) use fault::install_handlers;

/// A kernel's entry, as gpu_cpu.h's KERNEL defines it.
type Entry = unsafe extern "C" fn(c_int, c_int, c_int, c_int, *const c_void, u32) -> c_long;

pub(crate) struct CpuObject {
    handle: *mut c_void,
    wave_size: u32,
    escape: Escape,
    error: unsafe extern "C" fn() -> *const c_char,
    release: unsafe extern "C" fn(),
    users: AtomicUsize,
}

// SAFETY: dlsym may be called from any thread, and the object's functions keep their state per thread.
unsafe impl Send for CpuObject {}
// SAFETY: as above.
unsafe impl Sync for CpuObject {}

/// A loaded object, while it is in use. Which modules share it does not matter: it has no variables but those.
pub(crate) struct CpuModule(&'static CpuObject);

/// Every object that was loaded, by its bytes. None is closed again: that would free what the C library may be reading
/// on other threads at that moment, when they come to thread-local variables for the first time (glibc bug 27111).
static OBJECTS: Mutex<BTreeMap<Box<[u8]>, &CpuObject>> = Mutex::new(BTreeMap::new());

impl CpuModule {
    pub(crate) fn load(image: &[u8]) -> Result<Self, String> {
        let mut objects = OBJECTS.lock();
        let object = match objects.get(image) {
            Some(object) => *object,
            None => {
                let object: &CpuObject = Box::leak(Box::new(CpuObject::load(image)?));
                objects.insert(image.into(), object);
                object
            }
        };
        object.users.fetch_add(1, Ordering::Relaxed);
        Ok(Self(object))
    }
}

impl Deref for CpuModule {
    type Target = CpuObject;

    fn deref(&self) -> &CpuObject {
        self.0
    }
}

impl Drop for CpuModule {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: gpu_cpu.h's; it may be called at any time.
            unsafe { (self.0.release)() }
        }
    }
}

pub(crate) struct CpuKernel {
    pub threads: u32,
    pub argument_bytes: u32,
    entry: Entry,
}

impl CpuObject {
    fn load(image: &[u8]) -> Result<Self, String> {
        let mut file =
            tempfile::Builder::new().prefix("hipsim-").suffix(".so").tempfile().map_err(|e| e.to_string())?;
        file.write_all(image).map_err(|error| error.to_string())?;
        let path = CString::new(file.path().as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: runs the object's initialisers: it is trusted as a program's own code is. The file may go afterwards.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(dl_error());
        }
        let found =
            |name: &CStr| symbol(handle, name).ok_or_else(|| format!("no symbol {name:?}: not made with gpu_cpu.h"));
        let symbols = || -> Result<_, String> {
            let escape = (found(c"cpu_fault_stack")?, found(c"cpu_fault")?);
            Ok((found(c"cpu_wave_size")?, found(c"cpu_error")?, found(c"cpu_release")?, escape))
        };
        let (wave_size, error, release, (stack, fault)) = symbols()?;
        // SAFETY: the types are those of gpu_cpu.h, and the object stays loaded.
        unsafe {
            Ok(Self {
                handle,
                wave_size: wave_size.cast::<u32>().read(),
                error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(error),
                release: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(release),
                escape: Escape::new(stack, fault),
                users: AtomicUsize::new(0),
            })
        }
    }

    pub(crate) fn wave_size(&self) -> u32 {
        self.wave_size
    }

    pub(crate) fn kernel(&self, name: &str) -> Option<CpuKernel> {
        let entry = symbol(self.handle, &CString::new(format!("cpu_{name}")).ok()?)?;
        let info = symbol(self.handle, &CString::new(format!("cpu_{name}_info")).ok()?)?;
        // SAFETY: gpu_cpu.h defines both symbols together, with these types.
        let (entry, [threads, argument_bytes]) =
            unsafe { (std::mem::transmute::<*mut c_void, Entry>(entry), info.cast::<[u32; 2]>().read()) };
        Some(CpuKernel { threads, argument_bytes, entry })
    }

    /// Tells for each numbered block barrier of the source whether it was compiled.
    pub(crate) fn barriers(&self) -> Vec<bool> {
        let symbols = symbol(self.handle, c"cpu_barrier_sites").zip(symbol(self.handle, c"cpu_barrier_file"));
        let Some((sites, file)) = symbols else { return Vec::new() };
        // SAFETY: the types are those of gpu_cpu.h; the functions only read variables.
        unsafe {
            let sites = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(sites);
            let file = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(file);
            (0..sites()).map(|n| !file(n).is_null()).collect()
        }
    }

    /// Runs a kernel of this object to its end; the error is its own text.
    ///
    /// # Safety
    /// `arguments` holds the kernel's argument struct. What the kernel does with the pointers in it is not checked,
    /// except that an access to memory that is not mapped ends the kernel with an error.
    pub(crate) unsafe fn run(
        &self,
        kernel: &CpuKernel,
        grid: [u32; 3],
        threads: u32,
        arguments: &[u128],
        order: Order,
    ) -> Result<(), String> {
        let [x, y, z] = grid.map(u32::cast_signed);
        let order = u32::from(order == Order::Down);
        let _watch = self.escape.watch();
        // SAFETY: the entry belongs to this object, which is loaded; the rest is the caller's promise.
        let failed = unsafe { (kernel.entry)(x, y, z, threads.cast_signed(), arguments.as_ptr().cast(), order) };
        if failed == 0 {
            return Ok(());
        }
        // SAFETY: a zero-terminated text of this thread, valid until its next launch.
        Err(unsafe { CStr::from_ptr((self.error)()) }.to_string_lossy().into_owned())
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: an open handle and a zero-terminated name.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

fn dl_error() -> String {
    // SAFETY: called after a failed dlopen on the same thread; the text is copied at once.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "dlopen failed".to_owned();
    }
    // SAFETY: not null, so a zero-terminated text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
