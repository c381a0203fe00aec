//! Page-locked memory of the host, which belongs to the process.

use std::collections::HashMap;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::operation::HostAddress;
use crate::memory::Memory;

/// Pinned memory, and the device that was current at each allocation, for the counts.
pub(crate) struct HostMemory {
    pub memory: Memory,
    pub owners: HashMap<u64, usize>,
}

pub(crate) fn host_memory() -> &'static Mutex<HostMemory> {
    static HOST: OnceLock<Mutex<HostMemory>> = OnceLock::new();
    HOST.get_or_init(|| Mutex::new(HostMemory { memory: Memory::new(u64::MAX), owners: HashMap::new() }))
}

impl HostMemory {
    /// Checks that a copy may use a range. Memory that is not pinned always passes.
    pub(crate) fn check(&self, HostAddress(address): HostAddress, bytes: usize) -> Result<(), String> {
        let address = address as u64;
        if self.memory.was_freed(address) {
            return Err("the host's buffer was freed before the copy ran".to_owned());
        }
        if self.memory.contains(address, 1) && !self.memory.contains(address, bytes as u64) {
            return Err(format!("beyond the end of a pinned buffer: {}", self.memory.describe(address)));
        }
        Ok(())
    }
}
