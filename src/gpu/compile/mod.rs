//! Provides the code that the device loads. It is embedded code, compiled with this library for the GPU or its family.
//! Otherwise the platform's run-time compiler compiles the embedded sources, and the disk cache keeps the result.

mod embedded;
pub(super) mod kernel_table;
mod matrix_unit;
pub(super) mod plan;
mod runtime;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Once, OnceLock};
use std::time::Instant;

pub use embedded::embedded_targets;
pub(crate) use embedded::target_for;
use embedded::{Target, Unpacked, generic_target};
pub use matrix_unit::MatrixUnit;
use plan::{EXACT_TARGETS, Unit};
use runtime::RuntimeCompiler;
pub(super) use runtime::run;

use super::cache::Cache;
use super::driver::DeviceProperties;
use crate::config::{GpuOptions, Platform};
use crate::{Error, Result};

/// The newest generation of AMD's GPUs that the kernels support. For a newer one they may not compile, and the result
/// would be untested.
const NEWEST_GENERATION: u32 = 12;

/// Returns the generation of an AMD architecture, which precedes the last two digits: 12 of gfx1250, 9 of gfx90a.
fn generation(arch: &str) -> Option<u32> {
    let digits = arch.strip_prefix("gfx")?;
    digits.get(..digits.len().checked_sub(2)?)?.parse().ok()
}

/// Returns what to say before the first compilation for an AMD GPU: it takes minutes, and a GPU outside the lists may
/// be one that no kernel was written for. `None` on NVIDIA, where every first load compiles.
fn announcement(arch: &str, compiler: &str) -> Option<String> {
    generation(arch)?;
    let known = EXACT_TARGETS.contains(&arch) || generic_target(arch).is_some();
    let unknown = match known {
        true => String::new(),
        false => format!("; rocmforge {} does not know {arch}: the result is untested", env!("CARGO_PKG_VERSION")),
    };
    Some(format!("{compiler} compiles the kernels for {arch}, which takes minutes at the first load{unknown}"))
}

/// The origin of a unit's code.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// Compiled with this library, for exactly this GPU.
    Embedded { target: &'static str },
    /// Compiled with this library, for the GPU's family.
    Generic { target: &'static str },
    /// Compiled on this machine just now.
    Compiled { compiler: String, seconds: f64 },
    /// Compiled on this machine earlier.
    Cached { compiler: String },
}

impl Origin {
    pub fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded { .. } | Self::Generic { .. })
    }
}

/// The time is left out, so units with the same origin read the same.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedded { target } => write!(f, "embedded for {target}"),
            Self::Generic { target } => write!(f, "embedded for the family {target}"),
            Self::Compiled { compiler, .. } => write!(f, "compiled now by {compiler}"),
            Self::Cached { compiler } => write!(f, "from the disk cache, compiled by {compiler}"),
        }
    }
}

/// Code for the device, and its origin.
pub(super) struct CodeObject {
    pub image: Vec<u8>,
    pub origin: Origin,
}

/// Provides the kernels' code for one device.
pub(super) struct Compiler {
    properties: DeviceProperties,
    options: GpuOptions,
    embedded: Option<&'static Target>,
    cache: Cache,
    // Each of these is needed for only one origin, and then for many units.
    unpacked: OnceLock<Result<Arc<Unpacked>>>,
    runtime: OnceLock<std::result::Result<RuntimeCompiler, String>>,
    announced: Once,
}

impl Compiler {
    pub(super) fn new(properties: &DeviceProperties, options: &GpuOptions) -> Self {
        let use_embedded = properties.platform == Platform::Amd;
        #[cfg(test)]
        let use_embedded = use_embedded && !options.without_embedded;
        Self {
            properties: properties.clone(),
            options: options.clone(),
            embedded: if use_embedded { embedded::target_for(&properties.arch) } else { None },
            cache: Cache::kernels(options.cache_dir.as_deref()),
            unpacked: OnceLock::new(),
            runtime: OnceLock::new(),
            announced: Once::new(),
        }
    }

