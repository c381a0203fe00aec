//! A launch: workgroups one after the other, waves of a workgroup from barrier to barrier.

use crate::{CodeObject, Fault, Kernel, Memory, Trap};

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
    /// The explicit arguments, laid out as [`Kernel::args`] says; hidden ones are filled in by the simulator.
    pub kernarg: &'a [u8],
    pub order: Order,
}

/// The order in which workgroups, and waves between two barriers, are executed. A kernel whose result differs between
/// the two lacks a barrier or depends on the order of workgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Up,
    Down,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed, each counted once for a wave.
    pub wave_instructions: u64,
}

/// Executes a launch to its end.
pub fn run(_object: &CodeObject, launch: &Launch<'_>, _memory: &mut dyn Memory) -> Result<Stats, Trap> {
    Err(Trap {
        kernel: launch.kernel.name.clone(),
        address: launch.kernel.descriptor.entry,
        instruction: String::new(),
        workgroup: [0; 3],
        wave: 0,
        fault: Fault::Unsupported("execution".to_owned()),
    })
}
