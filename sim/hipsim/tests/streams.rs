//! Streams run as late as possible and independently; events and graphs.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CStr;
use std::ptr::null_mut;
use std::thread;

use common::{Gpu, Handle, ScaleArgs, ok};
use hipsim::Status;
use hipsim::api::{event::*, graph::*, memory::*, module::*, stream::*};

const DEVICES: &CStr = c"gfx1100,gfx1100,gfx1100,gfx1100,gfx1100,cpu-wave32,cpu-wave32,gfx942,gfx1100";

#[test]
fn a_copy_happens_when_the_stream_is_synchronized() {
    let gpu = Gpu::new(DEVICES, 0);
    let stream = gpu.stream();
    let a = gpu.malloc(4);
    // Memory that is not page-locked is not guarded: changes before the copy stay undetected.
    let (mut source, mut target) = (*b"soon", [0; 4]);
    ok(gpu.upload(a, &source, stream));
    ok(gpu.download(&mut target, a, stream));
    assert_eq!(target, [0; 4], "a result read too early");
    source.copy_from_slice(b"late");
    ok(hipStreamSynchronize(stream));
    assert_eq!(&target, b"late", "a buffer reused too early");
}

#[test]
fn streams_are_ordered_by_events_alone() {
    let gpu = Gpu::new(DEVICES, 1);
    let (first, second) = (gpu.stream(), gpu.stream());
    let event = gpu.event();
    let (a, b) = (gpu.malloc(4), gpu.malloc(4));
    ok(unsafe { hipMemsetD8Async(a, 1, 4, first) });
    ok(hipEventRecord(event, first));
    ok(unsafe { hipMemsetD8Async(b, 2, 4, first) });
    ok(hipStreamWaitEvent(second, event, 0));
    assert_eq!(gpu.read::<u8>(a, 4, second), [1; 4], "it runs up to the event and no further");
    assert_eq!(gpu.live().operations, 1);
    assert_eq!(gpu.read::<u8>(b, 4, first), [2; 4]);
}

#[test]
fn an_event_is_the_place_of_its_latest_record() {
    let gpu = Gpu::new(DEVICES, 2);
    let (stream, other) = (gpu.stream(), gpu.stream());
    let event = gpu.event();
    ok(hipEventQuery(event));
    ok(hipEventSynchronize(event));
    let a = gpu.malloc(4);
    ok(unsafe { hipMemsetD8Async(a, 1, 4, stream) });
    ok(hipEventRecord(event, stream));
    assert_eq!(hipEventQuery(event), Status::NOT_READY);
    ok(hipEventQuery(event));
    assert_eq!(gpu.read::<u8>(a, 1, other), [1]);
    ok(unsafe { hipMemsetD8Async(a, 2, 4, stream) });
    ok(hipEventRecord(event, stream));
    ok(hipStreamWaitEvent(other, event, 0));
    let b = gpu.malloc(4);
    ok(unsafe { hipMemsetD8Async(b, 3, 4, stream) });
    ok(hipEventRecord(event, stream));
    assert_eq!(gpu.read::<u8>(a, 1, other), [2], "a wait is for the record that was the latest then");
    assert_eq!(gpu.live().operations, 2, "and nothing behind it has run");
    ok(hipEventSynchronize(event));
    assert_eq!(gpu.read::<u8>(b, 1, other), [3]);
    ok(hipEventDestroy(event));
    assert_eq!(hipEventQuery(event), Status::INVALID_HANDLE);
    assert_eq!(hipEventRecord(stream, stream), Status::INVALID_HANDLE);
}

#[test]
fn a_destroyed_stream_loses_what_it_has_not_run() {
    let gpu = Gpu::new(DEVICES, 3);
    let (stream, other) = (gpu.stream(), gpu.stream());
    let (early, late) = (gpu.event(), gpu.event());
    ok(hipEventRecord(early, stream));
    ok(hipEventSynchronize(early));
    ok(hipEventRecord(late, stream));
    ok(hipStreamDestroy(stream));
    ok(hipEventSynchronize(early));
    ok(hipStreamWaitEvent(other, late, 0));
    assert_eq!(hipStreamSynchronize(other), Status::ILLEGAL_STATE);
    assert!(gpu.fault().contains("destroyed"), "{}", gpu.fault());
}

fn capture(gpu: &Gpu, stream: Handle, work: impl FnOnce()) -> Handle {
    ok(hipStreamBeginCapture(stream, 1));
    work();
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
    assert_eq!(gpu.live().graphs, 2);
    ok(hipGraphDestroy(graph));
    executable
}

