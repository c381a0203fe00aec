//! Which kernels there are, where each is compiled, and the loaded code of a device.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::args;
use super::compile::plan::{KernelType, Unit, with_kernel_types};
use super::compile::{CodeObject, Compiler, MatrixUnit, Origin};
use super::device::Device;
use super::module::{Function, Module};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::quant::GgmlType;
use crate::{Error, Result};

/// Head sizes that attention is compiled for; a smaller head uses the next one.
pub const HEAD_SIZES: [u32; 3] = [64, 128, 256];
/// Rows that a block of `matmul` computes.
pub const MATMUL_ROWS: [u32; 4] = [8, 16, 32, 64];

/// Rows that a block of `matmul` computes of two matrices of a stack: the sizes of a decode step.
pub const MATMUL_PAIR_ROWS: [u32; 2] = [8, 16];

/// Rows that a block of `matmul_experts` computes: those of a run of one expert.
pub const EXPERT_RUNS: [u32; 2] = [16, 64];

/// Threads of a block of the kernels that measure a device.
pub const PROBE_THREADS: u32 = 256;

/// A kernel: its name, its unit and its block size, as the sources have them (kernels/README.md).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KernelId {
    pub unit: Unit,
    pub name: String,
    pub threads: u32,
}

impl KernelType {
    /// The kernels of a file's type; `None` where only dequantised rows serve.
    pub fn of(ty: GgmlType) -> Option<Self> {
        macro_rules! find {
            ($($variant:ident $ggml:ident)*) => {
                match ty {
                    $(GgmlType::$ggml => Some(Self::$variant),)*
                    _ => None,
                }
            };
        }
        with_kernel_types!(find)
    }
}

fn cache_type(dtype: KvCacheDtype) -> &'static str {
    match dtype {
        KvCacheDtype::F16 => "f16",
        KvCacheDtype::F32 => "f32",
    }
}

impl KernelId {
    /// A kernel of a file that is compiled once.
    pub fn new(file: &'static str, name: impl Into<String>, threads: u32) -> Self {
        Self { unit: Unit::plain(file), name: name.into(), threads }
    }

    /// A kernel that has the unit's types in its name.
    fn typed(unit: Unit, name: &str, suffix: &str, threads: u32) -> Self {
        let types: String = unit.types().map(|ty| format!("_{}", ty.name().to_lowercase())).collect();
        Self { unit, name: format!("{name}{types}{suffix}"), threads }
    }

    pub fn repack(ty: KernelType) -> Self {
        Self::typed(Unit::typed("weights.hip", ty), "repack", "", 256)
    }

    pub fn embed(ty: KernelType) -> Self {
        Self::typed(Unit::typed("weights.hip", ty), "embed", "", 256)
    }

    pub fn dequantize(ty: KernelType) -> Self {
        Self::typed(Unit::typed("weights.hip", ty), "dequantize", "", 32 * args::DEQUANTIZE_TILES)
    }

    pub fn gemv(ty: KernelType) -> Self {
        Self::gemv_of(Unit::typed("gemv.hip", ty))
    }

    /// `pair` is one of `KernelType::PAIRS`.
    pub fn gemv_pair(pair: [KernelType; 2]) -> Self {
        Self::gemv_of(Unit::paired("gemv.hip", pair))
    }

    fn gemv_of(unit: Unit) -> Self {
        Self::typed(unit, "gemv", "", args::GEMV_THREADS)
    }

    /// `rows` is one of `MATMUL_ROWS`.
    pub fn matmul(ty: KernelType, rows: u32) -> Self {
        Self::matmul_of(Unit::typed("matmul.hip", ty), "matmul", rows)
    }

    /// `pair` is one of `KernelType::PAIRS`, `rows` one of `MATMUL_PAIR_ROWS`.
    pub fn matmul_pair(pair: [KernelType; 2], rows: u32) -> Self {
        Self::matmul_of(Unit::paired("matmul.hip", pair), "matmul", rows)
    }

    /// `rows` is one of `EXPERT_RUNS`.
    pub fn matmul_experts(ty: KernelType, rows: u32) -> Self {
        Self::matmul_of(Unit::typed("matmul_experts.hip", ty), "matmul_experts", rows)
    }

