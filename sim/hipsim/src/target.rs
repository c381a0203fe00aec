//! The devices that this library can imitate.

/// A device's attributes.
#[derive(Debug)]
pub(crate) struct Target {
    pub name: &'static str,
    /// The text that the driver appends to the name in `gcnArchName`.
    pub features: &'static str,
    pub wave_size: u32,
    pub multiprocessors: u32,
    pub lds_bytes: u32,
    pub l2_bytes: u32,
    /// The generic target whose code objects also run here.
    pub generic: &'static str,
}

pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 1024;
pub(crate) const MAX_GRID: u32 = i32::MAX as u32;

const ECC: &str = ":sramecc+:xnack-";

#[rustfmt::skip]
static TARGETS: [Target; 17] = [
    target("gfx900",     ":xnack-", 64,  64,  64,  4, "gfx9-generic"),
    target("gfx906",     ECC,       64,  60,  64,  4, "gfx9-generic"),
    target("gfx908",     ECC,       64, 120,  64,  8, ""),
    target("gfx90a",     ECC,       64, 104,  64,  8, ""),
    target("gfx942",     ECC,       64, 304,  64,  4, "gfx9-4-generic"),
    target("gfx950",     ECC,       64, 256, 160,  4, "gfx9-4-generic"),
    target("gfx1010",    ":xnack-", 32,  40,  64,  4, "gfx10-1-generic"),
    target("gfx1030",    "",        32,  80,  64,  4, "gfx10-3-generic"),
    target("gfx1100",    "",        32,  96,  64,  6, "gfx11-generic"),
    target("gfx1101",    "",        32,  60,  64,  4, "gfx11-generic"),
    target("gfx1102",    "",        32,  32,  64,  2, "gfx11-generic"),
    target("gfx1103",    "",        32,  12,  64,  2, "gfx11-generic"),
    target("gfx1151",    "",        32,  40,  64,  2, "gfx11-generic"),
    target("gfx1200",    "",        32,  32,  64,  4, "gfx12-generic"),
    target("gfx1201",    "",        32,  64,  64,  8, "gfx12-generic"),
    target("cpu-wave32", "",        32,   4,  64,  1, ""),
    target("cpu-wave64", "",        64,   4,  64,  1, ""),
];

const fn target(
    name: &'static str,
    features: &'static str,
    wave_size: u32,
    multiprocessors: u32,
    lds_kib: u32,
    l2_mib: u32,
    generic: &'static str,
) -> Target {
    let (lds_bytes, l2_bytes) = (lds_kib << 10, l2_mib << 20);
    Target { name, features, wave_size, multiprocessors, lds_bytes, l2_bytes, generic }
}

impl Target {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    pub(crate) fn names() -> String {
        TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ")
    }

    /// True if the run-time compiler knows an architecture.
    pub(crate) fn compiles(name: &str) -> bool {
        TARGETS.iter().any(|target| target.name == name || (target.generic == name && !name.is_empty()))
    }

    /// True if its kernels are compiled for the CPU.
    pub(crate) fn is_cpu(&self) -> bool {
        self.name.starts_with("cpu-")
    }

    /// True if a code object for `object` runs on this device.
    pub(crate) fn runs(&self, object: &str) -> bool {
        object == self.name || (object == self.generic && !object.is_empty())
    }
}
