//! Finds the libraries of a GPU's vendor: HIP, hipRTC and hipBLASLt, and CUDA's libraries. They are looked for by name,
//! as the system's loader knows them, and in the folders that installers and Python packages use.

use std::path::{Path, PathBuf};

use libloading::Library;

use super::sys::{self, Opened};
use crate::config::{GpuOptions, Platform};

/// Folder where Linux distributions for WSL find the libraries of Windows' driver.
const WSL_FOLDER: &str = "/usr/lib/wsl/lib";
/// Folder of AMD's installers, which put ROCm in it.
const OPT: &str = "/opt";
/// Folder of CUDA's installer.
const CUDA_DEFAULT_HOME: &str = "/usr/local/cuda";

/// A library to be found.
pub(super) struct Search {
    /// Names of the library in its releases, the one to prefer first.
    names: Vec<String>,
    /// Folders that are preferred to what the system's loader finds by name.
    before: Vec<PathBuf>,
    /// Folders that are looked into after it.
    after: Vec<PathBuf>,
    /// A driver that was named by its path: it may be the library too, which else is looked for beside it alone.
    named: Option<PathBuf>,
}

impl Search {
    /// A library of a platform. `beside`: a library that it is best taken from the folder of, being of the same
    /// release.
    pub(super) fn new(options: &GpuOptions, platform: Platform, names: Vec<String>, beside: Option<&Path>) -> Self {
        let folder = beside.and_then(Path::parent).filter(|folder| folder.is_absolute()).map(Path::to_path_buf);
        let mut search = Self { names, before: Vec::new(), after: Vec::new(), named: None };
        match platform {
            Platform::Amd => {
                search.before.extend(folder);
                search.named = options.library.clone();
                if search.named.is_none() {
                    search.before.extend(options.rocm_path.iter().flat_map(|home| libraries_of(home)));
                    search.after = amd_folders(options, Path::new(OPT));
                }
            }
            // Its libraries do not come with the driver.
            Platform::Nvidia => search.after = nvidia_folders(options),
        }
        search
    }

    /// The driver's library itself: the file that the options name, if they name one.
    pub(super) fn driver(options: &GpuOptions, platform: Platform, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Self { named: options.library.clone(), ..Self::new(options, platform, names, None) }
    }

    /// This very file, and nothing else.
    pub(super) fn file(file: &Path) -> Self {
        Self { names: Vec::new(), before: Vec::new(), after: Vec::new(), named: Some(file.to_path_buf()) }
    }

    /// Files to try, in this order: those that exist in the folders, and bare names, which are the loader's affair.
    fn candidates(&self) -> Vec<PathBuf> {
        let inside = |folders: &[PathBuf]| -> Vec<PathBuf> {
            let files = folders.iter().flat_map(|folder| self.names.iter().map(move |name| folder.join(name)));
            files.filter(|file| file.exists()).collect()
        };
        let mut all: Vec<_> = self.named.iter().cloned().chain(inside(&self.before)).collect();
        if self.named.is_some() {
            return all;
        }
        all.extend(self.names.iter().map(PathBuf::from));
        all.extend(inside(&self.after));
        all
    }