    fn matmul_of(unit: Unit, name: &str, rows: u32) -> Self {
        let threads = match rows {
            8 => args::MATMUL_THREADS_N8,
            16 => args::MATMUL_THREADS_N16,
            32 => args::MATMUL_THREADS_N32,
            _ => args::MATMUL_THREADS_N64,
        };
        Self::typed(unit, name, &format!("_n{rows}"), threads)
    }

    pub fn copy_step() -> Self {
        Self::new("step.hip", "copy_step", args::COPY_STEP_THREADS)
    }

    pub fn link_steps() -> Self {
        Self::new("step.hip", "link_steps", args::LINK_THREADS)
    }

    pub fn prepare() -> Self {
        Self::new("rows.hip", "prepare", 512)
    }

    pub fn gated_activation() -> Self {
        Self::new("rows.hip", "gated_activation", 256)
    }

    pub fn gather_rows() -> Self {
        Self::new("rows.hip", "gather_rows", 256)
    }

    pub fn choose_experts() -> Self {
        Self::new("experts.hip", "choose_experts", 32 * args::CHOOSE_EXPERTS_ROWS)
    }

    pub fn place_experts() -> Self {
        Self::new("experts.hip", "place_experts", args::PLACE_THREADS)
    }

    pub fn add_experts() -> Self {
        Self::new("experts.hip", "add_experts", args::ADD_EXPERTS_COLS / 4)
    }

    pub fn copy_blocks() -> Self {
        Self::new("rows.hip", "copy_blocks", 256)
    }

    pub fn rope_angles() -> Self {
        Self::new("rope.hip", "rope_angles", 256)
    }

    pub fn rope_store(cache: KvCacheDtype) -> Self {
        Self::new("rope.hip", format!("rope_store_{}", cache_type(cache)), 32 * args::ROPE_STORE_HEADS)
    }

    /// `head_size` is one of `HEAD_SIZES`.
    pub fn attention_decode(cache: KvCacheDtype, head_size: u32) -> Self {
        let name = format!("attention_decode_{}_d{head_size}", cache_type(cache));
        Self::new("attention_decode.hip", name, args::ATTENTION_THREADS)
    }

    /// `head_size` is one of `HEAD_SIZES`.
    pub fn attention_decode_head(cache: KvCacheDtype, head_size: u32) -> Self {
        let name = format!("attention_decode_head_{}_d{head_size}", cache_type(cache));
        Self::new("attention_decode.hip", name, args::ATTENTION_DECODE_HEAD_THREADS)
    }

    /// `head_size` is one of `HEAD_SIZES`.
    pub fn attention_prefill(cache: KvCacheDtype, head_size: u32) -> Self {
        let name = format!("attention_prefill_{}_d{head_size}", cache_type(cache));
        Self::new("attention_prefill.hip", name, args::ATTENTION_THREADS)
    }

    pub fn alter_logits() -> Self {
        Self::new("sampling.hip", "alter_logits", 1024)
    }

    pub fn argmax() -> Self {
        Self::new("sampling.hip", "argmax", 1024)
    }

    pub fn top_k() -> Self {
        Self::new("sampling.hip", "top_k", 1024)
    }

    /// Kernels that measure a device.
    pub fn probe_nothing() -> Self {
        Self::new("probe.hip", "probe_nothing", PROBE_THREADS)
    }

    pub fn probe_read() -> Self {
        Self::new("probe.hip", "probe_read", PROBE_THREADS)
    }

    /// Every kernel of every unit.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::copy_step(),
            Self::link_steps(),
            Self::prepare(),
            Self::gated_activation(),
            Self::gather_rows(),
            Self::copy_blocks(),
            Self::choose_experts(),
            Self::place_experts(),
            Self::add_experts(),
            Self::rope_angles(),
            Self::alter_logits(),
            Self::argmax(),
            Self::top_k(),
            Self::probe_nothing(),
            Self::probe_read(),
        ];
        for cache in [KvCacheDtype::F16, KvCacheDtype::F32] {
            all.push(Self::rope_store(cache));
            all.extend(HEAD_SIZES.map(|size| Self::attention_decode(cache, size)));
            all.extend(HEAD_SIZES.map(|size| Self::attention_decode_head(cache, size)));
            all.extend(HEAD_SIZES.map(|size| Self::attention_prefill(cache, size)));
        }
        for &ty in KernelType::ALL {
            all.extend([Self::repack(ty), Self::embed(ty), Self::dequantize(ty), Self::gemv(ty)]);
            all.extend(MATMUL_ROWS.map(|rows| Self::matmul(ty, rows)));
            all.extend(EXPERT_RUNS.map(|rows| Self::matmul_experts(ty, rows)));
        }
        for pair in KernelType::PAIRS {
            all.push(Self::gemv_pair(pair));
            all.extend(MATMUL_PAIR_ROWS.map(|rows| Self::matmul_pair(pair, rows)));
        }
        // Some types have no matmul.
        let units = Unit::all();
        all.retain(|kernel| units.contains(&kernel.unit));
        all
    }
}

