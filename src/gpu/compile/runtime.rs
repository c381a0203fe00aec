//! The platform's compiler at run time: hipRTC or NVRTC, from the machine's library.

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libloading::Library;
use serde_json::{Value, json};

use super::embedded::SOURCES;
use super::plan::Unit;
use crate::cache::Key;
use crate::config::{GpuOptions, Platform};
use crate::driver::DeviceProperties;
use crate::driver::libraries::Search;
use crate::job::child;
use crate::job::{self, Failure};
use crate::sys::rtc::{Hiprtc, Nvrtc};
use crate::sys::{ProgramHandle, Status, file_of, reason};

/// A unit takes seconds. A compiler that hangs must not hang the engine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The first major version of NVRTC that compiles for `sm_90a`.
const OLDEST_NVRTC_FOR_WGMMA: c_int = 12;

/// Begins the message about a compiler that died.
const DIED: &str = "the compiler's process";
/// Ends the message of a compiler without output.
const NO_MESSAGE: &str = " without a message";

pub(super) struct RuntimeCompiler {
    library: Api,
    file: PathBuf,
    platform: Platform,
    /// The GPU's architecture.
    arch: String,
    helper: Option<Vec<OsString>>,
    name: String,
    target: Vec<String>,
    #[cfg(test)]
    without_barrier: Option<(String, u32)>,
}

/// One unit, ready to be compiled.
pub(super) struct Job {
    pub key: Key,
    unit: Unit,
    options: Vec<String>,
}

enum Api {
    Hiprtc(Hiprtc),
    Nvrtc(Nvrtc),
}

/// Calls the function of either library by its common name.
macro_rules! rtc {
    ($api:expr, $hip:ident | $nv:ident ($($argument:expr),*)) => {
        match $api {
            Api::Hiprtc(api) => (api.$hip)($($argument),*),
            Api::Nvrtc(api) => (api.$nv)($($argument),*),
        }
    };
}

impl RuntimeCompiler {
    /// Opens the first compiler that fits the driver.
    pub(super) fn open(properties: &DeviceProperties, options: &GpuOptions) -> Result<Self, String> {
        search(properties, options).find(|library, file| {
            let compiler = Self::load(properties, file, library, options)?;
            #[cfg(test)]
            let compiler = Self { without_barrier: options.without_barrier.clone(), ..compiler };
            Ok(compiler)
        })
    }

    fn load(
        properties: &DeviceProperties,
        file: &Path,
        library: Library,
        options: &GpuOptions,
    ) -> Result<Self, String> {
        let kind = if properties.platform == Platform::Amd { "hipRTC" } else { "NVRTC" };
        let library = load(properties.platform, library)?;
        // For a bare name, the process may have opened the library from elsewhere. The child must open the same file.
        let function = match &library {
            Api::Hiprtc(api) => api.hiprtcVersion as *const c_void,
            Api::Nvrtc(api) => api.nvrtcVersion as *const c_void,
        };
        let file = file_of(function).unwrap_or_else(|| file.to_path_buf());
        let path = file.display();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both numbers outlive the call.
        let status = unsafe { rtc!(&library, hiprtcVersion | nvrtcVersion(&raw mut major, &raw mut minor)) };
        if status != Status(0) {
            return Err(format!("asked for its version, it answers {}", status.0));
        }
        if properties.has_wgmma() && major < OLDEST_NVRTC_FOR_WGMMA {
            return Err(format!(
                "NVRTC {major}.{minor} is too old for {}: install one of CUDA 12 or 13",
                properties.arch
            ));
        }
        // hipRTC's version stays the same over releases that compile differently, so the driver's version is added.
        let name = match properties.platform {
            Platform::Amd => format!("{kind} {major}.{minor} ({path}) of {}", properties.driver),
            Platform::Nvidia => format!("{kind} {major}.{minor} ({path})"),
        };
        Ok(Self {
            library,
            file,
            platform: properties.platform,
            arch: properties.arch.clone(),
            helper: options.helper.clone(),
            name,
            target: target_options(properties),
            #[cfg(test)]
            without_barrier: None,
        })
    }

