//! The driver layer on a real device: a GPU, or the one that the environment names, else the stand-in's. A platform or
//! library that was named has to work.

use crate::config::{EngineArgs, GpuOptions};
use crate::launch::args::{Format, GatherArgs};
use crate::launch::catalog::{GATHER_ROWS, ONCE};
use crate::testing::devices::{self, AMD_TARGET};
use crate::*;

fn device() -> Option<(Device, GpuOptions)> {
    let options = EngineArgs::new("none").with_env().unwrap().gpu;
    match Device::open(&options) {
        Ok(device) => Some((device, options)),
        Err(_) if options.platform.is_none() && options.library.is_none() => devices::open(AMD_TARGET),
        Err(error) => panic!("{error}"),
    }
}

/// G14: the properties and the memory that a device reports are plausible.
#[test]
fn properties_are_plausible() {
    let Some((device, _)) = device() else { return };
    let properties = device.properties();
    println!("{properties:?}");
    assert!([32, 64].contains(&properties.warp_size));
    assert!((1..4096).contains(&properties.multiprocessors));
    assert!(properties.max_threads_per_block >= 1024);
    assert!(properties.max_grid.iter().all(|&side| side >= 65535));
    let memory = device.memory_info().unwrap();
    assert!(memory.total > 1 << 20);
    // On devices that share the host's memory, drivers report more free memory than the total.
    assert!(properties.integrated || memory.free <= memory.total);
    assert!(device.free_memory().unwrap() <= memory.total);
}

/// G13, G22: from a thread that never used the device, copies at odd offsets work to the device, on it and back. Events
/// order them over two streams.
#[test]
fn copies_arrive() {
    let Some((device, _)) = device() else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (copies, compute) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
            let (first, second) =
                (DeviceBuffer::new(&device, 4099).unwrap(), DeviceBuffer::new(&device, 4099).unwrap());
            let (mut there, mut back) =
                (HostBuffer::new(&device, 4001).unwrap(), HostBuffer::new(&device, 4099).unwrap());
            let event = Event::new(&device).unwrap();
            for (at, byte) in there.as_mut_slice().iter_mut().enumerate() {
                *byte = (at * 7 % 251) as u8;
            }
            // SAFETY: everything lives until both streams have been waited for, and events order all uses of the same
            // memory.
            unsafe {
                copies.copy_to_device(first.slice().part(13, 4001).unwrap(), there.as_slice()).unwrap();
                event.record(&copies).unwrap();
                event.synchronize().unwrap();
                compute.fill(second.slice(), 0xa5).unwrap();
                let (to, from) = (second.part(17, 4001).unwrap(), first.part(13, 4001).unwrap());
                compute.copy_on_device(to.slice(), from.slice()).unwrap();
                compute.copy_to_host(back.as_mut_slice(), second.slice()).unwrap();
            }
            event.record(&compute).unwrap();
            event.synchronize().unwrap();
            let expected = [vec![0xa5; 17], there.as_slice().to_vec(), vec![0xa5; 81]].concat();
            assert_eq!(back.as_slice(), expected);
        });
    });
    assert_eq!(device.allocated_bytes(), 0);
    device.check().unwrap();
}

/// A kernel is compiled or unpacked, launched directly and as a graph, and reads its arguments with the layout that
/// Rust writes.
#[test]
fn a_kernel_runs_alone_and_in_a_graph() {
    let Some((device, options)) = device() else { return };
    let (rows, cols, indices) = (3u32, 5u32, [4u32, 0, 2]);
    let bytes = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |row: u32| (0..cols).map(move |col| ((100 * row + col) as f32).to_bits());
    let mut host = HostBuffer::new(&device, 4 * (25 + 3)).unwrap();
    let input: Vec<u32> = (0..5).flat_map(floats).chain(indices).collect();
    host.as_mut_slice().copy_from_slice(&bytes(&input));
    let memory = DeviceBuffer::new(&device, 4 * (25 + 3 + 15)).unwrap();
    let mut back = HostBuffer::new(&device, 4 * 15).unwrap();

    let kernels = Kernels::new(&device, &options).unwrap();
    let kernel = GATHER_ROWS.id(ONCE);
    kernels.prepare(&[kernel.unit]).unwrap();
    println!("{}", kernels.origin(kernel.unit).unwrap());
    let function = kernels.function(&kernel).unwrap();
    let out = memory.slice().part(4 * 28, 4 * 15).unwrap();
    let args = GatherArgs {
        x: memory.ptr(),
        indices: memory.slice().part(100, 12).unwrap().ptr(),
        out: out.ptr(),
        rows,
        cols,
        format_in: Format::F32,
    };
    let expected = bytes(&indices.into_iter().flat_map(floats).collect::<Vec<_>>());
    let stream = Stream::new(&device).unwrap();
    // SAFETY: the arguments describe `memory`, and everything lives until the stream has been waited for.
    unsafe {
        stream.copy_to_device(memory.slice(), host.as_slice()).unwrap();
        stream.launch(&function, [rows, 1, 1], &args).unwrap();
        stream.copy_to_host(back.as_mut_slice(), out).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(back.as_slice(), expected);

        stream.begin_capture().unwrap();
        stream.launch(&function, [rows, 1, 1], &args).unwrap();
        let graph = stream.end_capture().unwrap();
        for _ in 0..3 {
            back.as_mut_slice().fill(0);
            stream.fill(out, 0xff).unwrap();
            stream.launch_graph(&graph).unwrap();
            stream.copy_to_host(back.as_mut_slice(), out).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(back.as_slice(), expected);
        }
    }
    device.check().unwrap();
}
