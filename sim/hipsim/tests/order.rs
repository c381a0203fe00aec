//! Tests the order of operations: a program that does not wait ends in a fault, which names both unordered operations.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CStr;
use std::ptr::null_mut;

use common::{Gpu, ScaleArgs, ok};
use hipsim::Status;
use hipsim::api::inspect::{hipsim_revive, hipsim_without};
use hipsim::api::{event::*, graph::*, memory::*, stream::*};

const DEVICES: &CStr =
    c"cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,cpu-wave32,\
      cpu-wave32";

/// Checks that the fault contains all given parts.
#[track_caller]
fn expect(gpu: &Gpu, parts: &[&str]) {
    let fault = gpu.fault();
    for part in parts {
        assert!(fault.contains(part), "{part:?} is not in {fault:?}");
    }
}

#[test]
fn the_host_writes_what_a_queued_copy_reads() {
    let gpu = Gpu::new(DEVICES, 0);
    let (stream, a) = (gpu.stream(), gpu.malloc(4));
    let source = gpu.pinned(8192);
    source.fill(1);
    ok(gpu.upload(a, &source[4096..4100], stream));
    // Reading is allowed, and so is writing next to it.
    assert_eq!(source[4096], 1);
    source[0] = 7;
    source[4097] = 2;
    assert_eq!(hipStreamSynchronize(stream), Status::ILLEGAL_STATE);
    let address = format!("{:#x}", &raw const source[4097] as usize);
    expect(&gpu, &[&address, "the host used", "order-", "call 1, ThreadId", "copy of 4 bytes from the host's"]);
}

/// The kernel runs alone, and in a graph.
#[test]
fn the_host_writes_what_a_queued_kernel_reads() {
    let gpu = Gpu::new(DEVICES, 8);
    let stream = gpu.stream();
    let (_, increment) = gpu.kernel(c"increment", &[]);
    let source = gpu.pinned(400);
    source.fill(0);
    let mut there = 0;
    assert_eq!(unsafe { hipHostGetDevicePointer(&mut there, source.as_mut_ptr().cast(), 1) }, Status::INVALID_VALUE);
    assert_eq!(unsafe { hipHostGetDevicePointer(&mut there, &raw mut there as _, 0) }, Status::INVALID_VALUE);
    ok(unsafe { hipHostGetDevicePointer(&mut there, source.as_mut_ptr().cast(), 0) });
    let args = ScaleArgs { x: there, out: there, rows: 1, cols: 100, scale: 0.0 };
    for write in [false, true] {
        ok(gpu.launch(increment, [2, 1, 1], 64, &args, stream));
        if write {
            source[40] = 1;
        }
        let status = hipStreamSynchronize(stream);
        assert_eq!(status, if write { Status::ILLEGAL_STATE } else { Status::SUCCESS });
    }
    let address = format!("{:#x}", &raw const source[40] as usize);
    expect(&gpu, &[&address, "the host used", "order-", "launch of increment"]);
    ok(hipsim_revive(gpu.0));

    ok(hipStreamBeginCapture(stream, 1));
    ok(gpu.launch(increment, [2, 1, 1], 64, &args, stream));
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
    // The graph has not started.
    source.fill(0);
    ok(hipGraphLaunch(executable, stream));
    ok(hipStreamSynchronize(stream));
    ok(hipGraphLaunch(executable, stream));
    source[80] = 1;
    assert_eq!(hipStreamSynchronize(stream), Status::ILLEGAL_STATE);
    expect(&gpu, &["the host used", "graph of 1 operations"]);
}

#[test]
fn the_host_reads_what_a_queued_copy_brings() {
    let gpu = Gpu::new(DEVICES, 1);
    let (stream, a) = (gpu.stream(), gpu.malloc(4));
    let target = gpu.pinned(4);
    target.fill(0);
    ok(unsafe { hipMemsetD8Async(a, 1, 4, stream) });
    ok(gpu.download(target, a, stream));
    assert_eq!(std::hint::black_box(&*target)[0], 0);
    assert_eq!(hipStreamSynchronize(stream), Status::ILLEGAL_STATE);
    expect(&gpu, &["the host used", "call 2, ThreadId", "copy of 4 bytes from", "to the host's"]);
}

