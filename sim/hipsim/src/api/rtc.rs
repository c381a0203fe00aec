//! hipRTC. It takes no lock, so that a forked child can compile.

use std::ffi::{CStr, c_char, c_int};

use super::put;
use crate::compile::{CompileError, Program, version};
use crate::status::Status;

/// hiprtcResult.
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtcStatus(pub i32);

impl RtcStatus {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_INPUT: Self = Self(3);
    pub const INVALID_PROGRAM: Self = Self(4);
    pub const INVALID_OPTION: Self = Self(5);
    pub const COMPILATION: Self = Self(6);
}

impl From<Result<(), Status>> for RtcStatus {
    fn from(result: Result<(), Status>) -> Self {
        if result.is_ok() { Self::SUCCESS } else { Self::INVALID_INPUT }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(status: RtcStatus) -> *const c_char {
    match status {
        RtcStatus::SUCCESS => c"HIPRTC_SUCCESS",
        RtcStatus::INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        RtcStatus::INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        RtcStatus::INVALID_OPTION => c"HIPRTC_ERROR_INVALID_OPTION",
        RtcStatus::COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> RtcStatus {
    let version = version();
    // SAFETY: the module's contract.
    unsafe { put(major, version.0).and(put(minor, version.1)) }.into()
}

/// # Safety
/// `text` is null or zero-terminated.
unsafe fn bytes(text: *const c_char) -> Vec<u8> {
    // SAFETY: the caller's promise.
    if text.is_null() { Vec::new() } else { unsafe { CStr::from_ptr(text) }.to_bytes().to_vec() }
}

/// # Safety
/// `text` is null or zero-terminated.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(&unsafe { bytes(text) }).into_owned()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut *mut Program,
    source: *const c_char,
    name: *const c_char,
    num_headers: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> RtcStatus {
    if source.is_null() || (num_headers > 0 && (headers.is_null() || include_names.is_null())) {
        return RtcStatus::INVALID_INPUT;
    }
    let count = usize::try_from(num_headers).unwrap_or(0);
    // SAFETY: the module's contract: `num_headers` texts in either list.
    let header = |i| unsafe { (string(include_names.add(i).read()), bytes(headers.add(i).read())) };
    let headers = (0..count).map(header).collect();
    // SAFETY: the module's contract.
    let (name, source) = unsafe { (string(name), bytes(source)) };
    let created = Box::new(Program { name, source, headers, ..Program::default() });
    // SAFETY: the module's contract.
    unsafe { put(program, Box::into_raw(created)) }.into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut *mut Program) -> RtcStatus {
    if program.is_null() {
        return RtcStatus::INVALID_PROGRAM;
    }
    // SAFETY: the module's contract: what hiprtcCreateProgram stored, and not destroyed before; it is then cleared.
    unsafe {
        let owned = program.replace(std::ptr::null_mut());
        if owned.is_null() {
            return RtcStatus::INVALID_PROGRAM;
        }
        drop(Box::from_raw(owned));
    }
    RtcStatus::SUCCESS
}

/// # Safety
/// `program` is null or alive, and no other reference to it is in use.
unsafe fn borrow<'a>(program: *mut Program) -> Result<&'a mut Program, RtcStatus> {
    // SAFETY: the caller's promise.
    unsafe { program.as_mut() }.ok_or(RtcStatus::INVALID_PROGRAM)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCompileProgram(
    program: *mut Program,
    num_options: c_int,
    options: *const *const c_char,
) -> RtcStatus {
    let count = usize::try_from(num_options).unwrap_or(0);
    // SAFETY: the module's contract: `num_options` texts.
    let options: Vec<String> = (0..count).map(|i| unsafe { string(options.add(i).read()) }).collect();
    // SAFETY: the module's contract.
    match unsafe { borrow(program) }.map(|program| program.compile(&options)) {
        Ok(Ok(())) => RtcStatus::SUCCESS,
        Ok(Err(CompileError::Options)) => RtcStatus::INVALID_OPTION,
        Ok(Err(CompileError::Compilation)) => RtcStatus::COMPILATION,
        Err(status) => status,
    }
}

/// Returns the size of the log as a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(program: *mut Program, size: *mut usize) -> RtcStatus {
    // SAFETY: the module's contract.
    match unsafe { borrow(program) } {
        // SAFETY: the module's contract.
        Ok(program) => unsafe { put(size, program.log.len() + 1) }.into(),
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLog(program: *mut Program, log: *mut u8) -> RtcStatus {
    // SAFETY: the module's contract: room for hiprtcGetProgramLogSize bytes.
    match unsafe { borrow(program) } {
        Ok(program) => {
            // SAFETY: as above.
            unsafe {
                log.copy_from_nonoverlapping(program.log.as_ptr(), program.log.len());
                log.add(program.log.len()).write(0);
            }
            RtcStatus::SUCCESS
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCodeSize(program: *mut Program, size: *mut usize) -> RtcStatus {
    // SAFETY: the module's contract.
    match unsafe { borrow(program) } {
        // SAFETY: the module's contract.
        Ok(program) => unsafe { put(size, program.code.len()) }.into(),
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCode(program: *mut Program, code: *mut u8) -> RtcStatus {
    // SAFETY: the module's contract: room for hiprtcGetCodeSize bytes.
    match unsafe { borrow(program) } {
        Ok(program) => {
            // SAFETY: as above.
            unsafe { code.copy_from_nonoverlapping(program.code.as_ptr(), program.code.len()) };
            RtcStatus::SUCCESS
        }
        Err(status) => status,
    }
}
