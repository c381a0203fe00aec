//! The description of a launch: a kernel, its sizes and arguments, and the order of execution.

use crate::{Coherence, Kernel};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// Number of workgroups.
    pub grid: [u32; 3],
    /// Work-items of a workgroup.
    pub block: [u32; 3],
    /// Bytes of LDS beyond the kernel's static ones.
    pub dynamic_lds: u32,
    /// The explicit arguments, laid out as in [`Kernel::args`]; the simulator fills in the hidden ones.
    pub kernarg: &'a [u8],
    pub order: Order,
    pub coherence: Coherence,
}

/// The execution order of workgroups, and of waves between two barriers. A kernel whose result differs between the two
/// orders lacks a barrier or depends on the order of workgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Up,
    Down,
}
