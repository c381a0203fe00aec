//! Calls the exported functions as a program would, and checks their statuses.
#![allow(dead_code)] // each test file uses some of them
#![allow(unsafe_code, clippy::missing_safety_doc, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

use hipsim::Status;
use hipsim::api::inspect::{Live, hipsim_fault, hipsim_live, hipsim_open};
use hipsim::api::{device::*, event::*, memory::*, module::*, rtc::*, stream::*};

pub(crate) type Handle = *mut c_void;

#[track_caller]
pub(crate) fn ok(status: Status) {
    assert_eq!(status, Status::SUCCESS);
}

/// A device of the test file's list; each test has its own, since a fault stays.
pub(crate) struct Gpu(pub i32);

impl Gpu {
    pub(crate) fn new(list: &CStr, index: i32) -> Self {
        ok(unsafe { hipsim_open(list.as_ptr()) });
        ok(hipSetDevice(index));
        Self(index)
    }

    pub(crate) fn malloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok(unsafe { hipMalloc(&mut address, bytes) });
        address
    }

    pub(crate) fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let mut address = null_mut();
        ok(unsafe { hipHostMalloc(&mut address, bytes, 0) });
        unsafe { std::slice::from_raw_parts_mut(address.cast(), bytes) }
    }

    pub(crate) fn stream(&self) -> Handle {
        let mut stream = null_mut();
        ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
        stream
    }

    pub(crate) fn event(&self) -> Handle {
        let mut event = null_mut();
        ok(unsafe { hipEventCreateWithFlags(&mut event, 2) });
        event
    }

    pub(crate) fn upload<T>(&self, to: u64, from: &[T], stream: Handle) -> Status {
        unsafe { hipMemcpyHtoDAsync(to, from.as_ptr().cast(), size_of_val(from), stream) }
    }

    pub(crate) fn download<T>(&self, to: &mut [T], from: u64, stream: Handle) -> Status {
        unsafe { hipMemcpyDtoHAsync(to.as_mut_ptr().cast(), from, size_of_val(to), stream) }
    }

    /// Reads values from the device after all operations on the stream have run.
    pub(crate) fn read<T: Clone + Default>(&self, from: u64, count: usize, stream: Handle) -> Vec<T> {
        let mut values = vec![T::default(); count];
        ok(self.download(&mut values, from, stream));
        ok(hipStreamSynchronize(stream));
        values
    }

    pub(crate) fn live(&self) -> Live {
        let mut live = Live::default();
        ok(unsafe { hipsim_live(self.0, &mut live) });
        live
    }

    pub(crate) fn fault(&self) -> String {
        let mut text = [0 as c_char; 400];
        ok(unsafe { hipsim_fault(self.0, text.as_mut_ptr(), text.len()) });
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned()
    }

    /// Returns a function of tests/kernels/sample.hip, compiled for this device at run time.
    pub(crate) fn kernel(&self, name: &CStr, options: &[&str]) -> (Handle, Handle) {
        // Leaked: a module's image must stay in place while the module is loaded.
        let code = compile_sample(&self.arch(), options).unwrap().leak();
        let (mut module, mut function) = (null_mut(), null_mut());
        ok(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) });
        ok(unsafe { hipModuleGetFunction(&mut function, module, name.as_ptr()) });
        (module, function)
    }

    pub(crate) fn arch(&self) -> String {
        let mut properties = [0u8; 1472];
        ok(unsafe { hipGetDevicePropertiesR0600(properties.as_mut_ptr(), self.0) });
        CStr::from_bytes_until_nul(&properties[1160..]).unwrap().to_str().unwrap().to_owned()
    }

    pub(crate) fn launch(
        &self,
        function: Handle,
        grid: [u32; 3],
        block: u32,
        args: &ScaleArgs,
        stream: Handle,
    ) -> Status {
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let [x, y, z] = grid;
        let parameters = parameters.as_mut_ptr();
        unsafe { hipModuleLaunchKernel(function, x, y, z, block, 1, 1, 0, stream, parameters, null_mut()) }
    }
}

/// The arguments of every kernel in sample.hip.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScaleArgs {
    pub x: u64,
    pub out: u64,
    pub rows: u32,
    pub cols: u32,
    pub scale: f32,
}

pub(crate) fn source(path: &str) -> CString {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    CString::new(fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

/// Returns the code object of sample.hip from hiprtc, or the compiler's log; compiles only once.
pub(crate) fn compile_sample(arch: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let key = format!("{arch} {options:?}");
    let known = COMPILED.lock().unwrap().get(&key).cloned();
    if let Some(code) = known {
        return Ok(code);
    }
    let code = compile(&source("tests/kernels/sample.hip"), arch, options)?;
    COMPILED.lock().unwrap().insert(key, code.clone());
    Ok(code)
}

pub(crate) fn compile(program: &CStr, arch: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    let headers = [source("../../kernels/gpu.h")];
    let contents = headers.each_ref().map(|header| header.as_ptr());
    let names = [c"gpu.h".as_ptr()];
    let options: Vec<_> = options.iter().map(|option| CString::new(*option).unwrap()).collect();
    let arch = CString::new(format!("--offload-arch={arch}")).unwrap();
    let fixed = [arch.as_c_str(), c"-O3", c"-std=c++17", c"-ffp-contract=on"];
    let options: Vec<_> = fixed.into_iter().chain(options.iter().map(CString::as_c_str)).map(CStr::as_ptr).collect();
    unsafe {
        let mut handle = null_mut();
        let created = hiprtcCreateProgram(
            &mut handle,
            program.as_ptr(),
            c"sample.hip".as_ptr(),
            headers.len() as i32,
            contents.as_ptr(),
            names.as_ptr(),
        );
        assert_eq!(created, RtcStatus::SUCCESS);
        let status = hiprtcCompileProgram(handle, options.len() as i32, options.as_ptr());
        let mut size = 0;
        assert_eq!(hiprtcGetProgramLogSize(handle, &mut size), RtcStatus::SUCCESS);
        let mut log = vec![0; size];
        assert_eq!(hiprtcGetProgramLog(handle, log.as_mut_ptr()), RtcStatus::SUCCESS);
        assert_eq!(hiprtcGetCodeSize(handle, &mut size), RtcStatus::SUCCESS);
        let mut code = vec![0; size];
        assert_eq!(hiprtcGetCode(handle, code.as_mut_ptr()), RtcStatus::SUCCESS);
        assert_eq!(hiprtcDestroyProgram(&mut handle), RtcStatus::SUCCESS);
        if status == RtcStatus::SUCCESS { Ok(code) } else { Err(String::from_utf8(log).unwrap()) }
    }
}
