//! Matrix products by the vendor's library (cuBLASLt, hipBLASLt), which is opened at run time if it is installed. Long
//! prompts and large batches use it, with weights that `products` dequantises.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::config::{GpuOptions, Platform};
use crate::driver::libraries::Search;
use crate::sys::blaslt::{
    CUBLASLT, Create, DATA_BF16, DATA_E4M3, DATA_E4M3_FNUZ, DATA_F16, DATA_F32, DescriptorCreate, Destroy, Dialect,
    EPILOGUE_BIAS, GetHeuristic, HIPBLASLT, Handle, LayoutCreate, Matmul, PREFERENCE_MAX_WORKSPACE_BYTES,
    SCALE_OUTER_VECTOR, SetAttribute,
};
use crate::sys::{file_of, reason};
use crate::{Device, DevicePtr, Stream};
use crate::{Error, Result};

/// Why the library does not do something, in its own words. It is never a failure of the engine.
pub(crate) type Refusal = String;

/// The most plans to keep: prompts have any number of rows, and each number has a plan.
const MAX_PLANS: usize = 256;
/// Algorithms to request from the library: it may refuse its first choice at the call.
const MAX_ALGORITHMS: usize = 8;
/// Placeholder for the scales of a planned product: cuBLASLt has no algorithm for a product without them. Each call
/// sets the real ones.
const SOMEWHERE: u64 = 256;
/// Bytes of device memory that the library may use during a product.
pub(crate) const WORKSPACE_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    F32,
    F16,
    Bf16,
    /// e4m3 as `quantize_rows` writes it. Only inputs have this type.
    Fp8,
}

/// `out[rows][out_stride] (+)= x[rows][cols] · weights[out_rows][cols]ᵀ`. All are row-major, and all except `out` are
/// dense. Rows of 8-bit floats, of either operand, have a scale each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    pub rows: usize,
    pub out_rows: usize,
    pub cols: usize,
    pub out_stride: usize,
    pub input: Element,
    pub output: Element,
    pub add: bool,
    /// True if a bias of `out_rows` f32 is added.
    pub bias: bool,
}

/// Addresses of a product's operands; `bias` is null without a bias.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    pub weights: DevicePtr,
    pub x: DevicePtr,
    pub bias: DevicePtr,
    pub out: DevicePtr,
    /// The scales (f32) of the rows of `weights` and of `x`, if these are 8-bit floats; else null.
    pub scales: [DevicePtr; 2],
    /// `WORKSPACE_BYTES` that nothing else on the stream's device uses meanwhile.
    pub workspace: DevicePtr,
}

/// The library, with the plans of the products so far. Owned by the thread that owns the stream.
pub struct VendorBlas {
    api: Api,
    handle: Handle,
    preference: Handle,
    plans: HashMap<Product, Plan>,
    device: Device,
    file: PathBuf,
}

// SAFETY: the handles are used by one thread at a time (`&mut self`), and the libraries bind none of them to a thread.
unsafe impl Send for VendorBlas {}

struct Plan {
    descriptor: Handle,
    weights: Handle,
    x: Handle,
    out: Handle,
    /// The library's results, one after the other, each beginning with an algorithm, with the alignment that they need.
    results: Box<[u128]>,
    /// The results that are still to be tried; the first is the one in use.
    algorithms: std::ops::Range<usize>,
}

struct Api {
    dialect: Dialect,
    destroy: Destroy,
    descriptor_create: DescriptorCreate,
    descriptor_set: SetAttribute,
    descriptor_destroy: Destroy,
    layout_create: LayoutCreate,
    layout_destroy: Destroy,
    preference_destroy: Destroy,
    heuristic: GetHeuristic,
    matmul: Matmul,
    /// Keeps the functions above mapped.
    _library: Library,
}

impl VendorBlas {
    /// Finds the library of the device's platform and returns its file, without calling any of its functions.
    ///
    /// # Errors
    /// The reason why there is none, or the problem with it.
    pub fn locate(device: &Device, options: &GpuOptions) -> std::result::Result<PathBuf, Refusal> {
        let properties = device.properties();
        let dialect = dialect_of(device);
        let names = dialect.library_names.iter().map(|&name| name.to_owned()).collect();
        let search = Search::new(options, properties.platform, names, Some(&properties.library));
        search.find(|library, file| {
            let (api, ..) = Api::load(library, dialect)?;
            Ok(file_of(api.matmul as *const c_void).unwrap_or_else(|| file.to_path_buf()))
        })
    }

