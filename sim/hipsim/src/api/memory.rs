//! Device memory, pinned memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};

use super::fault::strike;
use super::{find_stream, put};
use crate::device::Device;
use crate::guard;
use crate::log::say;
use crate::runtime::current;
use crate::status::{Result, Status};
use crate::streams::host_memory::host_memory;
use crate::streams::operation::{HostAddress, Operation};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(address: *mut u64, bytes: usize) -> Status {
    let allocate = || {
        strike("hipMalloc")?;
        let mut state = current()?.working_uncaptured()?;
        let start = if bytes == 0 { 0 } else { state.memory.allocate(bytes as u64)? };
        // SAFETY: the module's contract.
        unsafe { put(address, start) }
    };
    allocate().into()
}

/// Frees memory. As AMD documents, it first waits for all work on the device.
#[unsafe(no_mangle)]
pub extern "C" fn hipFree(address: u64) -> Status {
    let free = || {
        if address == 0 {
            return Ok(());
        }
        let device = current()?;
        let mut state = device.lock();
        state.refuse_to_capturer()?;
        let used = state.user_of(address).map(|queued| format!("hipFree of {address:#x} before it has run: {queued}"));
        if let Some(text) = used {
            // The memory is freed in any case.
            let _ = device.fault(&mut state, Status::ILLEGAL_STATE, text);
        }
        // A fault on the way is kept in the state, but the memory is still freed: tests can then tell leaks from
        // failures.
        let _ = device.synchronize_all(&mut state);
        let damage = state.memory.free(address)?;
        if let Some(text) = damage {
            return Err(device.fault(&mut state, Status::ILLEGAL_ADDRESS, format!("hipFree: {text}")));
        }
        state.fault.as_ref().map_or(Ok(()), |(status, _)| Err(*status))
    };
    free().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostMalloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Status {
    let allocate = || {
        let device = current()?;
        drop(device.working_uncaptured()?);
        let mut host = host_memory().lock();
        let start = if bytes == 0 { 0 } else { host.memory.allocate(bytes as u64)? };
        if start != 0 {
            host.owners.insert(start, device.index);
        }
        // SAFETY: the module's contract.
        unsafe { put(address, std::ptr::with_exposed_provenance_mut(start as usize)) }
    };
    allocate().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipHostFree(address: *mut c_void) -> Status {
    let free = || {
        if address.is_null() {
            return Ok(());
        }
        let device = current()?;
        device.lock().refuse_to_capturer()?;
        let start = address.expose_provenance() as u64;
        let mut host = host_memory().lock();
        if let Some((start, end)) = host.memory.extent(start) {
            guard::forget(start..end);
        }
        let damage = host.memory.free(start)?;
        host.owners.remove(&start);
        if let Some(text) = damage {
            say(format_args!("hipHostFree: {text}"));
            return Err(Status::ILLEGAL_ADDRESS);
        }
        Ok(())
    };
    free().into()
}

/// Page-locked memory has the same address for kernels and the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostGetDevicePointer(there: *mut u64, address: *mut c_void, flags: c_uint) -> Status {
    let find = || {
        let start = address.expose_provenance() as u64;
        if flags != 0 || !host_memory().lock().memory.contains(start, 1) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the module's contract.
        unsafe { put(there, start) }
    };
    find().into()
}

/// The two sides of a copy.
#[derive(Clone, Copy)]
enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
}

/// Returns the operation if its device side lies in allocations. The host side is not checked before it runs.
fn copy(
    device: &Device,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    direction: Direction,
) -> Result<Operation> {
    let (to, from) = (to.expose_provenance(), from.expose_provenance());
    let state = device.working()?;
    let on_device = |address: usize| state.memory.contains(address as u64, bytes as u64);
    let (known, operation) = match direction {
        Direction::ToDevice => (on_device(to), Operation::ToDevice { to: to as u64, from: HostAddress(from), bytes }),
        Direction::ToHost => (on_device(from), Operation::ToHost { to: HostAddress(to), from: from as u64, bytes }),
        Direction::OnDevice => {
            (on_device(to) && on_device(from), Operation::OnDevice { to: to as u64, from: from as u64, bytes })
        }
    };
    if known && to != 0 && from != 0 { Ok(operation) } else { Err(Status::INVALID_VALUE) }
}

fn enqueue_copy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *const c_void,
    direction: Direction,
) -> Status {
    let enqueue = || {
        let (device, stream) = find_stream(stream)?;
        if bytes == 0 {
            return device.working().map(|_| ());
        }
        let operation = copy(device, to, from, bytes, direction)?;
        device.enqueue(&mut *device.working()?, stream, operation)
    };
    enqueue().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Status {
    match kind {
        1 => enqueue_copy(to, from, bytes, stream, Direction::ToDevice),
        2 => enqueue_copy(to, from, bytes, stream, Direction::ToHost),
        3 => enqueue_copy(to, from, bytes, stream, Direction::OnDevice),
        _ => Status::INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyHtoDAsync(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) -> Status {
    enqueue_copy(on_device(to), from, bytes, stream, Direction::ToDevice)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyDtoHAsync(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) -> Status {
    enqueue_copy(to, on_device(from), bytes, stream, Direction::ToHost)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> Status {
    enqueue_copy(on_device(to), on_device(from), bytes, stream, Direction::OnDevice)
}

fn on_device(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemsetAsync(to: *mut c_void, value: c_int, bytes: usize, stream: *mut c_void) -> Status {
    let enqueue = || {
        let (device, stream) = find_stream(stream)?;
        let mut state = device.working()?;
        let to = to.expose_provenance() as u64;
        if bytes == 0 {
            return Ok(());
        }
        if !state.memory.contains(to, bytes as u64) {
            return Err(Status::INVALID_VALUE);
        }
        device.enqueue(&mut state, stream, Operation::Fill { to, byte: value as u8, bytes })
    };
    enqueue().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemsetD8Async(to: u64, value: u8, bytes: usize, stream: *mut c_void) -> Status {
    // SAFETY: the same contract.
    unsafe { hipMemsetAsync(on_device(to), c_int::from(value), bytes, stream) }
}
