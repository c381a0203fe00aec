//! Handles of programs: not pointers but numbers, which hold the kind and the device of an object. They are never
//! reused, so that a handle of a destroyed object is recognised.

use std::ffi::c_void;

use crate::status::{Result, Status};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Stream = 0xa1,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
}

/// Packs `kind` into the highest byte (no user-space address has it set), then the device, then a number.
pub(crate) fn pack(kind: Kind, device: usize, id: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(((kind as u64) << 56 | (device as u64) << 48 | id) as usize)
}

/// Returns the device and the number of a handle of this kind.
pub(crate) fn unpack(kind: Kind, handle: *const c_void) -> Result<(usize, u64)> {
    let bits = handle.addr() as u64;
    if bits >> 56 != kind as u64 {
        return Err(Status::INVALID_HANDLE);
    }
    Ok((((bits >> 48) & 0xff) as usize, bits & 0xffff_ffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_kind() {
        let handle = pack(Kind::Event, 3, 77);
        assert_eq!(unpack(Kind::Event, handle), Ok((3, 77)));
        assert_eq!(unpack(Kind::Stream, handle), Err(Status::INVALID_HANDLE));
        assert_eq!(unpack(Kind::Stream, std::ptr::null()), Err(Status::INVALID_HANDLE));
    }
}