    /// Initialises the library of exactly this file.
    ///
    /// # Errors
    /// The refusal names the problem.
    pub fn open_file(device: &Device, file: &Path) -> std::result::Result<Self, Refusal> {
        Search::file(file).find(|library, file| Self::start(device, library, file))
    }

    fn start(device: &Device, library: Library, file: &Path) -> std::result::Result<Self, Refusal> {
        let dialect = dialect_of(device);
        let (api, create, preference_create, preference_set) = Api::load(library, dialect)?;
        let file = file.to_path_buf();
        device.make_current().map_err(|error| error.to_string())?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the function is the library's own; it writes one handle.
        check(unsafe { create(&mut handle) }, dialect, "Create")?;
        let mut blas =
            Self { api, handle, preference: std::ptr::null_mut(), plans: HashMap::new(), device: device.clone(), file };
        // SAFETY: as above; on an error `blas` drops what exists.
        check(unsafe { preference_create(&mut blas.preference) }, dialect, "MatmulPreferenceCreate")?;
        let bytes = WORKSPACE_BYTES;
        // SAFETY: the attribute is a u64, and the library copies it.
        let status = unsafe {
            preference_set(
                blas.preference,
                PREFERENCE_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast::<c_void>(),
                size_of::<u64>(),
            )
        };
        check(status, dialect, "MatmulPreferenceSetAttribute")?;
        Ok(blas)
    }

