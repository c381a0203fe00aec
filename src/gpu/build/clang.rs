//! The compiler for AMD GPUs.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first version that knows every target of this project.
const OLDEST: u32 = 22;

pub(crate) struct Clang {
    path: PathBuf,
    /// The first line of `--version`.
    pub(crate) version: String,
}

/// Returns the compiler that `ROCMFORGE_HIP_CLANG` names, else the first usable one in the path.
pub(crate) fn find(scratch: &Path) -> Result<Clang, String> {
    if let Some(path) = env::var_os("ROCMFORGE_HIP_CLANG") {
        return Ok(Clang::check(path.into(), scratch)?);
    }
    let names = (OLDEST..OLDEST + 10).map(|major| format!("clang-{major}")).chain(["clang".to_string()]);
    let mut problem = format!("no clang-{OLDEST} in the path");
    for name in names {
        match Clang::check(PathBuf::from(name), scratch) {
            Ok(clang) => return Ok(clang),
            Err(Unusable::Missing) => {}
            Err(Unusable::Because(why)) => problem = why,
        }
    }
    Err(problem)
}

enum Unusable {
    Missing,
    Because(String),
}

impl From<Unusable> for String {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Missing => "no such program".into(),
            Unusable::Because(why) => why,
        }
    }
}

impl Clang {
    /// Returns the compiler if a program is a clang that is new enough and can make a code object (which needs lld).
    fn check(path: PathBuf, scratch: &Path) -> Result<Self, Unusable> {
        let output = Command::new(&path).arg("--version").output().map_err(|_| Unusable::Missing)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().trim().to_string();
        let major = version.split("clang version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        if major.is_none_or(|major| major < OLDEST) {
            let name = path.display();
            return Err(Unusable::Because(format!("{name} is {version:?}, expected clang {OLDEST} or newer")));
        }
        let clang = Self { path, version };
        let probe = scratch.join("probe.hip");
        std::fs::write(&probe, "extern \"C\" __attribute__((global)) void probe() {}\n")
            .map_err(|e| Unusable::Because(format!("writing {}: {e}", probe.display())))?;
        clang
            .compile(&probe, &BTreeSet::new(), "gfx1100", &[], &scratch.join("probe.co"))
            .map_err(Unusable::Because)?;
        Ok(clang)
    }

    /// Returns the options for a target, without those of a single unit.
    pub(crate) fn options(target: &str) -> Vec<String> {
        // Version 5 of the code object format loads from ROCm 5.3 on; generic targets need version 6 (ROCm 6.3).
        let version = if target.ends_with("-generic") { 6 } else { 5 };
        let fixed = "-x hip --cuda-device-only --no-gpu-bundle-output -nogpuinc -nogpulib -O3 -std=c++17 \
                     -ffp-contract=on";
        let own = [format!("--offload-arch={target}"), format!("-mcode-object-version={version}")];
        fixed.split(' ').map(str::to_string).chain(own).collect()
    }

    pub(crate) fn compile(
        &self,
        source: &Path,
        includes: &BTreeSet<&Path>,
        target: &str,
        defines: &[String],
        object: &Path,
    ) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.args(Self::options(target)).args(defines).arg(source).arg("-o").arg(object);
        includes.iter().for_each(|folder| _ = command.arg("-I").arg(folder));
        let output = command.output().map_err(|e| format!("{}: {e}", self.path.display()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}
