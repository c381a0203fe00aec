//! libcuda, from cuda.h of CUDA 12; the names with `_v2` are what the header's macros expand to.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    ContextHandle, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, Status,
    StreamHandle, api,
};

// CUdevice_attribute
pub(crate) const ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 1;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_X: c_int = 5;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_Y: c_int = 6;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_Z: c_int = 7;
pub(crate) const ATTRIBUTE_WARP_SIZE: c_int = 10;
pub(crate) const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
pub(crate) const ATTRIBUTE_INTEGRATED: c_int = 18;
pub(crate) const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;

// CUfunction_attribute
pub(crate) const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: StreamHandle,
    pub attributes: *const LaunchAttribute,
    pub num_attributes: c_uint,
}

/// `CUlaunchAttribute`, with the only kind of value that we use.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    pub id: c_uint,
    pub padding: c_uint,
    /// A union of 64 bytes, whose first member here is an integer.
    pub value: [c_int; 16],
}

/// The kernel may start before its predecessor in the stream has ended; it waits itself (`pdl_wait`).
pub(crate) const LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

api! {
    Cuda {
        fn cuInit(c_uint) -> Status;
        fn cuDriverGetVersion(*mut c_int) -> Status;
        fn cuDeviceGetCount(*mut c_int) -> Status;
        fn cuDeviceGet(*mut c_int, c_int) -> Status;
        fn cuDeviceGetName(*mut c_char, c_int, c_int) -> Status;
        fn cuDeviceTotalMem_v2(*mut usize, c_int) -> Status;
        fn cuDeviceGetAttribute(*mut c_int, c_int, c_int) -> Status;
        fn cuDevicePrimaryCtxRetain(*mut ContextHandle, c_int) -> Status;
        fn cuDevicePrimaryCtxRelease_v2(c_int) -> Status;
        fn cuCtxSetCurrent(ContextHandle) -> Status;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> Status;
        fn cuGetErrorName(Status, *mut *const c_char) -> Status;
        fn cuGetErrorString(Status, *mut *const c_char) -> Status;
        fn cuMemAlloc_v2(*mut u64, usize) -> Status;
        fn cuMemFree_v2(u64) -> Status;
        fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> Status;
        fn cuMemFreeHost(*mut c_void) -> Status;
        fn cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint) -> Status;
        fn cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, StreamHandle) -> Status;
        fn cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, StreamHandle) -> Status;
        fn cuMemcpyDtoDAsync_v2(u64, u64, usize, StreamHandle) -> Status;
        fn cuMemsetD8Async(u64, u8, usize, StreamHandle) -> Status;
        fn cuStreamCreate(*mut StreamHandle, c_uint) -> Status;
        fn cuStreamDestroy_v2(StreamHandle) -> Status;
        fn cuStreamSynchronize(StreamHandle) -> Status;
        fn cuEventCreate(*mut EventHandle, c_uint) -> Status;
        fn cuEventDestroy_v2(EventHandle) -> Status;
        fn cuEventRecord(EventHandle, StreamHandle) -> Status;
        fn cuEventSynchronize(EventHandle) -> Status;
        fn cuEventQuery(EventHandle) -> Status;
        fn cuStreamWaitEvent(StreamHandle, EventHandle, c_uint) -> Status;
        fn cuLaunchHostFunc(StreamHandle, HostFunction, *mut c_void) -> Status;
        fn cuModuleLoadData(*mut ModuleHandle, *const c_void) -> Status;
        fn cuModuleUnload(ModuleHandle) -> Status;
        fn cuModuleGetFunction(*mut FunctionHandle, ModuleHandle, *const c_char) -> Status;
        fn cuFuncGetAttribute(*mut c_int, c_int, FunctionHandle) -> Status;
        fn cuFuncSetAttribute(FunctionHandle, c_int, c_int) -> Status;
        fn cuLaunchKernelEx(
            *const LaunchConfig, FunctionHandle, *mut *mut c_void, *mut *mut c_void,
        ) -> Status;
        fn cuStreamBeginCapture_v2(StreamHandle, c_int) -> Status;
        fn cuStreamEndCapture(StreamHandle, *mut GraphHandle) -> Status;
        fn cuGraphInstantiateWithFlags(*mut GraphExecHandle, GraphHandle, u64) -> Status;
        fn cuGraphDestroy(GraphHandle) -> Status;
        fn cuGraphExecDestroy(GraphExecHandle) -> Status;
        fn cuGraphLaunch(GraphExecHandle, StreamHandle) -> Status;
    }
}
