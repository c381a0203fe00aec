//! hipBLASLt: products of 16-bit and 8-bit matrices with f32 sums, with the engine's arguments. It can imitate the ways
//! in which the real library has failed (`HIPSIM_BLASLT`, `hipsim_blaslt`).

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::{find_stream, put};
use crate::log::say;
use crate::streams::operation::Operation;
use crate::streams::product::{Element, Matrix, Product};

/// hipblasStatus_t.
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlasStatus(pub i32);

impl BlasStatus {
    pub const SUCCESS: Self = Self(0);
    pub const NOT_INITIALIZED: Self = Self(1);
    pub const INVALID_VALUE: Self = Self(3);
    pub const NOT_SUPPORTED: Self = Self(7);
    pub const EXECUTION_FAILED: Self = Self(6);
}

type Result<T> = std::result::Result<T, BlasStatus>;

impl From<Result<()>> for BlasStatus {
    fn from(result: Result<()>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
}

/// hipblasLtMatmulHeuristicResult_t: an algorithm of 24 bytes, the workspace, a state, a figure, four reserved numbers.
const RESULT_BYTES: usize = 56;
/// The number of algorithms that every product has.
const ALGORITHMS: u8 = 3;

/// The ways in which the library can misbehave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// hipblasLtCreate fails.
    Create,
    /// The heuristic answers with an error, as on GPUs that the library was not built for.
    Heuristic,
    /// It answers with success and no algorithm.
    NoAlgorithm,
    /// The first algorithm is refused when it should run.
    FirstRefused,
    /// All algorithms are refused.
    AllRefused,
    /// All are refused while the stream captures, which also invalidates the capture.
    Capture,
    /// One element of a result is wrong.
    Wrong,
    Segfault,
    Abort,
}

const FAULTS: [(&CStr, Fault); 10] = [
    (c"", Fault::None),
    (c"create", Fault::Create),
    (c"heuristic", Fault::Heuristic),
    (c"no-algorithm", Fault::NoAlgorithm),
    (c"first-refused", Fault::FirstRefused),
    (c"all-refused", Fault::AllRefused),
    (c"capture", Fault::Capture),
    (c"wrong", Fault::Wrong),
    (c"segfault", Fault::Segfault),
    (c"abort", Fault::Abort),
];

enum Object {
    Library,
    Preference,
    /// `scales` and `scale_modes` have the values of A and of B.
    Descriptor {
        transpose_a: bool,
        add_bias: bool,
        bias: u64,
        scales: [u64; 2],
        scale_modes: [u64; 2],
    },
    Layout {
        element: Element,
        rows: usize,
        cols: usize,
        stride: usize,
    },
}

struct State {
    objects: HashMap<usize, Object>,
    last: usize,
    fault: Fault,
    products: u64,
}

fn state() -> &'static Mutex<State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(|| {
        let name = std::env::var("HIPSIM_BLASLT").unwrap_or_default();
        let known = FAULTS.iter().find(|(fault, _)| fault.to_bytes() == name.as_bytes());
        if known.is_none() {
            say(format_args!("HIPSIM_BLASLT={name}: no such fault"));
        }
        let fault = known.map_or(Fault::None, |(_, fault)| *fault);
        Mutex::new(State { objects: HashMap::new(), last: 0xb1a5_0000, fault, products: 0 })
    })
}

impl State {
    fn object(&self, handle: *mut c_void) -> Result<&Object> {
        self.objects.get(&handle.addr()).ok_or(BlasStatus::INVALID_VALUE)
    }

    fn layout(&self, handle: *mut c_void) -> Result<Matrix> {
        match self.object(handle)? {
            Object::Layout { element, rows, cols, stride } => {
                Ok(Matrix { at: 0, element: *element, rows: *rows, cols: *cols, stride: *stride })
            }
            _ => Err(BlasStatus::INVALID_VALUE),
        }
    }

    fn is(&self, handle: *mut c_void, kind: impl Fn(&Object) -> bool) -> Result<()> {
        if kind(self.object(handle)?) { Ok(()) } else { Err(BlasStatus::INVALID_VALUE) }
    }
}

/// Sets the library's fault, with a name as in `HIPSIM_BLASLT`; an empty name ends the fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipsim_blaslt(fault: *const c_char) -> BlasStatus {
    // SAFETY: the module's contract.
    let name = unsafe { CStr::from_ptr(fault) };
    let found = FAULTS.iter().find(|(known, _)| *known == name).ok_or(BlasStatus::INVALID_VALUE);
    found.map(|(_, fault)| state().lock().fault = *fault).into()
}

/// Returns the number of products queued so far.
#[unsafe(no_mangle)]
pub extern "C" fn hipsim_blaslt_products() -> u64 {
    state().lock().products
}

fn create(handle: *mut *mut c_void, object: Object) -> Result<()> {
    let mut state = state().lock();
    state.last += 1;
    let id = state.last;
    state.objects.insert(id, object);
    // SAFETY: the module's contract.
    unsafe { put(handle, std::ptr::without_provenance_mut(id)) }.map_err(|_| BlasStatus::INVALID_VALUE)
}

