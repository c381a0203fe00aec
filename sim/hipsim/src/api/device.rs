//! Devices: count, choice, properties; names of errors.

use std::ffi::{c_char, c_int, c_uint};

use super::fault::strike;
use super::put;
use crate::device::Device;
use crate::runtime::{current, device_of, devices, set_current};
use crate::status::{Result, Status};
use crate::target::{MAX_GRID, MAX_THREADS_PER_BLOCK};

/// 6.4, the version whose structures this library imitates.
const VERSION: c_int = 60_443_484;

#[unsafe(no_mangle)]
pub extern "C" fn hipInit(flags: c_uint) -> Status {
    let check = || {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if !strike("hipInit")? {
            devices()?;
        }
        Ok(())
    };
    check().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the module's contract.
    unsafe { put(version, VERSION) }.into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the module's contract.
    unsafe { put(version, VERSION) }.into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> Status {
    let devices = devices();
    let found = devices.map_or(0, |devices| devices.len() as c_int);
    // SAFETY: the module's contract.
    devices.and(unsafe { put(count, found) }).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipSetDevice(device: c_int) -> Status {
    set_current(device).into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> Status {
    // SAFETY: the module's contract.
    current().and_then(|current| unsafe { put(device, current.index as c_int) }).into()
}

fn name(device: &Device) -> String {
    format!("hipsim {}", device.target.name)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(text: *mut c_char, length: c_int, device: c_int) -> Status {
    // SAFETY: the module's contract.
    device_of(device).and_then(|device| unsafe { put_text(text, length, &name(device)) }).into()
}

/// Writes the position on the PCI bus: domain, bus, device and function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) -> Status {
    // SAFETY: the module's contract.
    device_of(device).and_then(|device| unsafe { put_text(text, length, &bus(device)) }).into()
}

fn bus(device: &Device) -> String {
    format!("0000:{:02X}:00.0", device.index)
}

/// Writes a text with its terminating zero, truncated to `length` bytes.
///
/// # Safety
/// `to` is null, or `length` bytes are writable there.
unsafe fn put_text(to: *mut c_char, length: c_int, text: &str) -> Result<()> {
    if to.is_null() || length < 1 {
        return Err(Status::INVALID_VALUE);
    }
    let count = text.len().min(length as usize - 1);
    // SAFETY: `length` bytes are writable, and one of them stays for the zero.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
        to.add(count).write(0);
    }
    Ok(())
}

/// hipDeviceAttribute_t, as numbered since ROCm 5.
fn attribute(device: &Device, number: c_int) -> Result<u32> {
    Ok(match number {
        16 => device.integrated.into(),      // Integrated
        19 => device.target.l2_bytes,        // L2CacheSize
        23 => version_digits(device)?.0,     // ComputeCapabilityMajor
        61 => version_digits(device)?.1,     // ComputeCapabilityMinor
        26..=28 => MAX_THREADS_PER_BLOCK,    // MaxBlockDimX, Y, Z
        29..=31 => MAX_GRID,                 // MaxGridDimX, Y, Z
        56 => MAX_THREADS_PER_BLOCK,         // MaxThreadsPerBlock
        57 => 2048,                          // MaxThreadsPerMultiProcessor
        63 => device.target.multiprocessors, // MultiprocessorCount
        74 => device.target.lds_bytes,       // MaxSharedMemoryPerBlock
        87 => device.target.wave_size,       // WarpSize
        _ => return Err(Status::INVALID_VALUE),
    })
}

/// gfx1100 is 11.0, gfx942 is 9.4; the CPU has none.
fn version_digits(device: &Device) -> Result<(u32, u32)> {
    let Some(digits) = device.target.name.strip_prefix("gfx") else { return Ok((0, 0)) };
    let (major, rest) = digits.split_at(digits.len() - 2);
    let minor = rest[..1].parse().map_err(|_| Status::INVALID_VALUE)?;
    Ok((major.parse().map_err(|_| Status::INVALID_VALUE)?, minor))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) -> Status {
    let found = device_of(device).and_then(|device| attribute(device, number));
    // SAFETY: the module's contract.
    found.and_then(|found| unsafe { put(value, found.cast_signed()) }).into()
}

/// hipDeviceProp_tR0600: 1472 bytes; these fields are filled in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8, device: c_int) -> Status {
    let read = || {
        let device = device_of(device)?;
        let target = device.target;
        let (major, minor) = version_digits(device)?;
        let mut bytes = [0u8; 1472];
        let mut field = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        field(0, name(device).as_bytes());
        field(288, &device.lock().memory.capacity().to_le_bytes()); // totalGlobalMem
        field(296, &u64::from(target.lds_bytes).to_le_bytes()); // sharedMemPerBlock
        field(308, &target.wave_size.to_le_bytes()); // warpSize
        field(320, &MAX_THREADS_PER_BLOCK.to_le_bytes()); // maxThreadsPerBlock
        field(360, &major.to_le_bytes());
        field(364, &minor.to_le_bytes());
        field(388, &target.multiprocessors.to_le_bytes()); // multiProcessorCount
        field(1160, format!("{}{}", target.name, target.features).as_bytes()); // gcnArchName
        // SAFETY: the module's contract; the structure has this size.
        unsafe { put(properties.cast(), bytes) }
    };
    read().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    let read = || {
        strike("hipMemGetInfo")?;
        let state = current()?.working()?;
        let (capacity, used) = (state.memory.capacity(), state.memory.used());
        // SAFETY: the module's contract.
        unsafe { put(free, (capacity - used) as usize).and(put(total, capacity as usize)) }
    };
    read().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(status: Status) -> *const c_char {
    status.name().as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(status: Status) -> *const c_char {
    status.text().as_ptr()
}