    /// The first library that opens and that `accept` takes. One that the process has opened already goes first,
    /// wherever it is from: two of a vendor's drivers in one process do not bear each other.
    ///
    /// # Errors
    /// Every file that was tried with what was wrong with it, and the folders that were looked into.
    pub(super) fn find<T>(&self, mut accept: impl FnMut(Library, &Path) -> Result<T, String>) -> Result<T, String> {
        let candidates = self.candidates();
        let mut problems: Vec<String> = Vec::new();
        for which in [Opened::Already, Opened::Anew] {
            for file in &candidates {
                // SAFETY: opening runs the library's initialisers: those of a GPU's driver or of a library for it,
                // which the user installed (or named) to be used by programs like this one.
                let problem = match unsafe { sys::open_library(file, which) } {
                    Ok(library) => match accept(library, file) {
                        Ok(found) => return Ok(found),
                        Err(problem) => problem,
                    },
                    Err(_) if which == Opened::Already => continue,
                    Err(error) => cause(&error, file),
                };
                let problem = format!("{} ({problem})", file.display());
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        let folders: Vec<_> = self.before.iter().chain(&self.after).map(|at| at.display().to_string()).collect();
        let folders = if folders.is_empty() { String::new() } else { format!(", looked into {}", folders.join(", ")) };
        Err(format!("tried {}{folders}", problems.join(", ")))
    }
}

/// The loader begins with the name, which stands before its text already.
fn cause(error: &libloading::Error, file: &Path) -> String {
    let text = sys::reason(error);
    text.strip_prefix(&format!("{}: ", file.display())).unwrap_or(&text).to_owned()
}

fn libraries_of(home: &Path) -> [PathBuf; 2] {
    ["lib", "lib64"].map(|folder| home.join(folder))
}

/// Folders of AMD's libraries: packages of the running Python before those of the machine; `opt` is `/opt`.
fn amd_folders(options: &GpuOptions, opt: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for folder in &options.python_path {
        // ROCm's own packages: _rocm_sdk_core, _rocm_sdk_libraries or _rocm_sdk_libraries_gfx94X_dcgpu and others.
        all.extend(newest_first(folder, "_rocm_sdk_").into_iter().map(|package| package.join("lib")));
        all.push(folder.join("torch/lib"));
    }
    // From ROCm 10 on /opt/rocm is a folder of installations, before that it was one of them.
    let homes = [opt.join("rocm")].into_iter();
    let homes = homes.chain(newest_first(&opt.join("rocm"), "core-")).chain(newest_first(opt, "rocm-"));
    all.extend(homes.flat_map(|home| libraries_of(&home)));
    all.push(WSL_FOLDER.into());
    all.retain(|folder| folder.is_dir());
    all
}

fn nvidia_folders(options: &GpuOptions) -> Vec<PathBuf> {
    let homes = options.cuda_home.iter().map(PathBuf::as_path).chain([Path::new(CUDA_DEFAULT_HOME)]);
    let mut all: Vec<_> = homes.flat_map(|home| ["lib64", "lib"].map(|folder| home.join(folder))).collect();
    for folder in &options.python_path {
        // NVIDIA's packages share one folder: nvidia/cublas, nvidia/cuda_nvrtc, nvidia/cu13 …
        all.extend(newest_first(&folder.join("nvidia"), "").into_iter().map(|package| package.join("lib")));
    }
    all.push(WSL_FOLDER.into());
    all.retain(|folder| folder.is_dir());
    all
}

/// Entries of a folder whose names begin so, by the numbers in the rest of the name, the highest first, then by name.
fn newest_first(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    let version = |name: &str| -> Vec<u32> {
        name[prefix.len()..].split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    names.sort_by(|a, b| version(b).cmp(&version(a)).then_with(|| a.cmp(b)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::tests::devices;

    /// A tree with a stand-in of each file.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for file in files {
            let path = tree.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"no library").unwrap();
        }
        tree
    }

    fn names() -> Vec<String> {
        // No machine has these, so that only the tree decides.
        ["libnoamd64.so.8", "libnoamd64.so.7", "libnoamd64.so"].map(str::to_owned).to_vec()
    }

    /// Candidates below the tree, and the bare names as they are.
    fn relative(search: &Search, tree: &Path) -> Vec<String> {
        let shown = |path: PathBuf| path.strip_prefix(tree).unwrap_or(&path).display().to_string();
        search.candidates().into_iter().map(shown).collect()
    }

    #[test]
    fn every_place_of_an_installation_is_searched_in_order() {
        let tree = tree(&[
            "named/lib/libnoamd64.so.7",
            "site/_rocm_sdk_core/lib/libnoamd64.so.8",
            "site/_rocm_sdk_libraries_gfx94X_dcgpu/lib/libnoamd64.so.7",
            "site/_rocm_sdk_core/lib/libother.so",
            "site/torch/lib/libnoamd64.so",
            "opt/rocm/lib/libnoamd64.so.7",
            "opt/rocm/core-10.0/lib/libnoamd64.so.8",
            "opt/rocm/core-10.1/lib/libnoamd64.so.8",
            "opt/rocm-6.4.1/lib/libnoamd64.so",
            "opt/rocm-7.2.0/lib64/libnoamd64.so.7",
            "opt/rocm-7.10.0/lib/libnoamd64.so.7",
        ]);
        let at = |path: &str| tree.path().join(path);
        let options = GpuOptions { rocm_path: Some(at("named")), python_path: vec![at("site")], ..Default::default() };
        let search = Search {
            after: amd_folders(&options, &at("opt")),
            ..Search::new(&options, Platform::Amd, names(), Some(&at("opt/rocm/lib/libdriver.so.7")))
        };
        let expected = [
            // The library of the driver's own release comes first, then the one that was named, then the loader's.
            "opt/rocm/lib/libnoamd64.so.7",
            "named/lib/libnoamd64.so.7",
            "libnoamd64.so.8",
            "libnoamd64.so.7",
            "libnoamd64.so",
            "site/_rocm_sdk_libraries_gfx94X_dcgpu/lib/libnoamd64.so.7",
            "site/_rocm_sdk_core/lib/libnoamd64.so.8",
            "site/torch/lib/libnoamd64.so",
            "opt/rocm/lib/libnoamd64.so.7",
            "opt/rocm/core-10.1/lib/libnoamd64.so.8",
            "opt/rocm/core-10.0/lib/libnoamd64.so.8",
            "opt/rocm-7.10.0/lib/libnoamd64.so.7",
            "opt/rocm-7.2.0/lib64/libnoamd64.so.7",
            "opt/rocm-6.4.1/lib/libnoamd64.so",
        ];
        assert_eq!(relative(&search, tree.path()), expected);
        // Beside a driver that was named, only libraries that belong to it are taken.
        let options = GpuOptions { library: Some(at("opt/rocm-6.4.1/lib/x.so")), ..options };
        let search = Search::new(&options, Platform::Amd, names(), options.library.as_deref());
        let expected = ["opt/rocm-6.4.1/lib/x.so", "opt/rocm-6.4.1/lib/libnoamd64.so"];
        assert_eq!(relative(&search, tree.path()), expected);
        assert_eq!(relative(&Search::driver(&options, Platform::Amd, &["libnoamd64.so"]), tree.path()), expected[..1]);
    }

    /// Whatever does not open is named with the loader's own reason, and hides nothing that comes after it.
    #[test]
    fn an_error_names_everything_that_was_tried() {
        let tree = tree(&["lib/libnoamd64.so.8"]);
        let options = GpuOptions { rocm_path: Some(tree.path().into()), ..GpuOptions::default() };
        let search = Search { after: Vec::new(), ..Search::new(&options, Platform::Amd, names(), None) };
        let error = search.find(|_, _| Ok(())).unwrap_err();
        let folder = tree.path().join("lib");
        for part in [
            &format!("{} (file too short", folder.join("libnoamd64.so.8").display()),
            "libnoamd64.so.8 (cannot open shared object file: No such file or directory)",
            "libnoamd64.so.7 (cannot open shared object file: No such file or directory)",
            "libnoamd64.so (cannot open",
            &format!("looked into {}", folder.display()),
        ] {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    /// A library that is refused is passed over, and one that the process has already is preferred to one that it has
    /// not.
    #[test]
    fn the_library_that_is_loaded_already_is_taken() {
        let Some(stand_in) = devices::stand_in() else {
            println!("skipped: no stand-in library; run `cargo build -p hipsim`");
            return;
        };
        let tree = tree(&["named/lib/libnoamd64.so.8", "site/torch/lib/libnoamd64.so.8"]);
        let at = |path: &str| tree.path().join(path);
        for place in ["named/lib", "site/torch/lib"] {
            std::fs::copy(&stand_in, at(place).join("libnoamd64.so.8")).unwrap();
        }
        let options = GpuOptions { rocm_path: Some(at("named")), python_path: vec![at("site")], ..Default::default() };
        let search = || Search::new(&options, Platform::Amd, names(), None);
        let (first, second) = (at("named/lib/libnoamd64.so.8"), at("site/torch/lib/libnoamd64.so.8"));
        let mut seen = Vec::new();
        let found = search().find(|_, path| {
            seen.push(path.to_path_buf());
            if path == first { Err("too old".to_owned()) } else { Ok(path.to_path_buf()) }
        });
        assert_eq!((found.unwrap(), &seen[..1]), (second.clone(), &[first.clone()][..]));
        // Refused or not, both are in the process now: the order is the usual one.
        assert_eq!(search().find(|_, path| Ok(path.to_path_buf())).unwrap(), first);
        let only_second = GpuOptions { rocm_path: Some(at("nowhere")), ..options.clone() };
        let found = Search::new(&only_second, Platform::Amd, names(), None).find(|_, path| Ok(path.to_path_buf()));
        assert_eq!(found.unwrap(), second);
    }
}