    /// # Errors
    /// `Error::Device` with the origins that were tried, or with the compiler's own messages.
    pub(super) fn code_object(&self, unit: Unit) -> Result<CodeObject> {
        match self.embedded(unit)? {
            Some(code) => Ok(code),
            None => self.compile(unit),
        }
    }

    /// Returns the embedded code of a unit; `None` if it has to be compiled for the GPU.
    ///
    /// # Errors
    /// See `code_object`.
    pub(super) fn embedded(&self, unit: Unit) -> Result<Option<CodeObject>> {
        self.embedded.filter(|target| target.has(unit)).map(|target| self.unpack(target, unit)).transpose()
    }

    fn unpack(&self, target: &'static Target, unit: Unit) -> Result<CodeObject> {
        let unpacked = self.unpacked.get_or_init(|| target.unpack()).as_ref().map_err(Error::clone)?;
        let image = unpacked
            .object(unit)
            .ok_or_else(|| Error::internal(format!("the code objects for {} are incomplete", target.name)))?;
        let exact = target.name == self.properties.arch;
        let target = target.name;
        let origin = if exact { Origin::Embedded { target } } else { Origin::Generic { target } };
        Ok(CodeObject { image: image.to_vec(), origin })
    }

    /// Returns the code of a unit from the machine's compiler or from the cache.
    ///
    /// # Errors
    /// The errors of `code_object`, and one for a GPU that is newer than the kernels.
    pub(super) fn compile(&self, unit: Unit) -> Result<CodeObject> {
        let arch = &self.properties.arch;
        if generation(arch).is_some_and(|generation| generation > NEWEST_GENERATION) {
            return Err(self.error(format!(
                "this release of rocmforge ({}) has no kernels for {arch}: its newest are those of \
                 gfx{NEWEST_GENERATION}xx; install a newer one, or use device=\"cpu\"",
                env!("CARGO_PKG_VERSION")
            )));
        }
        let runtime = self.runtime.get_or_init(|| RuntimeCompiler::open(&self.properties, &self.options));
        let runtime = runtime.as_ref().map_err(|problem| self.error(self.no_code(problem)))?;
        let job = runtime.job(unit);
        let cached = || {
            let image = self.cache.load(&job.key)?;
            Some(CodeObject { image, origin: Origin::Cached { compiler: runtime.name().to_string() } })
        };
        if let Some(code) = cached() {
            return Ok(code);
        }
        let lock = self.cache.lock(&job.key);
        // The previous holder of the lock may have compiled this unit.
        if lock.is_some()
            && let Some(code) = cached()
        {
            return Ok(code);
        }
        self.announced.call_once(|| {
            if let Some(text) = announcement(arch, runtime.name()) {
                tracing::warn!("{text}");
            }
        });
        let start = Instant::now();
        let image = runtime
            .compile(&job)
            .map_err(|problem| self.error(format!("{} does not compile {}: {problem}", runtime.name(), unit.name())))?;
        let seconds = start.elapsed().as_secs_f64();
        tracing::info!(unit = unit.name(), arch = self.properties.arch, seconds, "compiled kernels");
        self.cache.store(&job.key, &image);
        Ok(CodeObject { image, origin: Origin::Compiled { compiler: runtime.name().to_string(), seconds } })
    }

    fn no_code(&self, problem: &str) -> String {
        let embedded: Vec<_> = embedded::TARGETS.iter().map(|target| target.name).collect();
        let embedded = match (self.properties.platform, embedded::COMPILER) {
            (Platform::Nvidia, _) => String::new(),
            (Platform::Amd, None) => "it was built without a compiler for AMD GPUs, so it carries no code; ".into(),
            (Platform::Amd, Some(_)) => format!("it carries code for {}; ", embedded.join(", ")),
        };
        format!("this build of rocmforge has no code for it ({embedded}and no run-time compiler was found: {problem})")
    }

    fn error(&self, problem: String) -> Error {
        Error::Device { device: self.properties.label(), problem }
    }
}