    /// Returns the file that it was loaded from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Queues a product. The inner error is a refusal by the library; nothing was queued then.
    ///
    /// # Errors
    /// The errors of the device.
    ///
    /// # Safety
    /// The operands are this device's and match `product` (16-byte aligned), until the stream has passed the product.
    pub unsafe fn multiply(
        &mut self,
        stream: &Stream,
        product: Product,
        operands: Operands,
    ) -> Result<std::result::Result<(), Refusal>> {
        self.device.make_current()?;
        if product.bias && (product.output != Element::F32 || product.input == Element::Fp8) {
            // The library reads a bias in the output's type, and as bf16 with 8-bit floats; ours are f32.
            return Err(Error::internal(format!("a bias of f32 for {product:?}")));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.try_multiply(stream, product, operands) })
    }

    /// # Safety
    /// See `multiply`.
    unsafe fn try_multiply(
        &mut self,
        stream: &Stream,
        product: Product,
        operands: Operands,
    ) -> std::result::Result<(), Refusal> {
        self.prepare(product)?;
        let (api, dialect) = (&self.api, self.api.dialect);
        let Some(plan) = self.plans.get_mut(&product) else { return Err("a plan is not there".to_owned()) };
        if product.bias {
            // SAFETY: the attribute is a pointer.
            unsafe { api.set(plan.descriptor, dialect.attribute_bias_pointer, operands.bias.address())? };
        }
        if product.input == Element::Fp8 {
            for (attribute, scales) in dialect.attribute_scale_pointers.into_iter().zip(operands.scales) {
                // SAFETY: the attribute is a pointer.
                unsafe { api.set(plan.descriptor, attribute, scales.address())? };
            }
        }
        // If the device's codes mean half as much, this holds for both operands.
        let alpha = if product.input == Element::Fp8 && has_fnuz(&self.device) { 4.0f32 } else { 1.0 };
        let beta = if product.add { 1.0f32 } else { 0.0 };
        let mut refusal = Ok(());
        for algorithm in plan.algorithms.clone() {
            let algorithm_at = plan.results.as_ptr().cast::<u8>().wrapping_add(algorithm * dialect.result_bytes);
            // SAFETY: the layouts are `product`'s and the buffers fit them by the caller's promise. The library gave
            // the algorithm for these layouts within the workspace's size, and the results contain all of it. alpha and
            // beta are read before the call returns.
            let status = unsafe {
                (api.matmul)(
                    self.handle,
                    plan.descriptor,
                    (&raw const alpha).cast::<c_void>(),
                    operands.weights.address(),
                    plan.weights,
                    operands.x.address(),
                    plan.x,
                    (&raw const beta).cast::<c_void>(),
                    operands.out.address(),
                    plan.out,
                    operands.out.address(),
                    plan.out,
                    algorithm_at.cast(),
                    operands.workspace.address(),
                    WORKSPACE_BYTES as usize,
                    stream.handle().0,
                )
            };
            match check(status, dialect, "Matmul") {
                Ok(()) => {
                    // Algorithms before it are not tried again.
                    plan.algorithms.start = algorithm;
                    return Ok(());
                }
                Err(problem) => refusal = Err(problem),
            }
        }
        refusal
    }

    /// Plans a product, unless it has a plan.
    ///
    /// # Errors
    /// The library does not support it.
    pub fn prepare(&mut self, product: Product) -> std::result::Result<(), Refusal> {
        if !self.plans.contains_key(&product) {
            if self.plans.len() == MAX_PLANS {
                self.plans.drain().for_each(|(_, plan)| self.api.drop_plan(&plan));
            }
            let plan = self.plan(product)?;
            self.plans.insert(product, plan);
        }
        Ok(())
    }

    /// Returns the hipDataType or cudaDataType_t of an element.
    fn code(&self, element: Element) -> c_int {
        match element {
            Element::F32 => DATA_F32,
            Element::F16 => DATA_F16,
            Element::Bf16 => DATA_BF16,
            Element::Fp8 if has_fnuz(&self.device) => DATA_E4M3_FNUZ,
            Element::Fp8 => DATA_E4M3,
        }
    }

    /// Plans a product for the column-major library. Our row-major `weights` are its transposed `A` (`cols` x
    /// `out_rows`). `x` is its `B` (`cols` x `rows`), and `out` is its `D` (`out_rows` x `rows`).
    fn plan(&self, product: Product) -> std::result::Result<Plan, Refusal> {
        let api = &self.api;
        let mut plan = Plan {
            descriptor: std::ptr::null_mut(),
            weights: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
            results: vec![0; (MAX_ALGORITHMS * api.dialect.result_bytes).div_ceil(size_of::<u128>())]
                .into_boxed_slice(),
            algorithms: 0..0,
        };
        let filled = self.fill_plan(&mut plan, product);
        if filled.is_err() {
            api.drop_plan(&plan);
        }
        filled.map(|()| plan)
    }

    fn fill_plan(&self, plan: &mut Plan, product: Product) -> std::result::Result<(), Refusal> {
        let (api, dialect) = (&self.api, self.api.dialect);
        let (rows, out_rows, cols) = (product.rows as u64, product.out_rows as u64, product.cols as u64);
        let input = self.code(product.input);
        // SAFETY: each call writes one handle or copies an attribute of the given size.
        unsafe {
            let created = (api.descriptor_create)(&mut plan.descriptor, dialect.compute_f32, DATA_F32);
            check(created, dialect, "MatmulDescCreate")?;
            api.set(plan.descriptor, dialect.attribute_transpose_a, dialect.operation_transpose)?;
            if product.bias {
                api.set(plan.descriptor, dialect.attribute_epilogue, EPILOGUE_BIAS)?;
            }
            if product.input == Element::Fp8 {
                for mode in dialect.attribute_scale_modes {
                    api.set(plan.descriptor, mode, SCALE_OUTER_VECTOR)?;
                }
                for pointer in dialect.attribute_scale_pointers {
                    api.set(plan.descriptor, pointer, SOMEWHERE)?;
                }
                if let Some(attribute) = dialect.attribute_fast_accumulation {
                    api.set(plan.descriptor, attribute, 1i8)?;
                }
            }
            let a = (api.layout_create)(&mut plan.weights, input, cols, out_rows, cols as i64);
            check(a, dialect, "MatrixLayoutCreate")?;
            let b = (api.layout_create)(&mut plan.x, input, cols, rows, cols as i64);
            check(b, dialect, "MatrixLayoutCreate")?;
            let stride = product.out_stride as i64;
            let d = (api.layout_create)(&mut plan.out, self.code(product.output), out_rows, rows, stride);
            check(d, dialect, "MatrixLayoutCreate")?;
        }
        let mut found: c_int = 0;
        // SAFETY: the objects are those made above; there is room for as many results as are asked for.
        let status = unsafe {
            (api.heuristic)(
                self.handle,
                plan.descriptor,
                plan.weights,
                plan.x,
                plan.out,
                plan.out,
                self.preference,
                MAX_ALGORITHMS as c_int,
                plan.results.as_mut_ptr().cast(),
                &mut found,
            )
        };
        check(status, dialect, "MatmulAlgoGetHeuristic")?;
        plan.algorithms = 0..usize::try_from(found).unwrap_or(0).min(MAX_ALGORITHMS);
        if plan.algorithms.is_empty() {
            return Err(failed(dialect, &format!("no algorithm for {product:?}")));
        }
        Ok(())
    }
}

