//! Code objects, compiled in parallel and cached. An object is compiled again only if its source, an included header,
//! its options or the compiler changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::clang::Clang;
use crate::embed::Sources;
use crate::plan::Unit;

/// Objects that no build has used for this long are deleted.
const KEPT: Duration = Duration::from_secs(3 * 24 * 3600);

pub(crate) struct Object {
    pub(crate) unit: Unit,
    pub(crate) target: &'static str,
    pub(crate) path: PathBuf,
}

/// Waits until no other build compiles, and blocks other builds until the file is dropped. Clippy and the build of the
/// wheel begin at the same time and need the same objects. Without the lock, each would compile all of them.
pub(crate) fn lock(directory: &Path) -> Result<fs::File, String> {
    let path = directory.with_file_name("lock");
    let file = fs::File::create(&path).map_err(|e| format!("creating {}: {e}", path.display()))?;
    if let Err(e) = file.lock() {
        // Some file systems have no locks. The builds then take longer, but each still writes whole files.
        println!("cargo:warning=kernels may be compiled twice: locking {}: {e}", path.display());
    }
    Ok(file)
}

/// Compiles the missing objects. Returns all objects, ordered by target, then by unit as in the plan.
pub(crate) fn compile(
    clang: &Clang,
    sources: &Sources,
    targets: &[&'static str],
    directory: &Path,
) -> Result<Vec<Object>, String> {
    let units: Vec<Unit> = Unit::all().into_iter().filter(|unit| sources.contains(unit.file)).collect();
    let mut objects = Vec::new();
    for &target in targets {
        for &unit in &units {
            let mut hash = DefaultHasher::new();
            (&clang.version, Clang::options(target), unit.defines(), sources.closure(unit.file)).hash(&mut hash);
            let path = directory.join(format!("{}.{target}.{:016x}.co", unit.name(), hash.finish()));
            objects.push(Object { unit, target, path });
        }
    }
    let missing: Vec<&Object> = objects.iter().filter(|object| !object.path.exists()).collect();
    in_parallel(&missing, |object| {
        let unfinished = object.path.with_extension(format!("{}.unfinished", std::process::id()));
        let source = sources.path(object.unit.file);
        clang.compile(source, &sources.folders(), object.target, &object.unit.defines(), &unfinished)?;
        fs::rename(&unfinished, &object.path).map_err(|e| format!("renaming {}: {e}", unfinished.display()))
    })?;
    Ok(objects)
}

/// Writes a table of the objects of this build, for reports: target, unit, file.
pub(crate) fn write_list(objects: &[Object], path: &Path) -> Result<(), String> {
    let line = |object: &Object| format!("{}\t{}\t{}\n", object.target, object.unit.name(), object.path.display());
    crate::write(path, objects.iter().map(line).collect::<String>().as_bytes())
}

/// Runs `work` on as many threads as cargo allows, and returns the first error.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<(), String> + Sync) -> Result<(), String> {
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
    let threads = jobs.unwrap_or(1).clamp(1, items.len().max(1));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let worker = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                // After an error, no further items are begun.
                work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

/// Deletes objects that no build has used for long. Failures do not matter: another build may delete the same files.
pub(crate) fn delete_unused<'a>(directory: &Path, used: impl Iterator<Item = &'a Path>) {
    let now = SystemTime::now();
    for path in used {
        let _ = fs::File::options().append(true).open(path).and_then(|file| file.set_modified(now));
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|then| now.duration_since(then).ok());
        if age.is_some_and(|age| age > KEPT) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
