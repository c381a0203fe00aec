//! Finds the libraries of a GPU's vendor: HIP, hipRTC and hipBLASLt, and CUDA's libraries. It searches by name, through
//! the system's loader, and in the folders of installers and Python packages.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::config::{GpuOptions, Platform};
use crate::sys::{self, Opened};

/// The folder where Linux distributions on WSL find the libraries of Windows' driver.
const WSL_FOLDER: &str = "/usr/lib/wsl/lib";
/// The folder where AMD's installers put ROCm.
const OPT: &str = "/opt";
/// The loader's list of libraries, which changes with every installation.
const LOADER_LIST: &str = "/etc/ld.so.cache";
/// The folder of CUDA's installer.
const CUDA_DEFAULT_HOME: &str = "/usr/local/cuda";
/// The loader's message for a name that it finds in none of its folders.
const MISSING: &str = "cannot open shared object file: No such file or directory";

/// A search for one library.
pub(crate) struct Search {
    /// Names of the library in its releases, the preferred one first.
    names: Vec<String>,
    /// Folders that are searched before the system's loader.
    before: Vec<PathBuf>,
    /// Folders that are searched after it.
    after: Vec<PathBuf>,
    /// A driver that was named by its path. It may be the library itself; otherwise only its folder is searched.
    named: Option<PathBuf>,
}

impl Search {
    /// Creates the search for a library of a platform. The folder of `beside` is preferred, because its libraries are
    /// of the same release.
    pub(crate) fn new(options: &GpuOptions, platform: Platform, names: Vec<String>, beside: Option<&Path>) -> Self {
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
            // CUDA's libraries do not come with the driver.
            Platform::Nvidia => search.after = nvidia_folders(options),
        }
        search
    }

    /// Creates the search for the driver's own library: the file that the options name, if any.
    pub(crate) fn driver(options: &GpuOptions, platform: Platform, names: &[&str]) -> Self {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Self { named: options.library.clone(), ..Self::new(options, platform, names, None) }
    }

    /// Creates a search for exactly this file.
    pub(crate) fn file(file: &Path) -> Self {
        Self { names: Vec::new(), before: Vec::new(), after: Vec::new(), named: Some(file.to_path_buf()) }
    }

    /// Returns the files to try, in order: existing files of the folders, and bare names for the loader.
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

    /// Returns the first library that opens and that `accept` takes. A library that the process has already opened is
    /// preferred, whatever its origin, because two drivers of a vendor in one process conflict.
    ///
    /// # Errors
    /// Every file that was tried with its problem, and the folders that were searched.
    pub(crate) fn find<T>(&self, mut accept: impl FnMut(Library, &Path) -> Result<T, String>) -> Result<T, String> {
        let mut problems = Problems::default();
        for which in [Opened::Already, Opened::Anew] {
            if let Some(found) = self.find_opened(which, &mut accept, &mut problems) {
                return Ok(found);
            }
        }
        let folders: Vec<_> = self.before.iter().chain(&self.after).map(|at| at.display().to_string()).collect();
        let folders = if folders.is_empty() { String::new() } else { format!(", looked into {}", folders.join(", ")) };
        Err(format!("{problems}{folders}"))
    }

    /// Returns the first library that this process has already opened and that `accept` takes.
    pub(super) fn find_loaded<T>(&self, mut accept: impl FnMut(Library, &Path) -> Result<T, String>) -> Option<T> {
        self.find_opened(Opened::Already, &mut accept, &mut Problems::default())
    }

    fn find_opened<T>(
        &self,
        which: Opened,
        accept: &mut impl FnMut(Library, &Path) -> Result<T, String>,
        problems: &mut Problems,
    ) -> Option<T> {
        for file in self.candidates() {
            // SAFETY: opening runs the library's initialisers. They belong to a GPU's driver or to a library for it.
            // The user installed (or named) it to be used by programs like this one.
            let problem = match unsafe { sys::open_library(&file, which) } {
                Ok(library) => match accept(library, &file) {
                    Ok(found) => return Some(found),
                    Err(problem) => problem,
                },
                Err(_) if which == Opened::Already => continue,
                Err(error) => cause(&error, &file),
            };
            problems.add(&file, &problem);
        }
        None
    }

    /// Returns everything that decides which library `find` opens, with the present state of the files. It opens
    /// nothing. A bare name is represented by the loader's list and by the folders that the loader searches before it.
    pub(crate) fn state(&self, loader_folders: &[PathBuf]) -> String {
        let mut files = Vec::new();
        for candidate in self.candidates() {
            if candidate.parent().is_some_and(|folder| folder == Path::new("")) {
                files.extend(loader_folders.iter().map(|folder| folder.join(&candidate)));
                files.push(PathBuf::from(LOADER_LIST));
            } else {
                files.push(candidate);
            }
        }
        let about = |file: &PathBuf| {
            let about = std::fs::metadata(file).ok()?;
            Some(format!("{} {} {:?}", file.canonicalize().ok()?.display(), about.len(), about.modified().ok()))
        };
        let mut known: Vec<String> = files.iter().filter_map(about).collect();
        known.dedup();
        known.join("\n")
    }
}

/// Why no library was taken. A list of equal reasons for the releases of one library would hide what to do.
#[derive(Default)]
struct Problems {
    /// Files with their problems.
    files: Vec<String>,
    /// Names that the loader found nowhere.
    missing: Vec<String>,
}