#[test]
fn page_locked_memory_is_free_again_once_the_copy_has_run() {
    let gpu = Gpu::new(DEVICES, 2);
    let (stream, a) = (gpu.stream(), gpu.malloc(4));
    let (source, target) = (gpu.pinned(4), gpu.pinned(4));
    for round in 0..600 {
        source.fill(round as u8);
        ok(gpu.upload(a, source, stream));
        ok(gpu.download(target, a, stream));
        ok(hipStreamSynchronize(stream));
        assert_eq!(target, [round as u8; 4]);
    }
    ok(gpu.upload(a, source, stream));
    ok(hipStreamDestroy(stream));
    source.fill(3);
}

#[test]
fn two_streams_without_an_event_between_them() {
    let gpu = Gpu::new(DEVICES, 3);
    let (first, second, a) = (gpu.stream(), gpu.stream(), gpu.malloc(64));
    ok(unsafe { hipMemsetD8Async(a, 1, 32, first) });
    // A fill of the adjacent bytes does not conflict.
    ok(unsafe { hipMemsetD8Async(a + 32, 1, 32, second) });
    assert_eq!(unsafe { hipMemcpyDtoDAsync(a + 48, a + 31, 1, second) }, Status::ILLEGAL_STATE);
    let address = format!("two streams use {:#x}", a + 31);
    expect(&gpu, &[&address, "call 1, ThreadId", "fill of 32 bytes", "call 3, ThreadId", "copy of 1 bytes"]);
}

#[test]
fn an_event_orders_what_came_before_it_for_who_waits() {
    let gpu = Gpu::new(DEVICES, 4);
    let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
    let events = [gpu.event(), gpu.event()];
    let a = gpu.malloc(4);
    // The streams form a chain from the first to the third.
    for (at, stream) in streams.into_iter().enumerate() {
        if at > 0 {
            ok(hipStreamWaitEvent(stream, events[at - 1], 0));
        }
        ok(unsafe { hipMemsetD8Async(a, at as u8, 4, stream) });
        if at < 2 {
            ok(hipEventRecord(events[at], stream));
        }
    }
    // An operation that somebody has waited for precedes all later ones.
    assert_eq!(gpu.read::<u8>(a, 4, streams[2]), [2; 4]);
    ok(unsafe { hipMemsetD8Async(a, 5, 4, streams[0]) });
    ok(hipStreamSynchronize(streams[0]));
    assert_eq!(gpu.read::<u8>(a, 4, streams[1]), [5; 4]);
    // An operation after the event is not ordered to the stream that waits for the event.
    ok(hipEventRecord(events[0], streams[0]));
    ok(unsafe { hipMemsetD8Async(a, 6, 4, streams[0]) });
    ok(hipStreamWaitEvent(streams[1], events[0], 0));
    assert_eq!(unsafe { hipMemsetD8Async(a, 7, 4, streams[1]) }, Status::ILLEGAL_STATE);
    expect(&gpu, &["two streams use"]);
}

