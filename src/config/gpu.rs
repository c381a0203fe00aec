//! Settings of the GPU backend: its device, its libraries and its cache of compiled kernels.

use std::ffi::OsString;
use std::path::PathBuf;

use super::names::by_name;
use super::tuning::{self, Tuned};
use crate::{Error, Result};

/// Set for a program that was started as a helper. One that is not what it was taken for, and starts an engine in place
/// of an answer, must not start the next: an engine there has no helper.
pub const INSIDE_HELPER: &str = "ROCMFORGE_INSIDE_HELPER";

/// Variables that make AMD's libraries ignore GPUs, and the one that makes them treat each GPU as another architecture.
pub const HIDES_GPUS: [&str; 4] =
    ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];
pub const RENAMES_GPUS: &str = "HSA_OVERRIDE_GFX_VERSION";

/// The two platforms of HIP, as HIP itself names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Platform {
    /// libamdhip64.
    Amd,
    /// The CUDA driver, libcuda, which has the same calls by other names.
    Nvidia,
}

impl Platform {
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd => "amd",
            Self::Nvidia => "nvidia",
        }
    }

    /// # Errors
    /// `InvalidRequest` that names the argument or variable `what`, for what is no name of a platform.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::Amd, Self::Nvidia], Self::name)
    }
}

/// The numbers that products of many rows, of prompts and of large batches, are made of on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComputeDtype {
    /// 16-bit floats.
    #[default]
    Auto,
    /// 8-bit floats (e4m3) with a scale for each row of weights and of activations, by the vendor's matrix library.
    /// About twice as fast, and less exact.
    Fp8,
}

impl ComputeDtype {
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fp8 => "fp8",
        }
    }

    /// # Errors
    /// `InvalidRequest` that names the argument `what`, for what is no name of a type.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::Auto, Self::Fp8], Self::name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuOptions {
    /// `None`: AMD where it has a device, else NVIDIA. `ROCMFORGE_GPU_PLATFORM`.
    pub platform: Option<Platform>,
    /// The driver's library in place of the ones looked for by name; it then also provides the run-time compiler.
    /// `ROCMFORGE_GPU_LIBRARY`.
    pub library: Option<PathBuf>,
    /// Directory of compiled kernels; `None`: nothing is kept. `ROCMFORGE_CACHE_DIR`, else `$XDG_CACHE_HOME/rocmforge`,
    /// else `~/.cache/rocmforge`.
    pub cache_dir: Option<PathBuf>,
    /// A ROCm installation, searched before any other. `ROCM_PATH`.
    pub rocm_path: Option<PathBuf>,
    /// Folders in which Python looks for packages: ROCm and PyTorch come as packages with libraries in them. Only the
    /// Python bindings set it.
    pub python_path: Vec<PathBuf>,
    /// Variables that AMD's libraries read (`HIDES_GPUS`, `RENAMES_GPUS`), as they are set: reports name them. Only the
    /// environment sets it.
    pub driver_variables: Vec<(&'static str, String)>,
    /// Folders in which the system's loader looks first. `LD_LIBRARY_PATH`, and only the environment sets it.
    pub loader_folders: Vec<PathBuf>,
    /// A CUDA toolkit, for NVRTC. `CUDA_HOME` or `CUDA_PATH`.
    pub cuda_home: Option<PathBuf>,
    /// Number of the device, as the platform's driver counts. `None` takes the first that is not part of a processor,
    /// else the first. `device="gpu:1"` or `ROCMFORGE_DEVICE=gpu:1`.
    pub device_index: Option<u32>,
    /// Maximum bytes of the device's memory that an engine may take. `ROCMFORGE_GPU_MEMORY_LIMIT`.
    pub memory_limit: Option<u64>,
    /// The number of layers that lie on the device as a whole. `None`: as many as fit.
    pub layers: Option<usize>,
    /// The number of layers whose experts lie in the host's memory. `None`: as few as possible.
    pub cpu_experts: Option<usize>,
    /// Maximum bytes on the device for copies of experts in host memory. The device computes these, and
    /// the CPU the others where it may. `None`: half of what the plan leaves.
    pub expert_cache: Option<u64>,
    /// Results do not depend, to the last bit, on what a row was computed with. Slower.
    pub batch_invariant: bool,
    /// True if one slice of each type's weights is multiplied and compared before anything is served.
    pub self_test: bool,
    /// True if decode steps are captured and replayed. `None`: they are, unless the driver is known to repeat them
    /// wrongly. `ROCMFORGE_GRAPHS`.
    pub graphs: Option<bool>,
    /// True if the vendor's matrix library serves long prompts when it is installed. `None`: only on GPUs where it was
    /// tested. `ROCMFORGE_VENDOR_BLAS`.
    pub vendor_blas: Option<bool>,
    /// The numbers that products of many rows are made of. A device that does not multiply them refuses to load.
    pub compute_dtype: ComputeDtype,
    /// Numbers that take the place of those of the GPU's family. `ROCMFORGE_TUNING`, and only the environment sets it.
    pub tuning: Vec<Tuned>,
    /// A program with its arguments that ends in `rocmforge_gpu::helper::main`. It does work that may crash. Only the
    /// Python bindings set it. With `None`, AMD's matrix library is not used, its driver is not probed, and code is
    /// compiled in a fork of this process.
    pub helper: Option<Vec<OsString>>,
    /// True if this test process is such a helper. `ROCMFORGE_TEST_HELPER`, only in tests.
    #[cfg(any(test, feature = "testing"))]
    pub is_helper: bool,
    /// True if kernels that were compiled into this library are ignored, so that every kernel is compiled at run time.
    /// Only in tests.
    #[cfg(any(test, feature = "testing"))]
    pub without_embedded: bool,
    /// A file of kernels and the number of the block barrier that it is compiled without.
    /// `ROCMFORGE_TEST_WITHOUT_BARRIER`, in tests alone: `gemv.hip:3`.
    #[cfg(any(test, feature = "testing"))]
    pub without_barrier: Option<(String, u32)>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            platform: None,
            library: None,
            cache_dir: None,
            rocm_path: None,
            python_path: Vec::new(),
            driver_variables: Vec::new(),
            loader_folders: Vec::new(),
            cuda_home: None,
            device_index: None,
            memory_limit: None,
            layers: None,
            cpu_experts: None,
            expert_cache: None,
            batch_invariant: false,
            self_test: true,
            graphs: None,
            vendor_blas: None,
            compute_dtype: ComputeDtype::Auto,
            tuning: Vec::new(),
            helper: None,
            #[cfg(any(test, feature = "testing"))]
            is_helper: false,
            #[cfg(any(test, feature = "testing"))]
            without_embedded: false,
            #[cfg(any(test, feature = "testing"))]
            without_barrier: None,
        }
    }
}

