//! The owning types over an in-memory driver that fails on command: no failure leaks memory.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::host_memory::HostMemory;
use crate::config::Platform;
use crate::driver::Block;
use crate::driver::fake::{self, Fake};
use crate::driver::faults::{Call, Faults, Faulty, Live};
use crate::sys::HostWork;
use crate::*;
use crate::{Error, Result};

/// The code of an illegal address in a kernel.
const LOST: i32 = 700;
const OUT_OF_MEMORY: i32 = 2;
const INVALID: i32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct NoArgs {}

// SAFETY: the fake driver's kernels read nothing.
unsafe impl KernelArgs for NoArgs {
    fn store(&self, _: &mut [u8]) {}
}

fn faulty() -> (Device, Faults) {
    let (driver, faults) = Faulty::new(Box::new(Fake::new()));
    (Device::with_driver(Box::new(driver)), faults)
}

/// Counts its calls.
struct Counted(AtomicU32);

impl HostWork for Counted {
    fn run(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Does everything that an engine does with the driver layer, once, and returns the bytes that came back.
fn exercise(device: &Device) -> Result<Vec<u8>> {
    device.memory_info()?;
    let weights = DeviceBuffer::new(device, 64)?;
    let scratch = DeviceBuffer::new(device, 32)?;
    let mut host = HostBuffer::new(device, 16)?;
    let (compute, copies) = (Stream::new(device)?, Stream::new(device)?);
    let event = Event::new(device)?;
    let module = Module::load(device, fake::IMAGE.to_vec(), "unit")?;
    let kernel = module.function("kernel", Block::of_threads(64))?;
    host.as_mut_slice().copy_from_slice(&[7; 16]);
    assert_eq!(MappedBuffer::new(device, 16)?.slice().bytes(), 16);
    let counted = Counted(AtomicU32::new(0));
    // SAFETY: everything lives to the end of this function, and the fake driver runs each call at once.
    unsafe {
        copies.copy_to_device(weights.part(0, 16)?.slice(), host.as_slice())?;
        event.record(&copies)?;
        event.synchronize()?;
        compute.wait_for(&event)?;
        compute.fill(scratch.slice(), 1)?;
        compute.copy_on_device(scratch.slice().after(16)?, weights.slice().part(0, 16)?)?;
        compute.launch(&kernel, [3, 1, 1], &NoArgs {})?;
        compute.launch_host(&counted)?;
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
        compute.begin_capture()?;
        let launched = compute.launch(&kernel, [3, 1, 1], &NoArgs {});
        let graph = compute.end_capture()?;
        launched?;
        compute.launch_graph(&graph)?;
        compute.launch_graph(&graph)?;
        compute.copy_to_host(host.as_mut_slice(), scratch.slice().after(8)?)?;
    }
    event.record(&compute)?;
    event.synchronize()?;
    compute.synchronize()?;
    Ok(host.as_slice().to_vec())
}

/// G4: the driver under test answers a handle that was already freed, or never made, with an error.
#[test]
fn the_whole_layer_works_and_leaves_nothing() {
    let (device, faults) = faulty();
    assert_eq!(exercise(&device).unwrap(), [[1; 8], [7; 8]].concat());
    assert_eq!(faults.live(), Live::default());
    assert_eq!((device.allocations(), device.allocated_bytes()), (2, 0));
    assert_eq!(faults.host_bytes(), 32);
    device.check().unwrap();
    // A second time on the same device.
    exercise(&device).unwrap();
    assert_eq!(device.allocations(), 4);
    assert_eq!(faults.calls(Call::Launch), 4);
}

/// G10: each driver call fails in turn in each way: the failure is reported, now or at the next call, and nothing
/// leaks.
#[test]
fn every_failure_is_reported_and_leaves_nothing() {
    for call in Call::ALL {
        for code in [INVALID, OUT_OF_MEMORY, LOST] {
            for nth in 0.. {
                let (device, faults) = faulty();
                faults.fail(call, nth, code);
                let result = exercise(&device);
                if faults.disarm() {
                    // No call of this kind is left: all of them have failed once.
                    result.unwrap();
                    assert!(nth > 0, "{call:?} is never called");
                    break;
                }
                let Err(error) = result.and_then(|_| device.check()) else {
                    // Calls that give something back are made all the same, and then nothing has failed. Free memory is
                    // estimated if the driver does not tell it.
                    let is_harmless = call == Call::MakeCurrent || call == Call::MemoryInfo && code != LOST;
                    assert!(is_harmless, "{call:?} {nth} {code}: a failure is swallowed");
                    assert_eq!(
                        (faults.live(), device.allocated_bytes()),
                        (Live::default(), 0),
                        "{call:?} {nth} {code}"
                    );
                    continue;
                };
                match code {
                    LOST => assert!(matches!(error, Error::EngineDead { .. }), "{call:?} {nth}: {error}"),
                    _ => assert!(
                        matches!(error, Error::Device { .. } | Error::OutOfMemory { .. }),
                        "{call:?} {nth}: {error}"
                    ),
                }
                assert_eq!(faults.live(), Live::default(), "{call:?} {nth} {code}");
                assert_eq!(device.allocated_bytes(), 0, "{call:?} {nth} {code}");
            }
        }
    }
}

/// A failed release is reported once, at the next allocation or launch. The device stays usable.
#[test]
fn a_failed_free_is_reported_at_the_next_call() {
    let (device, faults) = faulty();
    let buffer = DeviceBuffer::new(&device, 8).unwrap();
    faults.fail(Call::Free, 0, INVALID);
    drop(buffer);
    let error = DeviceBuffer::new(&device, 8).unwrap_err().to_string();
    assert!(error.contains("Free failed on purpose"), "{error}");
    DeviceBuffer::new(&device, 8).unwrap();
}

/// A lost device stays lost, with the first reason.
#[test]
fn a_lost_device_refuses_everything() {
    let (device, faults) = faulty();
    let stream = Stream::new(&device).unwrap();
    faults.fail(Call::Synchronize, 0, LOST);
    let first = stream.synchronize().unwrap_err().to_string();
    for result in [DeviceBuffer::new(&device, 8).map(drop), stream.begin_capture(), device.check(), device.check()] {
        assert_eq!(result.unwrap_err().to_string(), first);
    }
}

#[test]
fn out_of_memory_says_how_much_there_is() {
    let (device, _) = faulty();
    let total = device.memory_info().unwrap().total;
    let held = DeviceBuffer::new(&device, total - 1024).unwrap();
    match DeviceBuffer::new(&device, 2048).unwrap_err() {
        Error::OutOfMemory { requested: 2048, available: 1024, .. } => {}
        other => panic!("{other}"),
    }
    assert_eq!(device.memory_info().unwrap().free, 1024);
    assert_eq!(held.bytes(), total - 1024);
}

/// Some releases of AMD's library fail to tell a card's free memory. The kernel driver's files, or else an estimate,
/// tell it.
#[test]
fn memory_that_the_driver_does_not_tell_is_estimated() {
    const GB: u64 = 1_000_000_000;
    let root = tempfile::tempdir().unwrap();
    let open = |platform, bus: Option<&str>, integrated| {
        let bus = bus.map(str::to_owned);
        let properties = driver::DeviceProperties { platform, bus, integrated, memory: 20 * GB, ..fake::properties() };
        let (driver, faults) = Faulty::new(Box::new(Fake::with_memory(1 << 20, 1 << 20, properties)));
        (Device::on_host(Box::new(driver), HostMemory::under(root.path())), faults)
    };
    let free = |bus, integrated| {
        let (device, faults) = open(Platform::Amd, bus, integrated);
        let _held = DeviceBuffer::new(&device, 1 << 19).unwrap();
        faults.fail(Call::MemoryInfo, 0, INVALID);
        let MemoryInfo { free, total } = device.memory_info().unwrap();
        assert_eq!(total, 20 * GB);
        faults.fail(Call::MemoryInfo, 0, INVALID);
        assert!(device.free_memory().unwrap() <= total - (1 << 19));
        free
    };
    let card = "0000:03:00.0";
    assert_eq!(free(Some(card), false), 18 * GB - (1 << 19));
    let folder = root.path().join("sys/bus/pci/devices").join(card);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("mem_info_vram_total"), "20000000000\n").unwrap();
    std::fs::write(folder.join("mem_info_vram_used"), "17000000000\n").unwrap();
    assert_eq!(free(Some(card), false), 3 * GB);
    // An integrated device uses the host's memory, and the files of another card say nothing about this one.
    for (bus, integrated) in [(Some(card), true), (Some("0000:04:00.0"), false), (None, false)] {
        assert_eq!(free(bus, integrated), 18 * GB - (1 << 19));
    }
    // A lost device stays lost, and CUDA's driver fails for other reasons.
    for (platform, code) in [(Platform::Amd, LOST), (Platform::Nvidia, INVALID)] {
        let (device, faults) = open(platform, None, false);
        faults.fail(Call::MemoryInfo, 0, code);
        device.memory_info().unwrap_err();
    }
}

/// The numbers are those of a Strix Halo: its driver reports more free memory than total, and all of it is the host's.
#[test]
fn integrated_devices_leave_the_host_its_memory() {
    const GIB: u64 = 1 << 30;
    let (total, free) = (62 * GIB + GIB / 2, 120 * GIB);
    let open = |integrated, host_kilobytes: u64| {
        let root = std::env::temp_dir().join(format!("rocmforge-halo-{}-{host_kilobytes}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        std::fs::write(root.join("proc/meminfo"), format!("MemAvailable: {host_kilobytes} kB\n")).unwrap();
        // Memory that a driver pins is not charged to a control group.
        std::fs::write(root.join("proc/self/cgroup"), "0::/\n").unwrap();
        std::fs::create_dir_all(root.join("sys/fs/cgroup")).unwrap();
        std::fs::write(root.join("sys/fs/cgroup/memory.max"), "1000\n").unwrap();
        let properties = driver::DeviceProperties { integrated, ..fake::properties() };
        let device = Device::on_host(Box::new(Fake::with_memory(free, total, properties)), HostMemory::under(&root));
        let free = device.free_memory().unwrap();
        let held = DeviceBuffer::new(&device, 1 << 20).unwrap();
        assert!(device.free_memory().unwrap() <= free && device.free_memory().unwrap() <= total - held.bytes());
        std::fs::remove_dir_all(&root).unwrap();
        free
    };
    // If the host has more than the total, the total counts. If it has less, the host's memory counts minus the 2 GiB
    // that it keeps.
    assert_eq!(open(true, (119 * GIB) >> 10), total);
    assert_eq!(open(true, (40 * GIB) >> 10), 38 * GIB);
    assert_eq!(open(true, GIB >> 10), 0);
    // A discrete card's memory does not depend on the host.
    assert_eq!(open(false, GIB >> 10), total);
}

/// G7, G25: ranges outside a buffer are refused, also if the sum overflows.
#[test]
fn ranges_are_checked() {
    let (device, _) = faulty();
    let buffer = DeviceBuffer::new(&device, 200).unwrap();
    // Offsets in a part count from its start and are limited by its end.
    let part = buffer.part(50, 100).unwrap();
    for (at, bytes) in [(0, 100), (100, 0), (3, 90)] {
        let (owned, borrowed) = (part.part(at, bytes).unwrap(), part.slice().part(at, bytes).unwrap());
        assert_eq!(owned.ptr(), borrowed.ptr());
        assert_eq!(borrowed.ptr().address(), buffer.ptr().address() + 50 + at);
        assert_eq!((owned.bytes(), borrowed.bytes()), (bytes, bytes));
    }
    assert_eq!(part.slice().after(30).unwrap().bytes(), 70);
    for (at, bytes) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(part.part(at, bytes).is_err() && part.slice().part(at, bytes).is_err(), "{at} {bytes}");
    }
    assert!(part.slice().after(101).is_err());
    let (stream, mut host) = (Stream::new(&device).unwrap(), HostBuffer::new(&device, 101).unwrap());
    // SAFETY: none of them is queued.
    unsafe {
        assert!(stream.copy_to_device(part.slice(), host.as_slice()).is_err());
        assert!(stream.copy_to_host(host.as_mut_slice(), part.slice()).is_err());
        assert!(stream.copy_on_device(part.slice(), buffer.slice()).is_err());
    }
    assert!(DeviceBuffer::new(&device, 0).is_err());
    assert!(HostBuffer::new(&device, 0).is_err());
}

/// G4: each part keeps its allocation, and the last one frees it, once.
#[test]
fn parts_own_their_allocation_together() {
    let (device, faults) = faulty();
    let whole = DeviceBuffer::new(&device, 100).unwrap();
    let (part, copy) = (whole.part(10, 20).unwrap(), whole.clone());
    drop(whole);
    drop(copy);
    assert_eq!((device.allocated_bytes(), device.allocations()), (100, 1));
    drop(part);
    assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()));
}

