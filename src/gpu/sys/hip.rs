//! libamdhip64, from hip_runtime_api.h of ROCm 6, 7 and 10.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{
    EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, Status, StreamHandle, api,
};

// hipDeviceAttribute_t. The numbers are the same since ROCm 5; only ROCm 6 has hipGetDevicePropertiesR0600.
pub(crate) const ATTRIBUTE_INTEGRATED: c_int = 16;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_X: c_int = 29;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_Y: c_int = 30;
pub(crate) const ATTRIBUTE_MAX_GRID_DIM_Z: c_int = 31;
pub(crate) const ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 56;
pub(crate) const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 63;
pub(crate) const ATTRIBUTE_WARP_SIZE: c_int = 87;

pub(crate) const COPY_HOST_TO_DEVICE: c_int = 1;
pub(crate) const COPY_DEVICE_TO_HOST: c_int = 2;
pub(crate) const COPY_DEVICE_TO_DEVICE: c_int = 3;

/// Bytes of hipDeviceProp_tR0600. The memory's size and the architecture's name have no attribute, so they are read
/// from this structure by offset. Two other fields are compared with their attributes, to detect another layout.
pub(crate) const PROPERTIES_BYTES: usize = 1472;
pub(crate) const PROPERTIES_MEMORY: usize = 288;
pub(crate) const PROPERTIES_WARP_SIZE: usize = 308;
pub(crate) const PROPERTIES_MULTIPROCESSOR_COUNT: usize = 388;
pub(crate) const PROPERTIES_GCN_ARCH_NAME: usize = 1160;
pub(crate) const PROPERTIES_GCN_ARCH_NAME_BYTES: usize = 256;

api! {
    Hip {
        fn hipInit(c_uint) -> Status;
        fn hipRuntimeGetVersion(*mut c_int) -> Status;
        fn hipGetDeviceCount(*mut c_int) -> Status;
        fn hipSetDevice(c_int) -> Status;
        fn hipDeviceGetName(*mut c_char, c_int, c_int) -> Status;
        fn hipDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> Status;
        fn hipDeviceGetAttribute(*mut c_int, c_int, c_int) -> Status;
        fn hipGetDevicePropertiesR0600(*mut u8, c_int) -> Status;
        fn hipMemGetInfo(*mut usize, *mut usize) -> Status;
        fn hipGetErrorName(Status) -> *const c_char;
        fn hipGetErrorString(Status) -> *const c_char;
        fn hipMalloc(*mut u64, usize) -> Status;
        fn hipFree(u64) -> Status;
        fn hipHostMalloc(*mut *mut c_void, usize, c_uint) -> Status;
        fn hipHostFree(*mut c_void) -> Status;
        fn hipHostGetDevicePointer(*mut u64, *mut c_void, c_uint) -> Status;
        fn hipMemcpyAsync(*mut c_void, *const c_void, usize, c_int, StreamHandle) -> Status;
        fn hipMemsetAsync(*mut c_void, c_int, usize, StreamHandle) -> Status;
        fn hipStreamCreateWithFlags(*mut StreamHandle, c_uint) -> Status;
        fn hipStreamDestroy(StreamHandle) -> Status;
        fn hipStreamSynchronize(StreamHandle) -> Status;
        fn hipEventCreateWithFlags(*mut EventHandle, c_uint) -> Status;
        fn hipEventDestroy(EventHandle) -> Status;
        fn hipEventRecord(EventHandle, StreamHandle) -> Status;
        fn hipEventSynchronize(EventHandle) -> Status;
        fn hipEventQuery(EventHandle) -> Status;
        fn hipStreamWaitEvent(StreamHandle, EventHandle, c_uint) -> Status;
        fn hipLaunchHostFunc(StreamHandle, HostFunction, *mut c_void) -> Status;
        fn hipModuleLoadData(*mut ModuleHandle, *const c_void) -> Status;
        fn hipModuleUnload(ModuleHandle) -> Status;
        fn hipModuleGetFunction(*mut FunctionHandle, ModuleHandle, *const c_char) -> Status;
        fn hipFuncGetAttribute(*mut c_int, c_int, FunctionHandle) -> Status;
        fn hipModuleLaunchKernel(
            FunctionHandle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
            StreamHandle, *mut *mut c_void, *mut *mut c_void,
        ) -> Status;
        fn hipStreamBeginCapture(StreamHandle, c_int) -> Status;
        fn hipStreamEndCapture(StreamHandle, *mut GraphHandle) -> Status;
        fn hipGraphInstantiate(*mut GraphExecHandle, GraphHandle, *mut c_void, *mut c_char, usize) -> Status;
        fn hipGraphDestroy(GraphHandle) -> Status;
        fn hipGraphExecDestroy(GraphExecHandle) -> Status;
        fn hipGraphLaunch(GraphExecHandle, StreamHandle) -> Status;
    }
}
