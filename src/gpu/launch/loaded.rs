//! The loaded code of a device.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::catalog::KernelId;
use crate::compile::plan::Unit;
use crate::compile::{CodeObject, Compiler, MatrixUnit, Origin};
use crate::config::{GpuOptions, Platform};
use crate::device::Device;
use crate::device::code_object::{Function, Module};
use crate::{Error, Result};

/// The kernels of a device. Each unit is loaded when it is first needed.
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

    /// Returns the platform that they are compiled for.
    pub fn platform(&self) -> Platform {
        self.device.properties().platform
    }

    /// Loads units. Several are compiled at once if they have to be compiled on this machine.
    pub fn prepare(&self, units: &[Unit]) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(&unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.load(unit) {
                            // Do not begin further units.
                            next.store(units.len(), Ordering::Relaxed);
                            failure.lock().get_or_insert(error);
                        }
                    }
                });
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Returns a kernel, ready to launch.
    ///
    /// # Errors
    /// The errors of loading its unit, and `Error::Device` if the loaded code has no such kernel.
    pub fn function(&self, kernel: &KernelId) -> Result<Function> {
        let block = kernel.block(self.device.properties());
        self.load(kernel.unit)?.module.function(&kernel.name, block)
    }

    /// Returns a kernel from the embedded code; `None` if it has to be compiled.
    ///
    /// # Errors
    /// See `function`.
    pub(crate) fn embedded_function(&self, kernel: &KernelId) -> Result<Option<Function>> {
        let Some(code) = self.compiler.embedded(kernel.unit)? else { return Ok(None) };
        let block = kernel.block(self.device.properties());
        self.load_code(kernel.unit, code)?.module.function(&kernel.name, block).map(Some)
    }

    /// Returns the origin of a unit's code; `None` while it is not loaded.
    pub fn origin(&self, unit: Unit) -> Option<Origin> {
        self.loaded.lock().get(&unit).map(|loaded| loaded.origin.clone())
    }

    /// Returns the hardware unit that a unit's products run on; `None` while its code is not loaded.
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
            // Embedded code may be too new for the GPU's driver: code for a family of GPUs needs ROCm 6.3. The driver's
            // own compiler makes code that the driver loads.
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
        // If another thread was faster, its module is kept and ours is unloaded.
        Ok(self.loaded.lock().entry(unit).or_insert(loaded).clone())
    }

    fn load_code(&self, unit: Unit, code: CodeObject) -> Result<Loaded> {
        let matrix_unit = MatrixUnit::of(&code.image);
        let module = Module::load(&self.device, code.image, &unit.name())?;
        Ok(Loaded { module, origin: code.origin, matrix_unit })
    }

    #[cfg(test)]
    pub(crate) fn with_compiler(device: &Device, compiler: Compiler) -> Self {
        Self { device: device.clone(), compiler, loaded: Mutex::new(HashMap::new()) }
    }
}