impl Problems {
    fn add(&mut self, file: &Path, problem: &str) {
        let name = file.display().to_string();
        tracing::debug!("{name}: {problem}");
        let (list, entry) = match problem {
            MISSING => (&mut self.missing, name),
            problem => (&mut self.files, format!("{name} ({problem})")),
        };
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.files.join(", "))?;
        let Some((first, others)) = self.missing.split_first() else { return Ok(()) };
        f.write_str(if self.files.is_empty() { "" } else { ", " })?;
        let library = first.find(".so").map_or(first.as_str(), |end| &first[..end]);
        f.write_str(first)?;
        for other in others {
            // `libx.so.7 or .6` for two releases of one library.
            match other.strip_prefix(library).map(|rest| rest.trim_start_matches(".so")) {
                Some(release) if !release.is_empty() => write!(f, ", {release}")?,
                Some(_) => {}
                None => write!(f, ", {other}")?,
            }
        }
        f.write_str(" not found")
    }
}

/// Returns the error's text without the file's name, which the message already contains.
fn cause(error: &libloading::Error, file: &Path) -> String {
    let text = sys::reason(error);
    text.strip_prefix(&format!("{}: ", file.display())).unwrap_or(&text).to_owned()
}

fn libraries_of(home: &Path) -> [PathBuf; 2] {
    ["lib", "lib64"].map(|folder| home.join(folder))
}

/// Returns the folders of AMD's libraries, with the running Python's packages before the machine's; `opt` is `/opt`.
fn amd_folders(options: &GpuOptions, opt: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for folder in &options.python_path {
        // ROCm's own packages: _rocm_sdk_core, _rocm_sdk_libraries or _rocm_sdk_libraries_gfx94X_dcgpu and others.
        all.extend(newest_first(folder, "_rocm_sdk_").into_iter().map(|package| package.join("lib")));
        all.push(folder.join("torch/lib"));
    }
    // Since ROCm 10, /opt/rocm is a folder of installations; before that it was a single installation.
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

/// Returns a folder's entries with this prefix, by the numbers in the rest of the name, the highest first, then by
/// name.
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
    use crate::testing::devices;

    /// Creates a folder tree with a stand-in for each file.
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
        // No machine has these, so only the tree decides.
        ["libnoamd64.so.8", "libnoamd64.so.7", "libnoamd64.so"].map(str::to_owned).to_vec()
    }

    /// Returns candidates relative to the tree, and bare names unchanged.
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
            // The library of the driver's own release comes first, then the named installation, then the loader's.
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
        // With a named driver, only libraries from its folder are taken.
        let options = GpuOptions { library: Some(at("opt/rocm-6.4.1/lib/x.so")), ..options };
        let search = Search::new(&options, Platform::Amd, names(), options.library.as_deref());
        let expected = ["opt/rocm-6.4.1/lib/x.so", "opt/rocm-6.4.1/lib/libnoamd64.so"];
        assert_eq!(relative(&search, tree.path()), expected);
        assert_eq!(relative(&Search::driver(&options, Platform::Amd, &["libnoamd64.so"]), tree.path()), expected[..1]);
    }

    /// A file that does not open is listed with the loader's reason. Names that are nowhere are listed together.
    #[test]
    fn an_error_names_everything_that_was_tried() {
        let tree = tree(&["lib/libnoamd64.so.8"]);
        let options = GpuOptions { rocm_path: Some(tree.path().into()), ..GpuOptions::default() };
        let search = Search { after: Vec::new(), ..Search::new(&options, Platform::Amd, names(), None) };
        let error = search.find(|_, _| Ok(())).unwrap_err();
        let folder = tree.path().join("lib");
        for part in [
            &format!("{} (file too short", folder.join("libnoamd64.so.8").display()),
            ", libnoamd64.so.8, .7 not found, ",
            &format!("looked into {}", folder.display()),
        ] {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    /// An installation, an update and another loader path each change the state.
    #[test]
    fn the_state_changes_with_the_libraries() {
        let tree = tree(&["home/lib/libother.so", "first/libnoamd64.so.7"]);
        let at = |path: &str| tree.path().join(path);
        let state = |options: &GpuOptions| {
            let search = Search { after: Vec::new(), ..Search::new(options, Platform::Amd, names(), None) };
            search.state(&options.loader_folders)
        };
        let options = GpuOptions { rocm_path: Some(at("home")), ..GpuOptions::default() };
        let mut states = vec![state(&options)];
        assert_eq!(state(&options), states[0]);
        states.push(state(&GpuOptions { loader_folders: vec![at("first")], ..options.clone() }));
        std::fs::write(at("home/lib/libnoamd64.so.8"), b"installed").unwrap();
        states.push(state(&options));
        std::fs::write(at("home/lib/libnoamd64.so.8"), b"a newer one").unwrap();
        states.push(state(&options));
        states.push(state(&GpuOptions { library: Some(at("home/lib/libother.so")), ..options }));
        let named = states.last().unwrap();
        assert!(named.contains("libother.so") && !named.contains(LOADER_LIST), "{named}");
        let distinct: std::collections::HashSet<_> = states.iter().collect();
        assert_eq!(distinct.len(), states.len(), "{states:?}");
    }

    /// A refused library is skipped, and a library that the process has already opened is preferred to others.
    #[test]
    fn the_library_that_is_loaded_already_is_taken() {
        let Some(stand_in) = devices::stand_in() else {
            return devices::skip("no stand-in library; run `cargo build -p hipsim`");
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
        // Both libraries are in the process now, refused or not, so the usual order applies.
        assert_eq!(search().find(|_, path| Ok(path.to_path_buf())).unwrap(), first);
        let only_second = GpuOptions { rocm_path: Some(at("nowhere")), ..options.clone() };
        let found = Search::new(&only_second, Platform::Amd, names(), None).find(|_, path| Ok(path.to_path_buf()));
        assert_eq!(found.unwrap(), second);
    }
}
