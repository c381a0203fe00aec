//! hipRTC and NVRTC: two libraries with the same functions under two prefixes. Each program lives in a process that
//! ends with it, so none is destroyed.

use std::ffi::{c_char, c_int};

use super::{ProgramHandle, Status, api};

api! {
    Hiprtc {
        fn hiprtcVersion(*mut c_int, *mut c_int) -> Status;
        fn hiprtcCreateProgram(
            *mut ProgramHandle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ) -> Status;
        fn hiprtcCompileProgram(ProgramHandle, c_int, *const *const c_char) -> Status;
        fn hiprtcGetProgramLogSize(ProgramHandle, *mut usize) -> Status;
        fn hiprtcGetProgramLog(ProgramHandle, *mut u8) -> Status;
        fn hiprtcGetCodeSize(ProgramHandle, *mut usize) -> Status;
        fn hiprtcGetCode(ProgramHandle, *mut u8) -> Status;
    }
}

api! {
    Nvrtc {
        fn nvrtcVersion(*mut c_int, *mut c_int) -> Status;
        fn nvrtcCreateProgram(
            *mut ProgramHandle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        ) -> Status;
        fn nvrtcCompileProgram(ProgramHandle, c_int, *const *const c_char) -> Status;
        fn nvrtcGetProgramLogSize(ProgramHandle, *mut usize) -> Status;
        fn nvrtcGetProgramLog(ProgramHandle, *mut u8) -> Status;
        fn nvrtcGetCUBINSize(ProgramHandle, *mut usize) -> Status;
        fn nvrtcGetCUBIN(ProgramHandle, *mut u8) -> Status;
    }
}