/// The kernels of a device, loaded unit by unit when first asked for.
pub struct Kernels {
    device: Device,
    compiler: Compiler,
    loaded: Mutex<HashMap<Unit, Loaded>>,
}

#[derive(Clone)]
struct Loaded {
    module: Arc<Module>,
    origin: Origin,
    matrix_unit: MatrixUnit,
}

impl Kernels {
    pub fn new(device: &Device, options: &GpuOptions) -> Result<Self> {
        let compiler = Compiler::new(device.properties(), options);
        Ok(Self { device: device.clone(), compiler, loaded: Mutex::new(HashMap::new()) })
    }

    /// Loads units, compiling several at once where they have to be compiled on this machine.
    pub fn prepare(&self, units: &[Unit]) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(&unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.load(unit) {
                            // What is not begun yet is left.
                            next.store(units.len(), Ordering::Relaxed);
                            failure.lock().get_or_insert(error);
                        }
                    }
                });
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// A kernel, ready to launch.
    ///
    /// # Errors
    /// What loading its unit brings, and `Error::Device` if the loaded code has no such kernel.
    pub fn function(&self, kernel: &KernelId) -> Result<Function> {
        self.load(kernel.unit)?.module.function(&kernel.name, kernel.threads)
    }

    /// How the code of a unit came about; `None` while it is not loaded.
    pub fn origin(&self, unit: Unit) -> Option<Origin> {
        self.loaded.lock().get(&unit).map(|loaded| loaded.origin.clone())
    }

    /// What the loaded code of a unit computes products on; `None` while it is not loaded.
    pub fn matrix_unit(&self, unit: Unit) -> Option<MatrixUnit> {
        self.loaded.lock().get(&unit).map(|loaded| loaded.matrix_unit)
    }

    fn load(&self, unit: Unit) -> Result<Loaded> {
        if let Some(loaded) = self.loaded.lock().get(&unit) {
            return Ok(loaded.clone());
        }
        let code = self.compiler.code_object(unit)?;
        let embedded = code.origin.clone();
        let loaded = match self.load_code(unit, code) {
            // What another compiler made for this GPU may be newer than its driver: code for a family of GPUs needs
            // ROCm 6.3. The driver's own compiler makes what it loads.
            Err(Error::Device { problem: refusal, .. }) if embedded.is_embedded() => {
                tracing::warn!(unit = unit.name(), refusal, "code {embedded} does not load; compiling it here");
                let compiled = self.compiler.compile(unit).map_err(|error| match error {
                    Error::Device { device, problem } => Error::Device {
                        device,
                        problem: format!("code {embedded} does not load ({refusal}); to compile it here: {problem}"),
                    },
                    other => other,
                })?;
                self.load_code(unit, compiled)?
            }
            loaded => loaded?,
        };
        // Another thread may have been faster: its module stays, ours is unloaded.
        Ok(self.loaded.lock().entry(unit).or_insert(loaded).clone())
    }

    fn load_code(&self, unit: Unit, code: CodeObject) -> Result<Loaded> {
        let matrix_unit = MatrixUnit::of(&code.image);
        let module = Module::load(&self.device, code.image, &unit.name())?;
        Ok(Loaded { module, origin: code.origin, matrix_unit })
    }

    #[cfg(test)]
    pub(super) fn with_compiler(device: &Device, compiler: Compiler) -> Self {
        Self { device: device.clone(), compiler, loaded: Mutex::new(HashMap::new()) }
    }
}