impl GpuOptions {
    /// Fills in what was not given from the variables that `read` gives.
    pub(super) fn fill_in(&mut self, read: impl Fn(&'static str) -> Result<Option<String>>) -> Result<()> {
        if self.platform.is_none()
            && let Some(value) = read("ROCMFORGE_GPU_PLATFORM")?
        {
            self.platform = Some(Platform::named("ROCMFORGE_GPU_PLATFORM", &value)?);
        }
        let path = |name| Ok::<_, Error>(read(name)?.map(PathBuf::from));
        if self.library.is_none() {
            self.library = path("ROCMFORGE_GPU_LIBRARY")?;
        }
        if self.cache_dir.is_none() {
            self.cache_dir = match path("ROCMFORGE_CACHE_DIR")? {
                Some(directory) => Some(directory),
                // A relative XDG_CACHE_HOME is to be ignored, says its specification.
                None => match path("XDG_CACHE_HOME")?.filter(|directory| directory.is_absolute()) {
                    Some(caches) => Some(caches.join("rocmforge")),
                    None => path("HOME")?.map(|home| home.join(".cache/rocmforge")),
                },
            };
        }
        let switch = |name| switch(&read, name);
        if read(INSIDE_HELPER)?.is_some() {
            self.helper = None;
        }
        if let Some(list) = read("ROCMFORGE_TUNING")? {
            self.tuning = tuning::parse("ROCMFORGE_TUNING", &list)?;
        }
        if self.memory_limit.is_none() {
            const NAME: &str = "ROCMFORGE_GPU_MEMORY_LIMIT";
            let limit = |text: String| text.parse().map_err(|_| Error::invalid(NAME, text, "a number of bytes"));
            self.memory_limit = read(NAME)?.map(limit).transpose()?;
        }
        self.graphs = self.graphs.or(switch("ROCMFORGE_GRAPHS")?);
        self.vendor_blas = self.vendor_blas.or(switch("ROCMFORGE_VENDOR_BLAS")?);
        #[cfg(any(test, feature = "testing"))]
        {
            self.is_helper = switch("ROCMFORGE_TEST_HELPER")?.unwrap_or(self.is_helper);
        }
        let folders = read("LD_LIBRARY_PATH")?.unwrap_or_default();
        self.loader_folders = folders.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from).collect();
        if self.rocm_path.is_none() {
            self.rocm_path = path("ROCM_PATH")?;
        }
        if self.cuda_home.is_none() {
            self.cuda_home = path("CUDA_HOME")?.or(path("CUDA_PATH")?);
        }
        #[cfg(any(test, feature = "testing"))]
        if let Some(value) = read("ROCMFORGE_TEST_WITHOUT_BARRIER")? {
            let barrier = value.split_once(':').and_then(|(file, n)| Some((file.to_owned(), n.parse().ok()?)));
            let expected = || Error::invalid("ROCMFORGE_TEST_WITHOUT_BARRIER", value, "a file and a number");
            self.without_barrier = Some(barrier.ok_or_else(expected)?);
        }
        Ok(())
    }
}

