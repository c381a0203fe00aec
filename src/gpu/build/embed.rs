//! Embeds the kernels' sources into the library, and for each target one compressed archive of its code objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::objects::Object;

/// The folder of kernels/ for tests on the CPU alone.
const ON_CPU: &str = "host";

/// The files of kernels/ and its folders that are compiled or included, by name. They include each other by name, as
/// run-time compilers get them.
pub(crate) struct Sources {
    files: BTreeMap<String, Source>,
}

struct Source {
    path: PathBuf,
    text: String,
}

impl Sources {
    pub(crate) fn read(directory: &Path) -> Result<Self, String> {
        let failed = |e| format!("reading {}: {e}", directory.display());
        let mut files = BTreeMap::<String, Source>::new();
        let mut waiting = vec![directory.to_path_buf()];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(folder).map_err(failed)? {
                let path = entry.map_err(failed)?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if name.ends_with(".h") || name.ends_with(".hip") {
                    let text = fs::read_to_string(&path).map_err(failed)?;
                    if let Some(other) = files.insert(name, Source { path: path.clone(), text }) {
                        return Err(format!("{} and {} have one name", path.display(), other.path.display()));
                    }
                } else if path.is_dir() && name != ON_CPU {
                    waiting.push(path);
                }
            }
        }
        Ok(Self { files })
    }

    /// Returns the folders of the files, for their includes.
    pub(crate) fn folders(&self) -> BTreeSet<&Path> {
        self.files.values().filter_map(|source| source.path.parent()).collect()
    }

    pub(crate) fn contains(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    /// Returns the path of a file that is contained.
    pub(crate) fn path(&self, file: &str) -> &Path {
        &self.files[file].path
    }

    /// Returns a file and every file that it includes, with their texts.
    pub(crate) fn closure(&self, file: &str) -> Vec<(&str, &str)> {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![file]);
        while let Some(name) = waiting.pop() {
            // System headers, which only the CPU side includes, are not files of this project.
            let Some((name, Source { text, .. })) = self.files.get_key_value(name) else { continue };
            if found.insert((name.as_str(), text.as_str())) {
                let includes = text.lines().filter_map(|line| line.trim().strip_prefix("#include"));
                waiting.extend(includes.filter_map(|rest| rest.split('"').nth(1)));
            }
        }
        found.into_iter().collect()
    }
}

/// The code objects of a target, compressed as one.
pub(crate) struct Packed {
    target: &'static str,
    pub(crate) path: PathBuf,
    /// Name of the unit and bytes of its object, in the order of the archive.
    objects: Vec<(String, usize)>,
}

/// Compresses the objects of each target together, since they share most of their code.
pub(crate) fn pack(objects: &[Object], directory: &Path) -> Result<Vec<Packed>, String> {
    let mut all = Vec::new();
    for group in objects.chunk_by(|a, b| a.target == b.target) {
        let (mut bytes, mut index) = (Vec::new(), Vec::new());
        for object in group {
            let image = fs::read(&object.path).map_err(|e| format!("reading {}: {e}", object.path.display()))?;
            index.push((object.unit.name(), image.len()));
            bytes.extend(image);
        }
        let target = group[0].target;
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        let path = directory.join(format!("{target}.{:016x}.xz", hash.finish()));
        if !path.exists() {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
            let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish()).map_err(|e| format!("xz: {e}"))?;
            crate::write(&path, &packed)?;
        }
        all.push(Packed { target, path, objects: index });
    }
    Ok(all)
}

/// Returns the Rust code that `compile/embedded.rs` includes. It uses `static`: with a `const`, each codegen unit that
/// names it would hold its own copy of megabytes.
pub(crate) fn generate(sources: &Sources, packed: &[Packed], compiler: Option<&str>) -> String {
    let mut code = String::from("pub(super) static SOURCES: &[(&str, &str)] = &[\n");
    for (name, Source { path, .. }) in &sources.files {
        let _ = writeln!(code, "    ({name:?}, include_str!({path:?})),");
    }
    let _ = writeln!(code, "];\npub(super) const COMPILER: Option<&str> = {compiler:?};");
    code.push_str("pub(super) static TARGETS: &[Target] = &[\n");
    for Packed { target, path, objects } in packed {
        let _ =
            writeln!(code, "    Target {{ name: {target:?}, xz: include_bytes!({path:?}), objects: &{objects:?} }},");
    }
    code.push_str("];\n");
    code
}
