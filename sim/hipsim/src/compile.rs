//! The run-time compiler: clang for AMD targets, the system's C++ compiler for the CPU's.

use std::fs;
use std::path::{Component, Path};
use std::process::{Command, Output};

use crate::log::say;
use crate::target::Target;

/// The arguments of hiprtcCreateProgram, and the results of the compilation.
#[derive(Debug, Default)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) source: Vec<u8>,
    /// Names and contents of included files.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) log: Vec<u8>,
    pub(crate) code: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompileError {
    /// No target, or a header's name that is not below the program's directory.
    Options,
    Compilation,
}

/// Compilers for AMD targets, best first; `HIPSIM_CLANG` names another.
const CLANGS: [&str; 4] = ["clang-22", "clang-23", "clang-24", "clang"];
/// The compiler for the CPU; `HIPSIM_CXX` names another.
const CXX: &str = "c++";
/// The CPU side of the portability layer. The engine does not pass it to a GPU's compiler, so this compiler adds it.
const CPU_HEADER: (&str, &str) = ("host/gpu_cpu.h", include_str!("../../../kernels/host/gpu_cpu.h"));
/// Options added to every compilation, to change kernels for a test.
const DEFINES: &str = "HIPSIM_DEFINES";

impl Program {
    pub(crate) fn compile(&mut self, options: &[String]) -> Result<(), CompileError> {
        self.log.clear();
        let arch = options.iter().find_map(|option| {
            option.strip_prefix("--offload-arch=").or_else(|| option.strip_prefix("--gpu-architecture="))
        });
        let Some(arch) = arch else { return self.refuse("no --offload-arch among the options") };
        let arch = arch.split(':').next().unwrap_or(arch);
        if !Target::compiles(arch) {
            // The real hipRTC aborts, too. A program must therefore compile in a child process.
            say(format_args!("hiprtc: unknown target {arch}: aborting, as hipRTC does"));
            std::process::abort();
        }
        let Ok(directory) = tempfile::Builder::new().prefix("hipsim-").tempdir() else {
            return self.refuse("no directory for temporary files");
        };
        if let Err(problem) = self.write_files(directory.path()) {
            return self.refuse(&problem);
        }
        let object = directory.path().join("object");
        let kept = |option: &&String| !option.starts_with("--offload-arch=") && !option.starts_with("--gpu-arch");
        let options = options.iter().filter(kept).map(String::as_str);
        let mut arguments = match Target::find(arch).filter(|target| target.is_cpu()) {
            Some(target) => cpu_arguments(target, options),
            None => amd_arguments(arch, options),
        };
        arguments.extend(defines().split_whitespace().map(str::to_owned));
        let compilers = match (arch.starts_with("cpu-"), variable("HIPSIM_CXX"), variable("HIPSIM_CLANG")) {
            (true, Some(compiler), _) | (false, _, Some(compiler)) => vec![compiler],
            (true, None, _) => vec![CXX.to_owned()],
            (false, _, None) => CLANGS.map(str::to_owned).to_vec(),
        };
        let run = |compiler: &String| {
            let mut command = Command::new(compiler);
            command.args(&arguments).arg("-I").arg(directory.path()).arg("-o").arg(&object);
            command.arg(directory.path().join(&self.name)).current_dir(directory.path()).output().ok()
        };
        let Some(Output { status, stdout, stderr }) = compilers.iter().find_map(run) else {
            return self
                .refuse(&format!("none of {compilers:?} can be run (Debian: apt-get install clang-22 lld-22 g++)"));
        };
        self.log = [stdout, stderr].concat();
        if !status.success() {
            return Err(CompileError::Compilation);
        }
        self.code = fs::read(&object).map_err(|_| CompileError::Compilation)?;
        Ok(())
    }

    fn refuse(&mut self, problem: &str) -> Result<(), CompileError> {
        self.log = format!("hipsim: {problem}\n").into_bytes();
        Err(CompileError::Options)
    }

    fn write_files(&mut self, directory: &Path) -> Result<(), String> {
        if self.name.is_empty() {
            self.name = "program.hip".to_owned();
        }
        let headers = self.headers.iter().map(|(name, content)| (name.as_str(), content.as_slice()));
        let own = (CPU_HEADER.0, CPU_HEADER.1.as_bytes());
        for (name, content) in headers.chain([own, (&self.name, &self.source)]) {
            if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(format!("{name:?} is not the name of a file below the program's directory"));
            }
            let path = directory.join(name);
            let parent = path.parent().unwrap_or(directory);
            fs::create_dir_all(parent).and_then(|()| fs::write(&path, content)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn amd_arguments<'a>(arch: &str, options: impl Iterator<Item = &'a str>) -> Vec<String> {
    let fixed = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"];
    let arch = format!("--offload-arch={arch}");
    fixed.into_iter().map(str::to_owned).chain([arch]).chain(options.map(str::to_owned)).collect()
}

fn cpu_arguments<'a>(target: &Target, options: impl Iterator<Item = &'a str>) -> Vec<String> {
    let language = ["-x", "c++", "-O1", "-std=c++17", "-ffp-contract=off"];
    // Hidden symbols: the objects of one process share nothing. Stack clash protection: large frames cannot skip the
    // inaccessible page below a fiber's stack.
    let object = ["-shared", "-fPIC", "-fvisibility=hidden", "-fstack-clash-protection"];
    let wave = format!("-DWARP={}", target.wave_size);
    // Only these options for a GPU's compiler have the same meaning here.
    let kept = options.filter(|option| ["-D", "-U", "-I"].iter().any(|prefix| option.starts_with(prefix)));
    let own = language.into_iter().chain(object).chain(instructions()).map(str::to_owned).chain([wave]);
    own.chain(kept.map(str::to_owned)).collect()
}

/// Compiles a fused product and sum, and a conversion of halves, to an instruction each. Otherwise each is a call of a
/// function with the same result.
#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    let has = [(is_x86_feature_detected!("fma"), "-mfma"), (is_x86_feature_detected!("f16c"), "-mf16c")];
    has.into_iter().filter(|(has, _)| *has).map(|(_, option)| option).collect()
}

/// Other processors always have the instructions.
#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn defines() -> String {
    variable(DEFINES).unwrap_or_default()
}

/// Returns the major and the minor version. The minor version depends on `HIPSIM_DEFINES`, on the built-in header, and
/// on the processor's features. A cache keyed by the compiler's version therefore never mixes kernels of different
/// definitions, headers or processors.
pub(crate) fn version() -> (i32, i32) {
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let defines = defines();
    let known = [defines.as_str(), CPU_HEADER.1].into_iter().chain(instructions());
    let minor = known.flat_map(str::bytes).fold(0x811c_9dc5, fnv) >> 1;
    (9, minor.cast_signed())
}