    /// Names the library, its version and, on AMD, the driver's.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn job(&self, unit: Unit) -> Job {
        let options = self.target.iter().cloned().chain(unit.defines());
        #[cfg(test)]
        let options = options.chain(match &self.without_barrier {
            Some((file, barrier)) if file == unit.file => vec![format!("-DGPU_DROP_BARRIER={barrier}")],
            _ => Vec::new(),
        });
        let options: Vec<String> = options.collect();
        let mut hash = blake3::Hasher::new();
        let mut add = |text: &str| {
            // The length goes first, or different texts could concatenate to the same bytes.
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        add(&self.name);
        add(unit.file);
        options.iter().for_each(|option| add(option));
        for (name, text) in sources_of(unit) {
            add(name);
            add(text);
        }
        Job { key: hash.finalize(), unit, options }
    }

    /// Compiles in a separate process: hipRTC ends its process when it gets an unknown GPU.
    ///
    /// # Errors
    /// The compiler's messages, or how its process ended.
    pub(super) fn compile(&self, job: &Job) -> Result<Vec<u8>, String> {
        // A compiler that does not know a GPU prints nothing, or dies.
        self.compile_apart(job).map_err(|problem| match problem.contains(DIED) || problem.ends_with(NO_MESSAGE) {
            true => format!("{problem} (it may not know {} yet: a newer release does)", self.arch),
            false => problem,
        })
    }

    fn compile_apart(&self, job: &Job) -> Result<Vec<u8>, String> {
        let Some(command) = &self.helper else {
            return child::run(TIMEOUT, || compile_unit(&self.library, job.unit, &job.options));
        };
        let request = json!({
            "kind": job::COMPILE,
            "platform": self.platform.name(),
            "library": self.file.display().to_string(),
            "unit": job.unit.name(),
            "options": job.options,
        });
        job::run(command, &request, TIMEOUT).map_err(|failure| match failure {
            Failure::Died(how) | Failure::TimedOut(how) => format!("{DIED} {how}"),
            Failure::Exited(problem) | Failure::NotRun(problem) => problem,
        })
    }
}

/// Does a job of `RuntimeCompiler::compile`, in the separate process.
///
/// # Errors
/// The compiler's messages.
pub(crate) fn run(job: &Value) -> Result<Vec<u8>, String> {
    let text = |name: &str| job[name].as_str().ok_or_else(|| format!("a job without {name}"));
    let name = text("unit")?;
    let options = job["options"].as_array().into_iter().flatten().filter_map(|option| option.as_str());
    let options: Vec<String> = options.map(str::to_owned).collect();
    let platform = if text("platform")? == Platform::Amd.name() { Platform::Amd } else { Platform::Nvidia };
    let mut units = Unit::all().into_iter();
    let unit = units.find(|unit| unit.name() == name).ok_or_else(|| format!("no unit {name}"))?;
    let library = Search::file(Path::new(text("library")?)).find(|library, _| load(platform, library))?;
    compile_unit(&library, unit, &options)
}

fn load(platform: Platform, library: Library) -> Result<Api, String> {
    // SAFETY: a library with all of these functions is of the kind whose headers they are from.
    unsafe {
        match platform {
            Platform::Amd => Ok(Api::Hiprtc(Hiprtc::load(library).map_err(|e| reason(&e))?)),
            Platform::Nvidia => Ok(Api::Nvrtc(Nvrtc::load(library).map_err(|e| reason(&e))?)),
        }
    }
}

fn compile_unit(api: &Api, unit: Unit, options: &[String]) -> Result<Vec<u8>, String> {
    let text = |name: &str| CString::new(name).map_err(|e| e.to_string());
    let mut headers = Vec::new();
    let mut main = None;
    for (name, source) in sources_of(unit) {
        match name == unit.file {
            true => main = Some((text(name)?, text(source)?)),
            false => headers.push((text(name)?, text(source)?)),
        }
    }
    let (name, source) = main.ok_or_else(|| format!("this build has no {}", unit.file))?;
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    compile_here(api, &name, &source, &headers, &options)
}

