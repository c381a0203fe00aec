//! Kernels compiled for the CPU: a shared object of `kernels/host/gpu_cpu.h`, loaded and called in this process.

mod fault;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io::Write;

use amdsim::Order;
use parking_lot::Mutex;

use fault::Escape;
pub(crate) use fault::install_handlers;

/// A kernel's entry point, as the KERNEL macro of gpu_cpu.h defines it.
type Entry = unsafe extern "C" fn(c_int, c_int, c_int, c_int, *const c_void, u32, *mut Room) -> c_long;

/// A function of the program that a stream calls.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void);

/// The memory of a block's fibers. The first launch creates it; later launches of any object reuse it.
#[repr(transparent)]
struct Room(*mut c_void);

// SAFETY: plain memory, which belongs to the owner of the value.
unsafe impl Send for Room {}

/// Rooms that no launch uses: as many as there were ever concurrent launches.
static ROOMS: Mutex<Vec<Room>> = Mutex::new(Vec::new());

pub(crate) struct CpuObject {
    handle: *mut c_void,
    wave_size: u32,
    escape: Escape,
    error: unsafe extern "C" fn() -> *const c_char,
}

// SAFETY: dlsym may be called from any thread, and the object's functions keep their state per thread.
unsafe impl Send for CpuObject {}
// SAFETY: as above.
unsafe impl Sync for CpuObject {}

/// All loaded objects, by their bytes. None is closed: that would free memory that the C library may be reading on
/// other threads when they first access thread-local variables (glibc bug 27111). Modules can share an object, since it
/// has no variables but thread-local ones.
static OBJECTS: Mutex<BTreeMap<Box<[u8]>, &CpuObject>> = Mutex::new(BTreeMap::new());

/// Loads an object, or finds the one with the same bytes.
pub(crate) fn load(image: &[u8]) -> Result<&'static CpuObject, String> {
    let mut objects = OBJECTS.lock();
    if let Some(object) = objects.get(image) {
        return Ok(object);
    }
    let object: &CpuObject = Box::leak(Box::new(CpuObject::load(image)?));
    objects.insert(image.into(), object);
    Ok(object)
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
            Ok((found(c"cpu_wave_size")?, found(c"cpu_error")?, escape))
        };
        let (wave_size, error, (stack, fault)) = symbols()?;
        // SAFETY: the types are those of gpu_cpu.h, and the object stays loaded.
        unsafe {
            Ok(Self {
                handle,
                wave_size: wave_size.cast::<u32>().read(),
                error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(error),
                escape: Escape::new(stack, fault),
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

    /// Returns, for each numbered block barrier of the source, true if it was compiled.
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

    /// Runs a kernel of this object to its end. An error is the kernel's own text.
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
        let mut room = ROOMS.lock().pop().unwrap_or(Room(std::ptr::null_mut()));
        // SAFETY: the entry belongs to this object, which is loaded, and the room to this launch; the rest is the
        // caller's promise.
        let failed =
            unsafe { (kernel.entry)(x, y, z, threads.cast_signed(), arguments.as_ptr().cast(), order, &raw mut room) };
        ROOMS.lock().push(room);
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