/// G6, G18: a kernel that is missing, found as a null pointer, or compiled for smaller blocks is an error that names
/// it.
#[test]
fn kernels_are_checked_when_they_are_looked_up() {
    let (device, faults) = faulty();
    let module = Module::load(&device, fake::IMAGE.to_vec(), "unit").unwrap();
    for (name, threads) in [("no_such", 64), (fake::NULL_KERNEL, 64), ("kernel", fake::KERNEL_THREADS + 1)] {
        let error = module.function(name, Block::of_threads(threads)).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
    assert!(module.function("zero\0inside", Block::of_threads(64)).is_err());
    assert!(Module::load(&device, b"text".to_vec(), "unit").is_err());
    let kernel = module.function("kernel", Block::of_threads(fake::KERNEL_THREADS)).unwrap();
    drop(module);
    assert_eq!(faults.live().modules, 1, "a kernel keeps its module");
    drop(kernel);
    assert_eq!(faults.live(), Live::default());
}

/// A graph keeps its stream until it has run.
#[test]
fn graphs_outlive_the_streams_they_run_on() {
    let (device, faults) = faulty();
    let stream = Stream::new(&device).unwrap();
    stream.begin_capture().unwrap();
    let graph = stream.end_capture().unwrap();
    // SAFETY: the graph is empty.
    unsafe { stream.launch_graph(&graph).unwrap() };
    drop(stream);
    assert_eq!(faults.live(), Live { streams: 1, graphs: 1, ..Live::default() });
    drop(graph);
    assert_eq!(faults.live(), Live::default());
    device.check().unwrap();
}
