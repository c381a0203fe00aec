//! Embeds the kernels' sources into the library, and for each target one compressed archive of its code objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::objects::Object;

/// The files of kernels/ that are compiled or included, by name.
pub(crate) struct Sources {
    directory: PathBuf,
    files: BTreeMap<String, String>,
}

impl Sources {
    pub(crate) fn read(directory: &Path) -> Result<Self, String> {
        let failed = |e| format!("reading {}: {e}", directory.display());
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".h") || name.ends_with(".hip") {
                files.insert(name, fs::read_to_string(&path).map_err(failed)?);
            }
        }
        Ok(Self { directory: directory.to_path_buf(), files })
    }

    pub(crate) fn contains(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Returns a file and every file that it includes, with their texts.
    pub(crate) fn closure(&self, file: &str) -> Vec<(&str, &str)> {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![file]);
        while let Some(name) = waiting.pop() {
            // System headers, which only the CPU side includes, are not files of this project.
            let Some((name, text)) = self.files.get_key_value(name) else { continue };
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
    for name in sources.files.keys() {
        let _ = writeln!(code, "    ({name:?}, include_str!({:?})),", sources.path(name));
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
