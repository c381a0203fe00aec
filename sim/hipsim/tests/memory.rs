//! Devices, device memory and pinned memory.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CStr;
use std::ptr::null_mut;
use std::thread;

use common::{Gpu, ok};
use hipsim::Status;
use hipsim::api::inspect::{hipsim_check, hipsim_open, hipsim_revive};
use hipsim::api::{device::*, graph::*, memory::*, stream::*};

const DEVICES: &CStr = c"gfx1100,gfx942,gfx1201,cpu-wave32,cpu-wave64,gfx90a,gfx1100";

fn attribute(gpu: &Gpu, number: i32) -> i32 {
    let mut value = 0;
    ok(unsafe { hipDeviceGetAttribute(&mut value, number, gpu.0) });
    value
}

#[test]
fn devices_are_what_was_asked_for() {
    let gpu = Gpu::new(DEVICES, 1);
    let mut count = 0;
    ok(unsafe { hipGetDeviceCount(&mut count) });
    assert_eq!(count, 7);
    assert_eq!(gpu.arch(), "gfx942:sramecc+:xnack-");
    assert_eq!((attribute(&gpu, 87), attribute(&gpu, 63), attribute(&gpu, 74)), (64, 304, 64 << 10));
    assert_eq!(hipSetDevice(7), Status::INVALID_DEVICE);
    assert_eq!(hipSetDevice(-1), Status::INVALID_DEVICE);
    assert_eq!(unsafe { hipsim_open(c"gfx1030".as_ptr()) }, Status::ILLEGAL_STATE);
    let mut name = [0; 16];
    ok(unsafe { hipDeviceGetName(name.as_mut_ptr(), 16, 3) });
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"hipsim cpu-wave");
    let mut properties = [0u8; 1472];
    ok(unsafe { hipGetDevicePropertiesR0600(properties.as_mut_ptr(), 0) });
    assert_eq!(properties[308..312], 32u32.to_le_bytes());
    assert_eq!(properties[388..392], 96u32.to_le_bytes());
    assert_eq!(unsafe { CStr::from_ptr(hipGetErrorName(Status::OUT_OF_MEMORY)) }, c"hipErrorOutOfMemory");
}

#[test]
fn the_current_device_is_the_threads_own() {
    let _gpu = Gpu::new(DEVICES, 2);
    let current = || {
        let mut device = -1;
        ok(unsafe { hipGetDevice(&mut device) });
        device
    };
    assert_eq!(current(), 2);
    thread::spawn(move || assert_eq!(current(), 0)).join().unwrap();
}

#[test]
fn memory_is_counted_poisoned_and_limited() {
    let gpu = Gpu::new(DEVICES, 0);
    let (mut free, mut total) = (0, 0);
    let a = gpu.malloc(1000);
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    assert_eq!((total, total - free), (1 << 30, 1000));
    let stream = gpu.stream();
    assert!(gpu.read::<f32>(a, 250, stream).iter().all(|value| value.is_nan()));
    assert_eq!(unsafe { hipMalloc(&mut 0, total) }, Status::OUT_OF_MEMORY);
    let live = gpu.live();
    assert_eq!((live.allocations, live.bytes, live.streams), (1, 1000, 1));
    assert_eq!(gpu.download(&mut [0u8; 8], a + 993, stream), Status::INVALID_VALUE);
    assert_eq!(hipFree(a + 256), Status::INVALID_VALUE);
    ok(hipFree(a));
    ok(hipFree(0));
    assert_eq!(hipFree(a), Status::INVALID_VALUE);
    assert_eq!(gpu.upload(a, &[0u8], stream), Status::INVALID_VALUE);
    ok(hipStreamDestroy(stream));
    assert_eq!(hipStreamDestroy(stream), Status::INVALID_HANDLE);
    assert_eq!(gpu.live(), Default::default());
}

#[test]
fn a_write_outside_an_allocation_is_found_at_its_free() {
    let gpu = Gpu::new(DEVICES, 3);
    let a = gpu.malloc(100);
    ok(hipsim_check(gpu.0));
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(a as usize + 100).write(0) };
    assert_eq!(hipFree(a), Status::ILLEGAL_ADDRESS);
    assert!(gpu.fault().contains("at its offset 100"), "{}", gpu.fault());
    assert_eq!(unsafe { hipMalloc(&mut 0, 1) }, Status::ILLEGAL_ADDRESS, "a fault stays");
    assert_eq!(gpu.live().allocations, 0);
    ok(hipsim_revive(gpu.0));
    let b = gpu.malloc(100);
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(b as usize - 1).write(0) };
    assert_eq!(hipsim_check(gpu.0), Status::ILLEGAL_ADDRESS);
}

#[test]
fn a_free_waits_for_the_device() {
    let gpu = Gpu::new(DEVICES, 4);
    let stream = gpu.stream();
    let (a, b) = (gpu.malloc(4), gpu.malloc(4));
    let target = gpu.pinned(4);
    target.fill(0);
    ok(unsafe { hipMemsetD8Async(a, 1, 4, stream) });
    ok(gpu.download(target, a, stream));
    ok(hipFree(b));
    assert_eq!(target, [1; 4]);
}

#[test]
fn an_operation_on_freed_memory_is_a_fault() {
    let gpu = Gpu::new(DEVICES, 6);
    let stream = gpu.stream();
    let a = gpu.malloc(64);
    ok(hipStreamBeginCapture(stream, 1));
    ok(unsafe { hipMemsetD8Async(a, 1, 64, stream) });
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
    ok(hipFree(a));
    ok(hipGraphLaunch(executable, stream));
    ok(hipGraphLaunch(executable, stream));
    assert_eq!(hipStreamSynchronize(stream), Status::ILLEGAL_ADDRESS);
    assert!(gpu.fault().contains("freed"), "{}", gpu.fault());
    assert_eq!(gpu.live().operations, 0);
}

#[test]
fn a_queued_copy_from_a_freed_pinned_buffer_is_a_fault() {
    let gpu = Gpu::new(DEVICES, 5);
    let stream = gpu.stream();
    let a = gpu.malloc(64);
    let pinned = gpu.pinned(64);
    assert_eq!(gpu.live().host_allocations, 1);
    pinned.fill(3);
    ok(gpu.upload(a, pinned, stream));
    ok(hipHostFree(pinned.as_mut_ptr().cast()));
    assert_eq!(gpu.live().host_allocations, 0);
    assert_eq!(hipStreamSynchronize(stream), Status::ILLEGAL_ADDRESS);
    assert!(gpu.fault().contains("freed before the copy ran"), "{}", gpu.fault());
    assert_eq!(unsafe { hipHostMalloc(null_mut(), 1, 0) }, Status::ILLEGAL_ADDRESS);
}
