//! What a workgroup shares while it runs: memory, LDS, the clock.

use crate::error::{Access, Fault, OutOfBounds, Space};
use crate::{Memory, RESERVED_ADDRESSES};

/// Address of the code object's first byte.
pub const IMAGE_BASE: u64 = RESERVED_ADDRESSES.start;
/// Address of the kernel's arguments.
pub const KERNARG_BASE: u64 = RESERVED_ADDRESSES.start + 0x40_0000_0000;

pub struct Context<'a> {
    pub memory: &'a mut dyn Memory,
    /// The loaded code object: code and constants, read-only.
    pub image: &'a [u8],
    pub kernarg: &'a [u8],
    pub lds: Vec<u8>,
    /// Instructions executed so far: the only clock there is.
    pub clock: u64,
}

impl Context<'_> {
    pub fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        if !RESERVED_ADDRESSES.contains(&address) {
            return self.memory.load(address, bytes);
        }
        let (base, content) = match address {
            KERNARG_BASE.. => (KERNARG_BASE, self.kernarg),
            _ => (IMAGE_BASE, self.image),
        };
        copy_from(content, address - base, bytes)
    }

    pub fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        if RESERVED_ADDRESSES.contains(&address) {
            return Err(OutOfBounds);
        }
        self.memory.store(address, bytes)
    }

    /// A load that is the same for all lanes.
    pub fn load_scalar(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Box<Fault>> {
        let size = bytes.len();
        self.load(address, bytes).map_err(|_| {
            let (space, access) = (Space::Global, Access::Load);
            Box::new(Fault::OutOfBounds { space, access, address, bytes: size, lane: 0 })
        })
    }
}

/// Copies out of a buffer, if all of it is inside.
pub fn copy_from(content: &[u8], offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
    let start = usize::try_from(offset).map_err(|_| OutOfBounds)?;
    let end = start.checked_add(bytes.len()).ok_or(OutOfBounds)?;
    let piece = content.get(start..end).ok_or(OutOfBounds)?;
    // The usual sizes without a call.
    match bytes.len() {
        4 => bytes[..4].copy_from_slice(&piece[..4]),
        8 => bytes[..8].copy_from_slice(&piece[..8]),
        16 => bytes[..16].copy_from_slice(&piece[..16]),
        _ => bytes.copy_from_slice(piece),
    }
    Ok(())
}

/// Copies into a buffer, if all of it is inside.
pub fn copy_to(content: &mut [u8], offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
    let start = usize::try_from(offset).map_err(|_| OutOfBounds)?;
    let end = start.checked_add(bytes.len()).ok_or(OutOfBounds)?;
    content.get_mut(start..end).ok_or(OutOfBounds)?.copy_from_slice(bytes);
    Ok(())
}