#[test]
fn a_kernel_uses_what_its_arguments_point_to() {
    let gpu = Gpu::new(DEVICES, 5);
    let (first, second) = (gpu.stream(), gpu.stream());
    let (_, increment) = gpu.kernel(c"increment", &[]);
    let a = gpu.malloc(400);
    let args = ScaleArgs { x: a, out: a, rows: 1, cols: 100, scale: 0.0 };
    ok(hipStreamBeginCapture(first, 1));
    ok(gpu.launch(increment, [2, 1, 1], 64, &args, first));
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok(unsafe { hipStreamEndCapture(first, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphLaunch(executable, first));
    assert_eq!(gpu.launch(increment, [2, 1, 1], 64, &args, second), Status::ILLEGAL_STATE);
    expect(&gpu, &["graph of 1 operations", "launch of increment"]);
}

/// A stream joins a capture by an event, and has to be waited for before the end.
#[test]
fn a_capture_has_several_streams() {
    let gpu = Gpu::new(DEVICES, 10);
    let (first, second) = (gpu.stream(), gpu.stream());
    let (begun, done) = (gpu.event(), gpu.event());
    let a = gpu.malloc(8);
    for joins in [true, false] {
        ok(hipStreamBeginCapture(first, 1));
        ok(unsafe { hipMemsetD8Async(a, 1, 8, first) });
        ok(hipEventRecord(begun, first));
        ok(hipStreamWaitEvent(second, begun, 0));
        ok(unsafe { hipMemsetD8Async(a, 2, 4, second) });
        ok(hipEventRecord(done, second));
        ok(unsafe { hipMemsetD8Async(a + 4, 3, 4, first) });
        if joins {
            ok(hipStreamWaitEvent(first, done, 0));
        }
        let (mut graph, mut executable) = (null_mut(), null_mut());
        let status = unsafe { hipStreamEndCapture(first, &mut graph) };
        assert_eq!(status, if joins { Status::SUCCESS } else { Status(904) });
        if joins {
            ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
            ok(hipGraphLaunch(executable, first));
            assert_eq!(gpu.read::<u8>(a, 8, first), [2, 2, 2, 2, 3, 3, 3, 3]);
        }
        // The second stream does not capture any more, but the event still belongs to the graph.
        ok(unsafe { hipMemsetD8Async(a, 4, 8, second) });
        ok(hipStreamSynchronize(second));
        assert_eq!(hipEventQuery(done), Status(907));
    }
}

#[test]
fn a_kernel_may_use_other_parts_than_a_copy() {
    let gpu = Gpu::new(DEVICES, 9);
    let (first, second) = (gpu.stream(), gpu.stream());
    let (_, increment) = gpu.kernel(c"increment", &[]);
    let (a, target) = (gpu.malloc(400), gpu.pinned(4));
    ok(unsafe { hipMemsetD8Async(a, 0, 400, first) });
    ok(hipStreamSynchronize(first));
    for cols in [9, 10] {
        let args = ScaleArgs { x: a, out: a, rows: 1, cols, scale: 0.0 };
        ok(gpu.launch(increment, [1, 1, 1], 64, &args, first));
        ok(gpu.download(target, a + 36, second));
        // The last kernel also writes the tenth element.
        let expected = if cols == 9 { Status::SUCCESS } else { Status::ILLEGAL_STATE };
        assert_eq!(hipStreamSynchronize(first), expected);
    }
    expect(&gpu, &["launch of increment", "wrote what a waiting copy was to find", "copy of 4 bytes from"]);
}

#[test]
fn memory_is_freed_while_queued_work_uses_it() {
    let gpu = Gpu::new(DEVICES, 6);
    let (stream, a) = (gpu.stream(), gpu.malloc(64));
    ok(unsafe { hipMemsetD8Async(a + 8, 1, 8, stream) });
    assert_eq!(hipFree(a), Status::ILLEGAL_STATE);
    let freed = format!("hipFree of {a:#x}");
    expect(&gpu, &[&freed, "call 1, ThreadId", "fill of 8 bytes"]);
    assert_eq!(gpu.live().allocations, 0);
}

#[test]
fn waits_can_be_left_out() {
    let gpu = Gpu::new(DEVICES, 7);
    let (first, second, event, a) = (gpu.stream(), gpu.stream(), gpu.event(), gpu.malloc(4));
    let program = || {
        ok(unsafe { hipMemsetD8Async(a, 1, 4, first) });
        ok(hipEventRecord(event, first));
        ok(hipStreamWaitEvent(second, event, 0));
        unsafe { hipMemsetD8Async(a, 2, 4, second) }
    };
    ok(program());
    ok(hipStreamSynchronize(second));
    assert_eq!(hipsim_without(gpu.0, 4), Status::INVALID_VALUE);
    ok(hipsim_without(gpu.0, 3));
    assert_eq!(program(), Status::ILLEGAL_STATE);
    expect(&gpu, &["two streams use"]);
}
