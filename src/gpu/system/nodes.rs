//! GPUs in the kernel driver's description, independent of AMD's library.

use std::fmt;
use std::path::Path;

use super::{names, text};

/// The folder of the kernel driver's nodes: processors and GPUs.
const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A GPU of the kernel driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    number: String,
    /// The architecture without masquerading: `gfx1103`.
    pub arch: String,
    /// Compute units. On RDNA, HIP counts a pair of them as one.
    compute_units: u32,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, arch, compute_units } = self;
        write!(f, "node {number} of the kernel driver: {arch}, {compute_units} compute units")
    }
}

/// Returns the GPUs of the kernel driver. Processors are nodes, too, without a version.
pub(super) fn under(root: &Path) -> Vec<Node> {
    let folder = root.join(NODES);
    let node = |number: String| {
        let properties = text(&folder.join(&number).join("properties"));
        let value = |name: &str| -> u32 {
            let line = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let (version, simds) = (value("gfx_target_version"), value("simd_count"));
        let compute_units = simds / value("simd_per_cu").max(1);
        (version > 0 && simds > 0).then(|| Node { number, arch: arch_of(version), compute_units })
    };
    names(&folder).into_iter().filter_map(node).collect()
}

/// Returns the architecture of a version in the kernel driver's notation: 90010 is gfx90a.
fn arch_of(version: u32) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

/// Returns the architecture that a value of `HSA_OVERRIDE_GFX_VERSION` means: `11.0.0` is gfx1100.
pub(super) fn arch_of_override(value: &str) -> Option<String> {
    let parts: Vec<u32> = value.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [major, minor, stepping] = parts[..] else { return None };
    Some(format!("gfx{major}{minor:x}{stepping:x}"))
}