impl Drop for VendorBlas {
    fn drop(&mut self) {
        let api = &self.api;
        for plan in self.plans.values() {
            api.drop_plan(plan);
        }
        // SAFETY: the handles are ours, used by nothing after this.
        unsafe {
            if !self.preference.is_null() {
                api.note("MatmulPreferenceDestroy", (api.preference_destroy)(self.preference));
            }
            api.note("Destroy", (api.destroy)(self.handle));
        }
    }
}

impl Api {
    /// Loads the functions of an opened library. Those that only `open` calls are returned separately.
    fn load(library: Library, dialect: Dialect) -> std::result::Result<(Self, Create, Create, SetAttribute), Refusal> {
        // SAFETY: the types are those of the library's public header, for each name.
        unsafe {
            let create = symbol::<Create>(&library, dialect, "Create")?;
            let preference_create = symbol::<Create>(&library, dialect, "MatmulPreferenceCreate")?;
            let preference_set = symbol::<SetAttribute>(&library, dialect, "MatmulPreferenceSetAttribute")?;
            let api = Self {
                dialect,
                destroy: symbol(&library, dialect, "Destroy")?,
                descriptor_create: symbol(&library, dialect, "MatmulDescCreate")?,
                descriptor_set: symbol(&library, dialect, "MatmulDescSetAttribute")?,
                descriptor_destroy: symbol(&library, dialect, "MatmulDescDestroy")?,
                layout_create: symbol(&library, dialect, "MatrixLayoutCreate")?,
                layout_destroy: symbol(&library, dialect, "MatrixLayoutDestroy")?,
                preference_destroy: symbol(&library, dialect, "MatmulPreferenceDestroy")?,
                heuristic: symbol(&library, dialect, "MatmulAlgoGetHeuristic")?,
                matmul: symbol(&library, dialect, "Matmul")?,
                _library: library,
            };
            Ok((api, create, preference_create, preference_set))
        }
    }

    /// Sets an attribute of a product's descriptor.
    ///
    /// # Safety
    /// The attribute is a number of this type, which the library copies.
    unsafe fn set<T>(&self, descriptor: Handle, attribute: c_int, value: T) -> std::result::Result<(), Refusal> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.descriptor_set)(descriptor, attribute, (&raw const value).cast(), size_of::<T>()) };
        check(status, self.dialect, "MatmulDescSetAttribute")
    }

    fn drop_plan(&self, plan: &Plan) {
        for layout in [plan.weights, plan.x, plan.out] {
            if !layout.is_null() {
                // SAFETY: ours, and used by nothing after this.
                self.note("MatrixLayoutDestroy", unsafe { (self.layout_destroy)(layout) });
            }
        }
        if !plan.descriptor.is_null() {
            // SAFETY: as above.
            self.note("MatmulDescDestroy", unsafe { (self.descriptor_destroy)(plan.descriptor) });
        }
    }

    /// Logs a failure in a drop, which nobody can handle.
    fn note(&self, function: &str, status: c_int) {
        if status != 0 {
            tracing::error!("{}{function} failed with status {status}", self.dialect.prefix);
        }
    }
}

fn dialect_of(device: &Device) -> Dialect {
    match device.properties().platform {
        Platform::Amd => HIPBLASLT,
        Platform::Nvidia => CUBLASLT,
    }
}

/// True if the device's e4m3 is the variant without a negative zero.
fn has_fnuz(device: &Device) -> bool {
    device.properties().arch == "gfx942"
}

/// # Safety
/// `T` is the type of the function.
unsafe fn symbol<T: Copy>(library: &Library, dialect: Dialect, function: &str) -> std::result::Result<T, Refusal> {
    let name = format!("{}{function}", dialect.prefix);
    // SAFETY: by the caller's promise.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|f| *f).map_err(|e| failed(dialect, &format!("the library lacks {name}: {}", reason(&e))))
}

fn check(status: c_int, dialect: Dialect, function: &str) -> std::result::Result<(), Refusal> {
    if status == 0 { Ok(()) } else { Err(failed(dialect, &format!("{function} failed with status {status}"))) }
}

fn failed(dialect: Dialect, problem: &str) -> Refusal {
    format!("{}: {problem}", dialect.prefix)
}
