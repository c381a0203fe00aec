//! The library's own functions, for tests: its devices, their live objects, and their faults.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{find, put};
use crate::device::Wait;
use crate::handle::Kind;
use crate::module::Module;
use crate::runtime::{device_of, open};
use crate::status::{Result, Status};
use crate::streams::host_memory::host_memory;

/// Counts of the live objects of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    pub allocations: u64,
    pub bytes: u64,
    /// Pinned memory allocated while the device was current.
    pub host_allocations: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    /// Graphs and executable graphs.
    pub graphs: u64,
    /// Operations that have not run.
    pub operations: u64,
}

/// Creates the devices of a list, in the format of `HIPSIM_TARGET`, if this process has made no HIP call yet.
///
/// Returns an error if other devices already exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipsim_open(list: *const c_char) -> Status {
    let configure = || {
        // SAFETY: the module's contract.
        let list = unsafe { CStr::from_ptr(list) }.to_str().map_err(|_| Status::INVALID_VALUE)?;
        let devices = open(Some(list))?;
        let wanted = list.split(',').map(|entry| entry.trim().split(':').next().unwrap_or_default());
        let agree = wanted.eq(devices.iter().map(|device| device.target.name));
        if agree { Ok(()) } else { Err(Status::ILLEGAL_STATE) }
    };
    configure().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipsim_live(device: c_int, live: *mut Live) -> Status {
    let count = || {
        let device = device_of(device)?;
        let state = device.lock();
        let host = host_memory().lock();
        let found = Live {
            allocations: state.memory.count() as u64,
            bytes: state.memory.used(),
            host_allocations: host.owners.values().filter(|owner| **owner == device.index).count() as u64,
            streams: state.streams.live.len() as u64 - 1,
            events: state.events.len() as u64,
            modules: state.modules.len() as u64,
            graphs: (state.graphs.len() + state.executables.len()) as u64,
            operations: state.streams.live.values().map(|stream| stream.waiting.len() as u64).sum(),
        };
        // SAFETY: the module's contract.
        unsafe { put(live, found) }
    };
    count().into()
}

/// Checks for writes outside the allocations of a device and outside pinned memory.
#[unsafe(no_mangle)]
pub extern "C" fn hipsim_check(device: c_int) -> Status {
    let check = || {
        let device = device_of(device)?;
        let mut state = device.lock();
        let damage = state.memory.damage().or_else(|| host_memory().lock().memory.damage());
        damage.map_or(Ok(()), |text| Err(device.fault(&mut state, Status::ILLEGAL_ADDRESS, text)))
    };
    check().into()
}

/// Returns the text of a device's fatal fault, truncated to `length` bytes with its zero; empty if it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipsim_fault(device: c_int, text: *mut c_char, length: usize) -> Status {
    let copy = || {
        let state = device_of(device)?.lock();
        let fault = state.fault.as_ref().map_or("", |(_, text)| text);
        let count = fault.len().min(length.checked_sub(1).ok_or(Status::INVALID_VALUE)?);
        // SAFETY: the module's contract: `length` bytes are writable.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(fault.as_ptr(), count);
            text.add(count).write(0);
        }
        Ok(())
    };
    copy().into()
}

/// Revives a device after a fatal fault. Its allocations stay.
#[unsafe(no_mangle)]
pub extern "C" fn hipsim_revive(device: c_int) -> Status {
    device_of(device).map(|device| device.lock().fault = None).into()
}

/// Makes calls of one kind (1 `hipStreamSynchronize`, 2 `hipEventSynchronize`, 3 `hipStreamWaitEvent`) succeed without
/// waiting; 0 lets all of them wait again. A program that needs the wait must then end in a fault that names the
/// unordered operations.
#[unsafe(no_mangle)]
pub extern "C" fn hipsim_without(device: c_int, wait: c_uint) -> Status {
    let set = || {
        let without = match wait {
            0 => None,
            number => Some(Wait::parse(number).ok_or(Status::INVALID_VALUE)?),
        };
        device_of(device)?.lock().without = without;
        Ok(())
    };
    set().into()
}

/// Runs the first operation of each graph after the others; 0 restores the order. The others then read the results of
/// the graph's previous replay.
#[unsafe(no_mangle)]
pub extern "C" fn hipsim_late_graphs(device: c_int, late: c_uint) -> Status {
    device_of(device).map(|device| device.lock().late_graphs = late != 0).into()
}

/// Returns the number of block barriers in a module's source, for `-DGPU_DROP_BARRIER=n`; only CPU modules have it. Bit
/// n of `present` is 1 if barrier n was compiled, for the first 64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipsim_barriers(module: *mut c_void, count: *mut c_int, present: *mut u64) -> Status {
    let read = || -> Result<()> {
        let (device, id) = find(Kind::Module, module)?;
        let state = device.lock();
        let Module::Cpu(object) = &**state.modules.get(&id).ok_or(Status::INVALID_HANDLE)? else {
            return Err(Status::NOT_SUPPORTED);
        };
        let barriers = object.barriers();
        let bit = |(n, compiled): (usize, &bool)| u64::from(*compiled && n < 64) << (n % 64);
        let mask = barriers.iter().enumerate().map(bit).sum::<u64>();
        // SAFETY: the module's contract.
        unsafe { put(count, barriers.len() as c_int).and(put(present, mask)) }
    };
    read().into()
}
