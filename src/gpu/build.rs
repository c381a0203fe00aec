//! Embeds the kernels: always their sources, and their code objects if a compiler for AMD GPUs is installed.
//!
//! `ROCMFORGE_HIP_CLANG` names the compiler; otherwise clang-22 or newer is searched in the path.
//! `ROCMFORGE_HIP_TARGETS` lists the targets, separated by commas, or is `none`. Without it, release builds have all
//! targets, and debug builds have the few that the tests execute. All targets take minutes after each change of a
//! header.

#![allow(clippy::print_stderr)] // cargo shows it when the build fails

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "build/clang.rs"]
mod clang;
#[path = "build/embed.rs"]
mod embed;
#[path = "compile/kernel_table.rs"]
mod kernel_table;
#[path = "build/objects.rs"]
mod objects;
#[allow(unreachable_pub)] // used by the engine, which includes this file too
#[path = "compile/plan.rs"]
mod plan;

use clang::Clang;
use embed::Sources;

/// The root of the workspace, and the kernels in it, from this package.
const WORKSPACE: &str = "../..";
const KERNELS: &str = "../../kernels";
/// Targets whose kernels the tests execute.
const DEBUG_TARGETS: [&str; 8] =
    ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx10-3-generic", "gfx12-generic"];

fn main() {
    if let Ok(system) = variable("CARGO_CFG_TARGET_OS")
        && system != "linux"
    {
        eprintln!("rocmforge builds for Linux only, not for {system}: use a Linux machine, WSL or a container");
        std::process::exit(1);
    }
    for path in ["build.rs", "build", "compile/plan.rs", "compile/kernel_table.rs", KERNELS] {
        println!("cargo:rerun-if-changed={path}");
    }
    for variable in ["ROCMFORGE_HIP_CLANG", "ROCMFORGE_HIP_TARGETS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if let Err(problem) = run() {
        eprintln!("the kernels could not be embedded: {problem}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let sources = Sources::read(&canonical(&root.join(KERNELS))?)?;
    let targets = wanted_targets(&variable("PROFILE")?)?;
    let compiler = if targets.is_empty() { None } else { find_compiler(&out)? };
    let embedded = match &compiler {
        Some(clang) => {
            let cache = cache_directory(&root, &out)?;
            let _compiling = objects::lock(&cache)?;
            let objects = objects::compile(clang, &sources, &targets, &cache)?;
            let packed = embed::pack(&objects, &cache)?;
            let used = objects.iter().map(|object| &*object.path).chain(packed.iter().map(|packed| &*packed.path));
            objects::delete_unused(&cache, used);
            objects::write_list(&objects, &cache.with_file_name(format!("{}.tsv", variable("PROFILE")?)))?;
            packed
        }
        None => Vec::new(),
    };
    let code = embed::generate(&sources, &embedded, compiler.as_ref().map(|clang| clang.version.as_str()));
    write(&out.join("embedded.rs"), code.as_bytes())
}

fn wanted_targets(profile: &str) -> Result<Vec<&'static str>, String> {
    let all = || plan::EXACT_TARGETS.into_iter().chain(plan::GENERIC_TARGETS.map(|(target, _)| target));
    match env::var("ROCMFORGE_HIP_TARGETS").ok().as_deref() {
        Some("none") => Ok(Vec::new()),
        None | Some("") if profile == "debug" => Ok(DEBUG_TARGETS.to_vec()),
        None | Some("") => Ok(all().collect()),
        Some(list) => list
            .split(',')
            .map(|name| {
                all().find(|target| *target == name.trim()).ok_or_else(|| {
                    format!("ROCMFORGE_HIP_TARGETS: got {name:?}, expected of {}", all().collect::<Vec<_>>().join(","))
                })
            })
            .collect(),
    }
}

/// Returns the compiler, or prints a warning that says what is missing. A compiler that was named must work.
fn find_compiler(out: &Path) -> Result<Option<Clang>, String> {
    match clang::find(out) {
        Ok(clang) => Ok(Some(clang)),
        Err(problem) if env::var_os("ROCMFORGE_HIP_CLANG").is_some() => Err(format!("ROCMFORGE_HIP_CLANG: {problem}")),
        Err(problem) => {
            println!(
                "cargo:warning=no compiler for AMD GPUs: this build carries the kernels' sources only and compiles \
                 them with hipRTC when it runs. For code objects install clang-22 and lld-22, or set \
                 ROCMFORGE_HIP_CLANG, and build again ({problem})"
            );
            Ok(None)
        }
    }
}

/// Returns `target/kernels/objects`, one place for debug, release, clippy and loom builds: they need the same objects.
fn cache_directory(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let shared = canonical(&root.join(WORKSPACE))?.join("target");
    let target = match out.starts_with(&shared) {
        true => shared,
        // Built elsewhere (CARGO_TARGET_DIR): OUT_DIR is <target>/<profile>/build/<package>/out.
        false => out.ancestors().nth(4).ok_or("OUT_DIR is too short a path")?.to_path_buf(),
    };
    let directory = target.join("kernels/objects");
    fs::create_dir_all(&directory).map_err(|e| format!("creating {}: {e}", directory.display()))?;
    Ok(directory)
}

fn canonical(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// Writes a file atomically: concurrent builds share the cache.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    fs::write(&unfinished, bytes)
        .and_then(|()| fs::rename(&unfinished, path))
        .map_err(|e| format!("writing {}: {e}", path.display()))
}
