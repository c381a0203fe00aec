//! The state that a running workgroup shares: memory, LDS, the clock.

use crate::coherence::Caches;
use crate::error::{Access, Fault, OutOfBounds, Space};
use crate::wave::Wave;
use crate::{Memory, RESERVED_ADDRESSES};

/// The address of the code object's first byte.
pub(crate) const IMAGE_BASE: u64 = RESERVED_ADDRESSES.start;
/// The address of the kernel's arguments.
pub(crate) const KERNARG_BASE: u64 = RESERVED_ADDRESSES.start + 0x40_0000_0000;

pub(crate) struct Context<'a> {
    pub memory: &'a mut dyn Memory,
    /// The loaded code object: code and constants, read-only.
    pub image: &'a [u8],
    pub kernarg: &'a [u8],
    pub lds: Vec<u8>,
    /// Instructions executed so far; the simulator has no other clock.
    pub clock: u64,
    /// `None` if workgroups see each other's stores at once.
    pub caches: Option<Caches>,
}

impl Context<'_> {
    /// Returns the address and content of the loadable bytes around a global address.
    pub(crate) fn readable(&mut self, address: u64) -> Option<(u64, &[u8])> {
        match address {
            _ if !RESERVED_ADDRESSES.contains(&address) => {
                self.memory.around(address).map(|(start, bytes)| (start, &*bytes))
            }
            KERNARG_BASE.. => Some((KERNARG_BASE, self.kernarg)),
            _ => Some((IMAGE_BASE, self.image)),
        }
    }

    /// Returns the address and content of the storable bytes around a global address.
    pub(crate) fn writable(&mut self, address: u64) -> Option<(u64, &mut [u8])> {
        if RESERVED_ADDRESSES.contains(&address) { None } else { self.memory.around(address) }
    }

    /// Loads bytes; `agent` bypasses all caches.
    pub(crate) fn load(&mut self, wave: &Wave, address: u64, bytes: &mut [u8], agent: bool) -> Result<(), OutOfBounds> {
        if let Some(caches) = self.caches.as_ref().filter(|_| !RESERVED_ADDRESSES.contains(&address)) {
            return caches.load(self.memory, &wave.cache, (address, bytes), agent);
        }
        let (start, content) = self.readable(address).ok_or(OutOfBounds)?;
        copy_from(content, address - start, bytes)
    }

    /// Stores bytes; with `through` they need no write-back.
    pub(crate) fn store(
        &mut self,
        wave: &mut Wave,
        address: u64,
        bytes: &[u8],
        through: bool,
    ) -> Result<(), OutOfBounds> {
        if let Some(caches) = self.caches.as_ref().filter(|_| !RESERVED_ADDRESSES.contains(&address)) {
            return caches.store(self.memory, &mut wave.cache, (address, bytes), through);
        }
        let (start, content) = self.writable(address).ok_or(OutOfBounds)?;
        copy_to(content, address - start, bytes)
    }

    /// Changes global memory by an atomic; `update` gets the old content.
    pub(crate) fn atomic(
        &mut self,
        wave: &mut Wave,
        address: u64,
        bytes: &mut [u8],
        update: impl FnOnce(&mut [u8]),
    ) -> Result<(), OutOfBounds> {
        if let Some(caches) = self.caches.as_mut().filter(|_| !RESERVED_ADDRESSES.contains(&address)) {
            return caches.atomic(self.memory, &mut wave.cache, (address, bytes), update);
        }
        let (start, content) = self.writable(address).ok_or(OutOfBounds)?;
        copy_from(content, address - start, bytes)?;
        update(bytes);
        copy_to(content, address - start, bytes)
    }

    /// Loads the same bytes for all lanes.
    pub(crate) fn load_scalar(&mut self, wave: &Wave, address: u64, bytes: &mut [u8]) -> Result<(), Box<Fault>> {
        let size = bytes.len();
        let result = match self.caches.as_mut().filter(|_| !RESERVED_ADDRESSES.contains(&address)) {
            Some(caches) => caches.load_scalar(self.memory, &wave.cache, (address, bytes)),
            None => self
                .readable(address)
                .ok_or(OutOfBounds)
                .and_then(|(start, content)| copy_from(content, address - start, bytes)),
        };
        result.map_err(|_| {
            let (space, access) = (Space::Global, Access::Load);
            Box::new(Fault::OutOfBounds { space, access, address, bytes: size, lane: 0 })
        })
    }
}

/// Copies from a buffer, if the range is inside.
pub(crate) fn copy_from(content: &[u8], offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
    let start = usize::try_from(offset).map_err(|_| OutOfBounds)?;
    let end = start.checked_add(bytes.len()).ok_or(OutOfBounds)?;
    bytes.copy_from_slice(content.get(start..end).ok_or(OutOfBounds)?);
    Ok(())
}

/// Copies into a buffer, if the range is inside.
pub(crate) fn copy_to(content: &mut [u8], offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
    let start = usize::try_from(offset).map_err(|_| OutOfBounds)?;
    let end = start.checked_add(bytes.len()).ok_or(OutOfBounds)?;
    content.get_mut(start..end).ok_or(OutOfBounds)?.copy_from_slice(bytes);
    Ok(())
}