fn destroy(handle: *mut c_void) -> BlasStatus {
    state().lock().objects.remove(&handle.addr()).map(drop).ok_or(BlasStatus::INVALID_VALUE).into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtCreate(handle: *mut *mut c_void) -> BlasStatus {
    if state().lock().fault == Fault::Create {
        return BlasStatus::NOT_INITIALIZED;
    }
    create(handle, Object::Library).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipblasLtDestroy(handle: *mut c_void) -> BlasStatus {
    destroy(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulDescCreate(
    handle: *mut *mut c_void,
    compute: c_int,
    scale: c_int,
) -> BlasStatus {
    // HIPBLAS_COMPUTE_32F with factors of HIP_R_32F.
    if (compute, scale) != (2, 0) {
        return BlasStatus::NOT_SUPPORTED;
    }
    let descriptor =
        Object::Descriptor { transpose_a: false, add_bias: false, bias: 0, scales: [0; 2], scale_modes: [0; 2] };
    create(handle, descriptor).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipblasLtMatmulDescDestroy(handle: *mut c_void) -> BlasStatus {
    destroy(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulDescSetAttribute(
    handle: *mut c_void,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> BlasStatus {
    let set = || {
        let mut state = state().lock();
        let object = state.objects.get_mut(&handle.addr()).ok_or(BlasStatus::INVALID_VALUE)?;
        let Object::Descriptor { transpose_a, add_bias, bias, scales, scale_modes } = object else {
            return Err(BlasStatus::INVALID_VALUE);
        };
        let number = |wanted: usize| match (bytes == wanted, wanted) {
            // SAFETY: the module's contract: a value of so many bytes.
            (true, 4) => Ok(u64::from(unsafe { value.cast::<u32>().read_unaligned() })),
            // SAFETY: as above.
            (true, _) => Ok(unsafe { value.cast::<u64>().read_unaligned() }),
            (false, _) => Err(BlasStatus::INVALID_VALUE),
        };
        match attribute {
            // HIPBLASLT_MATMUL_DESC_TRANSA: HIPBLAS_OP_N or _T.
            0 => {
                *transpose_a =
                    [111, 112].iter().position(|&op| number(4) == Ok(op)).ok_or(BlasStatus::INVALID_VALUE)? == 1
            }
            // _EPILOGUE: HIPBLASLT_EPILOGUE_DEFAULT or _BIAS.
            2 => *add_bias = [1, 4].iter().position(|&op| number(4) == Ok(op)).ok_or(BlasStatus::INVALID_VALUE)? == 1,
            // _BIAS_POINTER.
            3 => *bias = number(8)?,
            // _A_SCALE_POINTER, _B_SCALE_POINTER.
            5 | 6 => scales[attribute as usize - 5] = number(8)?,
            // _A_SCALE_MODE, _B_SCALE_MODE.
            31 | 32 => scale_modes[attribute as usize - 31] = number(4)?,
            _ => return Err(BlasStatus::NOT_SUPPORTED),
        }
        Ok(())
    };
    set().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatrixLayoutCreate(
    handle: *mut *mut c_void,
    element: c_int,
    rows: u64,
    cols: u64,
    stride: i64,
) -> BlasStatus {
    let size = |size: u64| usize::try_from(size).ok().filter(|&size| size > 0);
    let sizes = (size(rows), size(cols), usize::try_from(stride).ok().filter(|&stride| stride as u64 >= rows));
    match (Element::of(element), sizes) {
        (Some(element), (Some(rows), Some(cols), Some(stride))) => {
            create(handle, Object::Layout { element, rows, cols, stride }).into()
        }
        _ => BlasStatus::INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hipblasLtMatrixLayoutDestroy(handle: *mut c_void) -> BlasStatus {
    destroy(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceCreate(handle: *mut *mut c_void) -> BlasStatus {
    create(handle, Object::Preference).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipblasLtMatmulPreferenceDestroy(handle: *mut c_void) -> BlasStatus {
    destroy(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipblasLtMatmulPreferenceSetAttribute(
    handle: *mut c_void,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> BlasStatus {
    // HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES.
    if (attribute, bytes) != (1, 8) || value.is_null() {
        return BlasStatus::INVALID_VALUE;
    }
    state().lock().is(handle, |object| matches!(object, Object::Preference)).into()
}

/// Returns the product of these objects, without its addresses.
fn product(state: &State, library: *mut c_void, descriptor: *mut c_void, layouts: [*mut c_void; 4]) -> Result<Product> {
    state.is(library, |object| matches!(object, Object::Library))?;
    let Object::Descriptor { transpose_a: true, add_bias, bias, scales, scale_modes } = *state.object(descriptor)?
    else {
        return Err(BlasStatus::NOT_SUPPORTED);
    };
    let [a, b, c, d] = layouts.map(|layout| state.layout(layout));
    let (a, b, c, d) = (a?, b?, c?, d?);
    let shapes = a.rows == b.rows
        && d.rows == a.cols
        && d.cols == b.cols
        && (c.rows, c.cols, c.stride) == (d.rows, d.cols, d.stride);
    let elements =
        a.element == b.element && a.element != Element::F32 && c.element == d.element && d.element != Element::Bf16;
    if !shapes {
        return Err(BlasStatus::INVALID_VALUE);
    }
    // HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F on both sides, only for 8-bit elements. The real library then
    // requires a multiple of 16 on every side but the columns of B, and no bias in f32.
    let is_8_bit = a.element.is_8_bit();
    let scaled = scale_modes == [if is_8_bit { 3 } else { 0 }; 2];
    let fits = !is_8_bit || (a.rows.is_multiple_of(16) && a.cols.is_multiple_of(16) && !add_bias);
    if !elements || d.element.is_8_bit() || !scaled || !fits {
        return Err(BlasStatus::NOT_SUPPORTED);
    }
    let (bias, scales) = (add_bias.then_some(bias), is_8_bit.then_some(scales));
    Ok(Product { a, b, d, alpha: 1.0, beta: 0.0, bias, scales, wrong: state.fault == Fault::Wrong })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the library's
pub unsafe extern "C" fn hipblasLtMatmulAlgoGetHeuristic(
    library: *mut c_void,
    descriptor: *mut c_void,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    d: *mut c_void,
    preference: *mut c_void,
    wanted: c_int,
    results: *mut u8,
    found: *mut c_int,
) -> BlasStatus {
    let find = || {
        let state = state().lock();
        state.is(preference, |object| matches!(object, Object::Preference))?;
        // A bias whose address is not known yet is accepted. Missing scales are refused, as by cuBLASLt.
        let product = product(&state, library, descriptor, [a, b, c, d])?;
        if product.scales.is_some_and(|scales| scales.contains(&0)) {
            return Err(BlasStatus::INVALID_VALUE);
        }
        if state.fault == Fault::Heuristic || wanted < 1 || results.is_null() {
            return Err(BlasStatus::INVALID_VALUE);
        }
        let count = if state.fault == Fault::NoAlgorithm { 0 } else { wanted.min(ALGORITHMS.into()) };
        for number in 0..count as usize {
            let mut result = [0; RESULT_BYTES];
            result[0] = 0xa0 + number as u8;
            // SAFETY: the module's contract: room for as many results as are wanted.
            unsafe { results.add(number * RESULT_BYTES).cast::<[u8; RESULT_BYTES]>().write_unaligned(result) };
        }
        // SAFETY: the module's contract.
        unsafe { put(found, count) }.map_err(|_| BlasStatus::INVALID_VALUE)
    };
    find().into()
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // the library's
pub unsafe extern "C" fn hipblasLtMatmul(
    library: *mut c_void,
    descriptor: *mut c_void,
    alpha: *const c_void,
    a: u64,
    a_layout: *mut c_void,
    b: u64,
    b_layout: *mut c_void,
    beta: *const c_void,
    c: u64,
    c_layout: *mut c_void,
    d: u64,
    d_layout: *mut c_void,
    algorithm: *const u8,
    workspace: u64,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> BlasStatus {
    let multiply = || {
        let mut state = state().lock();
        let mut product = product(&state, library, descriptor, [a_layout, b_layout, c_layout, d_layout])?;
        if alpha.is_null() || beta.is_null() || algorithm.is_null() || c != d || (workspace == 0 && workspace_bytes > 0)
        {
            return Err(BlasStatus::INVALID_VALUE);
        }
        // SAFETY: the module's contract: factors are f32, an algorithm is one of the heuristic's.
        let (alpha, beta, algorithm) =
            unsafe { (alpha.cast::<f32>().read_unaligned(), beta.cast::<f32>().read_unaligned(), algorithm.read()) };
        let number = algorithm.wrapping_sub(0xa0);
        let is_unset = product.bias == Some(0) || product.scales.is_some_and(|scales| scales.contains(&0));
        if number >= ALGORITHMS || is_unset {
            return Err(BlasStatus::INVALID_VALUE);
        }
        match state.fault {
            Fault::AllRefused => return Err(BlasStatus::EXECUTION_FAILED),
            Fault::Capture => {
                let refused =
                    find_stream(stream).and_then(|(device, stream)| device.working()?.stream(stream)?.capture.refuse());
                refused.map_err(|_| BlasStatus::EXECUTION_FAILED)?;
            }
            Fault::FirstRefused if number == 0 => return Err(BlasStatus::NOT_SUPPORTED),
            Fault::Abort => std::process::abort(),
            // SAFETY: a fault is what is asked for.
            Fault::Segfault => unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            },
            _ => {}
        }
        (product.a.at, product.b.at, product.d.at) = (a, b, d);
        (product.alpha, product.beta) = (alpha, beta);
        let queued = find_stream(stream)
            .and_then(|(device, stream)| device.enqueue(&mut *device.working()?, stream, Operation::Product(product)));
        queued.map_err(|_| BlasStatus::EXECUTION_FAILED)?;
        state.products += 1;
        Ok(())
    };
    multiply().into()
}
