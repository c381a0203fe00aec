//! The build script's output in this library: the kernels' sources, and code objects of the targets that it compiled.

use std::io::Read;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::plan::{GENERIC_TARGETS, Unit};
use crate::{Error, Result};

/// The code objects of one target, compressed together.
pub(crate) struct Target {
    pub name: &'static str,
    xz: &'static [u8],
    /// Name and size of each object, in their order in the data.
    objects: &'static [(&'static str, usize)],
}

// SOURCES (name and text of every file of kernels/), COMPILER (of the code objects), TARGETS.
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Yields the targets whose code the build script compiled.
pub fn embedded_targets() -> impl Iterator<Item = &'static str> {
    TARGETS.iter().map(|target| target.name)
}

/// Returns the target whose code runs on a GPU: its own, else that of its family.
pub(crate) fn target_for(arch: &str) -> Option<&'static Target> {
    let named = |name: &str| TARGETS.iter().find(|target| target.name == name);
    named(arch).or_else(|| named(generic_target(arch)?))
}

/// Returns the target of a GPU's family.
pub(super) fn generic_target(arch: &str) -> Option<&'static str> {
    GENERIC_TARGETS.iter().find(|(_, covered)| covered.contains(&arch)).map(|(target, _)| *target)
}

impl Target {
    pub(super) fn has(&self, unit: Unit) -> bool {
        let name = unit.name();
        self.objects.iter().any(|(object, _)| *object == name)
    }

    /// Creates a target with these objects, for tests.
    #[cfg(test)]
    pub(crate) fn of(name: &'static str, objects: &[(&'static str, &[u8])]) -> &'static Self {
        use std::io::Write;
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        objects.iter().for_each(|(_, object)| xz.write_all(object).unwrap());
        let sizes: Vec<_> = objects.iter().map(|(name, object)| (*name, object.len())).collect();
        Box::leak(Box::new(Self { name, xz: xz.finish().unwrap().leak(), objects: sizes.leak() }))
    }

    /// Unpacks all code objects, which takes megabytes and a fraction of a second. Concurrent callers share the result.
    pub(crate) fn unpack(&self) -> Result<Arc<Unpacked>> {
        static SHARED: Mutex<Vec<Weak<Unpacked>>> = Mutex::new(Vec::new());
        // The lock is held meanwhile, so a second caller waits and finds the result of the first.
        let mut shared = SHARED.lock();
        shared.retain(|unpacked| unpacked.strong_count() > 0);
        let found = shared.iter().filter_map(Weak::upgrade).find(|unpacked| std::ptr::eq(unpacked.xz, self.xz));
        if let Some(unpacked) = found {
            return Ok(unpacked);
        }
        let mut bytes = Vec::with_capacity(self.objects.iter().map(|(_, size)| size).sum());
        liblzma::read::XzDecoder::new(self.xz)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::internal(format!("code objects for {}: {e}", self.name)))?;
        let unpacked = Arc::new(Unpacked { xz: self.xz, bytes, objects: self.objects });
        shared.push(Arc::downgrade(&unpacked));
        Ok(unpacked)
    }
}

pub(crate) struct Unpacked {
    /// The compressed code that this was unpacked from.
    xz: &'static [u8],
    bytes: Vec<u8>,
    objects: &'static [(&'static str, usize)],
}

impl Unpacked {
    pub(crate) fn object(&self, unit: Unit) -> Option<&[u8]> {
        let (name, mut start) = (unit.name(), 0);
        for (object, size) in self.objects {
            if *object == name {
                return self.bytes.get(start..start + size);
            }
            start += size;
        }
        None
    }
}