fn compile_here(
    api: &Api,
    name: &CString,
    source: &CString,
    headers: &[(CString, CString)],
    options: &[CString],
) -> Result<Vec<u8>, String> {
    let pointers =
        |texts: &mut dyn Iterator<Item = &CString>| -> Vec<*const c_char> { texts.map(|text| text.as_ptr()).collect() };
    let header_names = pointers(&mut headers.iter().map(|(name, _)| name));
    let header_texts = pointers(&mut headers.iter().map(|(_, text)| text));
    let options = pointers(&mut options.iter());
    let mut program = ProgramHandle::NULL;
    // SAFETY: every array has the length that is passed, every text ends with a zero byte, and all of them outlive the
    // program. The program is not destroyed, because its process ends with it.
    unsafe {
        ok(
            "creating the program",
            rtc!(
                api,
                hiprtcCreateProgram
                    | nvrtcCreateProgram(
                        &raw mut program,
                        source.as_ptr(),
                        name.as_ptr(),
                        headers.len() as c_int,
                        header_texts.as_ptr(),
                        header_names.as_ptr()
                    )
            ),
        )?;
        let count = options.len() as c_int;
        let status = rtc!(api, hiprtcCompileProgram | nvrtcCompileProgram(program, count, options.as_ptr()));
        if status != Status(0) {
            let log = read(
                |size| rtc!(api, hiprtcGetProgramLogSize | nvrtcGetProgramLogSize(program, size)),
                |bytes| rtc!(api, hiprtcGetProgramLog | nvrtcGetProgramLog(program, bytes)),
            )?;
            let log = String::from_utf8_lossy(&log);
            let log = log.trim_end_matches('\0').trim();
            return Err(format!("status {}{}{log}", status.0, if log.is_empty() { NO_MESSAGE } else { ", " }));
        }
        read(
            |size| rtc!(api, hiprtcGetCodeSize | nvrtcGetCUBINSize(program, size)),
            |bytes| rtc!(api, hiprtcGetCode | nvrtcGetCUBIN(program, bytes)),
        )
    }
}

/// Reads data with two calls: its size, then its bytes.
fn read(size: impl FnOnce(*mut usize) -> Status, fill: impl FnOnce(*mut u8) -> Status) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    ok("asking for a size", size(&raw mut bytes))?;
    let mut buffer = vec![0; bytes];
    ok("asking for the result", fill(buffer.as_mut_ptr()))?;
    Ok(buffer)
}

fn ok(what: &str, status: Status) -> Result<(), String> {
    if status == Status(0) { Ok(()) } else { Err(format!("{what} failed with status {}", status.0)) }
}

/// Yields the unit's file and all headers.
fn sources_of(unit: Unit) -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.iter().copied().filter(move |(name, _)| *name == unit.file || name.ends_with(".h"))
}

fn target_options(properties: &DeviceProperties) -> Vec<String> {
    let arch = &properties.arch;
    match properties.platform {
        Platform::Amd => {
            vec![format!("--offload-arch={arch}"), "-O3".into(), "-std=c++17".into(), "-ffp-contract=on".into()]
        }
        Platform::Nvidia => {
            // Hopper's plain target does not include `wgmma`.
            let suffix = if properties.has_wgmma() { "a" } else { "" };
            vec![format!("--gpu-architecture={arch}{suffix}"), "--std=c++17".into(), "-default-device".into()]
        }
    }
}

/// Returns the search for the compiler. The generation of the driver comes first: code of a newer compiler may not
/// load.
fn search(properties: &DeviceProperties, options: &GpuOptions) -> Search {
    let major = properties.driver_version.0;
    let majors = |newest: u32, oldest: u32| {
        let mut all: Vec<u32> = (oldest..=newest).rev().collect();
        all.sort_by_key(|&version| (version > major, version.abs_diff(major)));
        all
    };
    let names: Vec<String> = match properties.platform {
        // Up to ROCm 5, libamdhip64 contains hipRTC.
        Platform::Amd => {
            let own = majors(8, 6).into_iter().map(|version| format!("libhiprtc.so.{version}"));
            let part = majors(8, 5).into_iter().map(|version| format!("libamdhip64.so.{version}"));
            let own = own.chain(["libhiprtc.so".to_owned()]);
            own.chain(part).chain(["libamdhip64.so".to_owned()]).collect()
        }
        Platform::Nvidia => {
            let names = majors(13, 11).into_iter().map(|version| format!("libnvrtc.so.{version}"));
            names.chain(["libnvrtc.so".to_owned()]).collect()
        }
    };
    Search::new(options, properties.platform, names, Some(&properties.library))
}
