//! The exported functions, with HIP's names, types and contracts; `hipsim_*` are the library's own functions.
//!
//! # Safety
//! Each function's contract is that of the HIP function of the same name: pointers to results are null or writable,
//! texts are zero-terminated, buffers are as large as their sizes say. Handles may be anything.
#![allow(clippy::missing_safety_doc)] // said above, once for all

pub mod blaslt;
pub mod device;
pub mod event;
mod fault;
pub mod graph;
pub mod inspect;
pub mod memory;
pub mod module;
pub mod rtc;
pub mod stream;

use std::ffi::c_void;

use crate::device::{Device, NULL_STREAM};
use crate::handle::{self, Kind};
use crate::runtime::{current, device};
use crate::status::{Result, Status};

/// Stores a result at the caller's address.
///
/// # Safety
/// `to` is null or writable.
unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, so writable; unaligned, because nothing is known of it.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

fn find(kind: Kind, handle: *const c_void) -> Result<(&'static Device, u64)> {
    let (index, id) = handle::unpack(kind, handle)?;
    Ok((device(index).map_err(|_| Status::INVALID_HANDLE)?, id))
}

fn find_stream(handle: *const c_void) -> Result<(&'static Device, u64)> {
    if handle.is_null() {
        return Ok((current()?, NULL_STREAM));
    }
    find(Kind::Stream, handle)
}