#[test]
fn a_graph_repeats_what_was_captured() {
    let gpu = Gpu::new(DEVICES, 5);
    let stream = gpu.stream();
    let (module, increment) = gpu.kernel(c"increment", &[]);
    let a = gpu.malloc(400);
    let mut args = ScaleArgs { x: a, out: a, rows: 1, cols: 100, scale: 0.0 };
    ok(gpu.upload(a, &[1f32; 100], stream));
    ok(hipStreamSynchronize(stream));
    let graph = capture(&gpu, stream, || {
        ok(gpu.launch(increment, [2, 1, 1], 64, &args, stream));
        args.cols = 0;
        ok(gpu.launch(increment, [1, 1, 1], 64, &args, stream));
    });
    assert_eq!(gpu.read::<f32>(a, 100, stream), [1.0; 100], "capturing runs nothing");
    for _ in 0..3 {
        ok(hipGraphLaunch(graph, stream));
    }
    assert_eq!(gpu.read::<f32>(a, 100, stream), [4.0; 100]);
    ok(hipModuleUnload(module));
    ok(hipGraphLaunch(graph, stream));
    assert_eq!(hipStreamSynchronize(stream), Status::LAUNCH_FAILURE, "a kernel that was unloaded");
    ok(hipGraphExecDestroy(graph));
    assert_eq!(gpu.live().graphs, 0);
}

#[test]
fn what_cannot_be_captured_is_refused() {
    let gpu = Gpu::new(DEVICES, 4);
    let (stream, other) = (gpu.stream(), gpu.stream());
    let event = gpu.event();
    let a = gpu.malloc(4);
    let refused: [&dyn Fn() -> Status; 5] = [
        &|| unsafe { hipMalloc(&mut 0, 4) },
        &|| hipFree(a),
        &|| unsafe { hipHostMalloc(&mut null_mut(), 4, 0) },
        &|| hipStreamSynchronize(stream),
        &|| hipEventSynchronize(event),
    ];
    for call in refused {
        ok(hipStreamBeginCapture(stream, 1));
        assert_eq!(call(), Status::CAPTURE_UNSUPPORTED);
        let mut graph = null_mut();
        assert_eq!(unsafe { hipStreamEndCapture(stream, &mut graph) }, Status::CAPTURE_INVALIDATED);
    }
    assert_eq!(unsafe { hipStreamEndCapture(stream, &mut null_mut()) }, Status::ILLEGAL_STATE);
    let graph = capture(&gpu, stream, || {
        ok(unsafe { hipMemsetD8Async(a, 9, 4, stream) });
        assert_eq!(hipStreamBeginCapture(stream, 1), Status::ILLEGAL_STATE);
        // Other threads, and this thread's other streams, continue.
        ok(unsafe { hipMemsetD8Async(a, 8, 4, other) });
        let (stream, other) = (stream.expose_provenance(), other.expose_provenance());
        thread::spawn(move || {
            let gpu = Gpu::new(DEVICES, 4);
            ok(hipFree(gpu.malloc(4)));
            ok(hipStreamSynchronize(std::ptr::with_exposed_provenance_mut(other)));
            let stream = std::ptr::with_exposed_provenance_mut(stream);
            assert_eq!(unsafe { hipStreamEndCapture(stream, &mut null_mut()) }, Status::CAPTURE_WRONG_THREAD);
        })
        .join()
        .unwrap();
    });
    assert_eq!(gpu.read::<u8>(a, 4, other), [8; 4]);
    ok(hipGraphLaunch(graph, stream));
    assert_eq!(gpu.read::<u8>(a, 4, stream), [9; 4]);
}

/// Adds 1 to the first number of page-locked memory.
unsafe extern "C" fn count(number: Handle) {
    let number = number.cast::<u32>();
    unsafe { number.write(number.read() + 1) };
}

#[test]
fn a_function_of_the_host_runs_in_the_order_of_its_stream() {
    let gpu = Gpu::new(DEVICES, 8);
    let stream = gpu.stream();
    let (a, pinned) = (gpu.malloc(4), gpu.pinned(4));
    let address: Handle = pinned.as_mut_ptr().cast();
    pinned.fill(1);
    ok(unsafe { hipLaunchHostFunc(stream, Some(count), address) });
    // The copy behind the call guards the memory, but not from the call.
    ok(gpu.upload(a, pinned, stream));
    assert_eq!(gpu.live().operations, 2, "nothing has run yet");
    assert_eq!(gpu.read::<u32>(a, 1, stream), [0x0101_0102]);

    ok(hipStreamBeginCapture(stream, 1));
    ok(unsafe { hipLaunchHostFunc(stream, Some(count), address) });
    let (mut graph, mut executable) = (null_mut(), null_mut());
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphDestroy(graph));
    for replays in 1..=2 {
        ok(hipGraphLaunch(executable, stream));
        ok(hipStreamSynchronize(stream));
        assert_eq!(pinned[0], 2 + replays);
    }
    assert_eq!(unsafe { hipLaunchHostFunc(stream, None, null_mut()) }, Status::INVALID_VALUE);
}
