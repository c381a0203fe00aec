//! The calls of cuBLASLt and hipBLASLt that we use. Both libraries have the same functions with the same arguments
//! under different prefixes. Constants and the size of one opaque structure differ.

use std::ffi::{c_char, c_int, c_void};

/// Any object of the libraries.
pub(crate) type Handle = *mut c_void;

pub(crate) const DATA_F32: c_int = 0;
pub(crate) const DATA_F16: c_int = 2;
pub(crate) const DATA_BF16: c_int = 14;
/// OCP's e4m3: exponents have a bias of 7, up to 448.
pub(crate) const DATA_E4M3: c_int = 28;
/// The e4m3 of gfx942, without a negative zero: exponents have a bias of 8, so each code is half of OCP's.
pub(crate) const DATA_E4M3_FNUZ: c_int = 1000;
pub(crate) const EPILOGUE_BIAS: u32 = 4;
/// A factor for each row of the first operand, or for each column of the second.
pub(crate) const SCALE_OUTER_VECTOR: i32 = 3;
pub(crate) const PREFERENCE_MAX_WORKSPACE_BYTES: c_int = 1;

/// The differences between the two libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    pub prefix: &'static str,
    pub library_names: &'static [&'static str],
    /// Bytes of a `MatmulHeuristicResult_t`, which begins with the algorithm.
    pub result_bytes: usize,
    pub compute_f32: c_int,
    pub attribute_transpose_a: c_int,
    pub attribute_epilogue: c_int,
    pub attribute_bias_pointer: c_int,
    /// One attribute each for the first and the second operand.
    pub attribute_scale_pointers: [c_int; 2],
    pub attribute_scale_modes: [c_int; 2],
    /// Permits sums of 8-bit floats with less precision than f32, which are faster; `None`: there is no choice.
    pub attribute_fast_accumulation: Option<c_int>,
    pub operation_transpose: i32,
}

pub(crate) const CUBLASLT: Dialect = Dialect {
    prefix: "cublasLt",
    library_names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    result_bytes: 96,
    compute_f32: 68,
    attribute_transpose_a: 3,
    attribute_epilogue: 7,
    attribute_bias_pointer: 8,
    attribute_scale_pointers: [17, 18],
    attribute_scale_modes: [31, 32],
    attribute_fast_accumulation: Some(25),
    operation_transpose: 1,
};

pub(crate) const HIPBLASLT: Dialect = Dialect {
    prefix: "hipblasLt",
    library_names: &["libhipblaslt.so.2", "libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"],
    result_bytes: 56,
    compute_f32: 2,
    attribute_transpose_a: 0,
    attribute_epilogue: 2,
    attribute_bias_pointer: 3,
    attribute_scale_pointers: [5, 6],
    attribute_scale_modes: [31, 32],
    attribute_fast_accumulation: None,
    operation_transpose: 112,
};

pub(crate) type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
pub(crate) type Destroy = unsafe extern "C" fn(Handle) -> c_int;
pub(crate) type DescriptorCreate = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int;
pub(crate) type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;
pub(crate) type LayoutCreate = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int;
pub(crate) type GetHeuristic = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut c_void,
    *mut c_int,
) -> c_int;
pub(crate) type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const c_char,
    u64,
    usize,
    *mut c_void,
) -> c_int;