/// A variable that is 0 or 1.
pub(super) fn switch(
    read: impl Fn(&'static str) -> Result<Option<String>>,
    name: &'static str,
) -> Result<Option<bool>> {
    match read(name)?.as_deref() {
        None => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(value) => Err(Error::invalid(name, value, "0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(variables: &[(&str, &str)], mut options: GpuOptions) -> Result<GpuOptions> {
        options.fill_in(|name| {
            Ok(variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string()))
        })?;
        Ok(options)
    }

    #[test]
    fn variables_fill_in_and_options_win() {
        let set = [
            ("ROCMFORGE_GPU_PLATFORM", "nvidia"),
            ("ROCMFORGE_GPU_LIBRARY", "/lib/a.so"),
            ("ROCMFORGE_GPU_MEMORY_LIMIT", "8000000000"),
            ("ROCMFORGE_CACHE_DIR", "/cache"),
            ("CUDA_PATH", "/cuda"),
            ("ROCM_PATH", "/rocm"),
            ("LD_LIBRARY_PATH", "/a::/b"),
            ("HOME", "/home/x"),
        ];
        let options = filled(&set, GpuOptions::default()).unwrap();
        assert_eq!(options.platform, Some(Platform::Nvidia));
        assert_eq!(options.library, Some(PathBuf::from("/lib/a.so")));
        assert_eq!(options.cache_dir, Some(PathBuf::from("/cache")));
        assert_eq!(options.memory_limit, Some(8_000_000_000));
        assert_eq!(options.cuda_home, Some(PathBuf::from("/cuda")));
        assert_eq!(options.rocm_path, Some(PathBuf::from("/rocm")));
        assert_eq!(options.loader_folders, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let given = GpuOptions {
            platform: Some(Platform::Amd),
            library: Some("b.so".into()),
            cache_dir: Some("c".into()),
            cuda_home: Some("d".into()),
            memory_limit: Some(1),
            rocm_path: Some("e".into()),
            loader_folders: options.loader_folders,
            ..GpuOptions::default()
        };
        assert_eq!(filled(&set, given.clone()).unwrap(), given);
        let error = filled(&[("ROCMFORGE_GPU_PLATFORM", "cuda")], GpuOptions::default()).unwrap_err().to_string();
        assert!(error.contains("ROCMFORGE_GPU_PLATFORM: got cuda, expected 'amd' or 'nvidia'"), "{error}");
        let error = filled(&[("ROCMFORGE_GPU_MEMORY_LIMIT", "8GB")], GpuOptions::default()).unwrap_err().to_string();
        assert!(error.contains("ROCMFORGE_GPU_MEMORY_LIMIT: got 8GB, expected a number of bytes"), "{error}");
    }

    #[test]
    fn decode_steps_are_captured_as_the_variable_says() {
        let graphs =
            |value| filled(&[("ROCMFORGE_GRAPHS", value)], GpuOptions::default()).map(|options| options.graphs);
        assert_eq!(filled(&[], GpuOptions::default()).unwrap().graphs, None);
        assert_eq!(graphs("0").unwrap(), Some(false));
        assert_eq!(graphs("1").unwrap(), Some(true));
        assert!(graphs("no").unwrap_err().to_string().contains("ROCMFORGE_GRAPHS"));
        let given = GpuOptions { graphs: Some(false), ..GpuOptions::default() };
        assert_eq!(filled(&[("ROCMFORGE_GRAPHS", "1")], given).unwrap().graphs, Some(false));
    }

    /// Helpers do not start helpers.
    #[test]
    fn a_helper_has_none() {
        let given = GpuOptions { helper: Some(vec!["python".into()]), ..GpuOptions::default() };
        assert_eq!(filled(&[], given.clone()).unwrap().helper, given.helper);
        assert_eq!(filled(&[(INSIDE_HELPER, "1")], given).unwrap().helper, None);
    }

    #[test]
    fn the_cache_stands_where_the_desktop_specification_says() {
        let cache = |variables: &[(&str, &str)]| filled(variables, GpuOptions::default()).unwrap().cache_dir;
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some(PathBuf::from("/x/rocmforge")));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some(PathBuf::from("/h/.cache/rocmforge")));
        assert_eq!(cache(&[]), None);
    }
}
