//! Mutation tests: without any one of its waits the engine causes a fault of the stand-in, which names the two
//! unordered accesses. With its waits, every other test here shows that there is no such fault.

use crate::backend::{Backend, Content, Embed, Loader, Ops};
use crate::config::GpuOptions;
use crate::conformance::{Random, fill, matrix, rows_batch};
use crate::device::copies::Copies;
use crate::device::stream::Stream;
use crate::testing::devices::{self, CPU_TARGETS, FAULTY_TARGETS};
use crate::weights::upload::Uploader;
use crate::{Buffer, Device, DeviceBuffer, GpuBackend, GpuStep};

/// Waits that `hipsim_without` disables.
const STREAM: u32 = 1;
const EVENT: u32 = 2;
const STREAM_FOR_EVENT: u32 = 3;
const NONE: u32 = 0;

/// Checks that the fault contains all of these parts.
fn expect(options: &GpuOptions, parts: &[&str]) {
    let fault = devices::fault(options);
    parts.iter().for_each(|part| assert!(fault.contains(part), "{part:?} is not in {fault:?}"));
}

/// Uploads three pieces through two slots.
fn upload(device: &Device) -> crate::Result<()> {
    let out = DeviceBuffer::new(device, 4096)?;
    let mut uploader = Uploader::new(device, 1024, 1024)?;
    for piece in 0..3u8 {
        uploader.bytes(&[piece; 1024], out.slice().part(1024 * u64::from(piece), 1024)?)?;
    }
    uploader.finish()
}

/// A slot may be overwritten only after its copy has been waited for.
#[test]
fn an_upload_needs_the_wait_for_its_slot() {
    let Some((device, options)) = devices::open(FAULTY_TARGETS[0]) else { return };
    upload(&device).unwrap();
    devices::leave_out(&options, EVENT);
    upload(&device).unwrap_err();
    expect(&options, &["the host used", "ThreadId", "copy of 1024 bytes from the host's"]);
    assert_eq!(device.allocated_bytes(), 0);
}

/// The results of a step may be read only after its stream has been waited for.
#[test]
fn results_need_the_wait_for_the_stream() {
    let Some(device) = devices::open(FAULTY_TARGETS[1]) else { return };
    let mut loader = devices::loader(&device, 1);
    let table = matrix(&mut loader, &Random(1).values(32), 32).unwrap();
    let mut out = loader.alloc_buffer(1, 32).unwrap();
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, 1, &mut out).unwrap();
    backend.to_host(&out, 1, 32).unwrap();
    devices::leave_out(&device.1, STREAM);
    backend.to_host(&out, 1, 32).unwrap();
    devices::leave_out(&device.1, NONE);
    assert!(backend.to_host(&out, 1, 32).is_err());
    expect(&device.1, &["the host used", "ThreadId", "copy of 128 bytes from", "to the host's"]);
    drop((backend, table, out));
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// A step's integers may be overwritten only after the first kernel of the step before last, which used the same
/// buffer, has read them.
#[test]
fn a_step_needs_the_wait_for_the_copy_of_the_last_but_one() {
    let Some(device) = devices::open(FAULTY_TARGETS[2]) else { return };
    let mut loader = devices::loader(&device, 1);
    let table = matrix(&mut loader, &Random(1).values(32), 32).unwrap();
    let mut out = loader.alloc_buffer(1, 32).unwrap();
    let mut backend = loader.finish().unwrap();
    let batch = rows_batch(vec![0]);
    let step = |backend: &mut GpuBackend, out: &mut Buffer| {
        let mut ops = |step: &mut GpuStep<'_>| step.embed(Embed { table: &table, scale: 1.0, out: &mut *out });
        backend.step(&batch, &mut ops).unwrap();
    };
    step(&mut backend, &mut out);
    step(&mut backend, &mut out);
    backend.to_host(&out, 1, 32).unwrap();
    devices::leave_out(&device.1, EVENT);
    (0..3).for_each(|_| step(&mut backend, &mut out));
    assert!(backend.to_host(&out, 1, 32).is_err());
    expect(&device.1, &["the host used", "ThreadId", "launch of copy_step"]);
    drop((backend, table, out));
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// Queues a step that fills the memory of a content.
fn fill_content(steps: &Stream, copies: &mut Copies, memory: &DeviceBuffer, byte: u8) -> crate::Result<()> {
    copies.begin_step(steps)?;
    // SAFETY: the memory lives until the streams were waited for, and only ordered copies use it.
    unsafe { steps.fill(memory.slice(), byte) }
}

/// A content is copied to the host after the queued step that computes it. The host does not wait for the step.
#[test]
fn a_copy_to_the_host_needs_the_wait_for_queued_steps() {
    let Some((device, options)) = devices::open(FAULTY_TARGETS[4]) else { return };
    let (steps, memory) = (Stream::new(&device).unwrap(), DeviceBuffer::new(&device, 64).unwrap());
    let mut copies = Copies::new(&device, &[(64, 4)]).unwrap();
    let copy = |copies: &mut Copies, byte: u8| {
        fill_content(&steps, copies, &memory, byte)?;
        assert!(copies.copy_out(u64::from(byte), &[memory.slice()], &steps)?);
        // The stand-in's first answer is always that the copy has not ended.
        assert!(copies.copied(false)?.is_none());
        copies.copied(true)
    };
    assert_eq!(copy(&mut copies, 7).unwrap(), Some((7, Some(vec![7; 64]))));
    devices::leave_out(&options, STREAM_FOR_EVENT);
    assert!(copy(&mut copies, 8).is_err());
    expect(&options, &["two streams use", "fill of 64 bytes", "copy of 64 bytes from", "to the host's"]);
}

/// Copies to the device come after the steps that were queued before, and the host does not wait for these. Their ends
/// are reported in order, once each.
#[test]
fn copies_to_the_device_need_the_wait_for_queued_steps() {
    let Some((device, options)) = devices::open(FAULTY_TARGETS[5]) else { return };
    let (steps, memory) = (Stream::new(&device).unwrap(), DeviceBuffer::new(&device, 64).unwrap());
    let mut copies = Copies::new(&device, &[(64, 4)]).unwrap();
    let content = |byte: u8| Content::new(vec![byte; 64]);
    for byte in 0..100 {
        fill_content(&steps, &mut copies, &memory, 0).unwrap();
        assert!(copies.copy_in(u64::from(byte), &[memory.slice()], &content(byte)).unwrap());
        assert_eq!(copies.copied_in(true, &steps).unwrap(), Some(u64::from(byte)));
        assert!(copies.copy_out(0, &[memory.slice()], &steps).unwrap());
        assert_eq!(copies.copied(true).unwrap(), Some((0, Some(vec![byte; 64]))));
    }
    assert_eq!((copies.copied_in(true, &steps).unwrap(), copies.copied(true).unwrap()), (None, None));
    // More copies than there is page-locked memory for.
    let begun = (0..200).take_while(|number| copies.copy_in(*number, &[memory.slice()], &content(1)).unwrap()).count();
    assert_eq!(begun, 128);
    let ended: Vec<u64> = (0..begun).map(|_| copies.copied_in(true, &steps).unwrap().unwrap()).collect();
    assert!(ended.into_iter().eq(0..128) && copies.copied_in(true, &steps).unwrap().is_none());
    assert!(copies.copy_in(0, &[memory.slice()], &Content::new(vec![0; 63])).is_err());
    devices::leave_out(&options, STREAM_FOR_EVENT);
    fill_content(&steps, &mut copies, &memory, 2).unwrap();
    assert!(copies.copy_in(0, &[memory.slice()], &content(1)).unwrap());
    assert!(copies.copied_in(true, &steps).is_err());
    expect(&options, &["two streams use", "fill of 64 bytes", "copy of 64 bytes from the host's"]);
}

/// The memory of a large content is used for the next one of its size.
#[test]
fn contents_reuse_the_memory_of_others() {
    let Some((device, _)) = devices::open(CPU_TARGETS[0]) else { return };
    let bytes = 1 << 20;
    let (steps, memory) = (Stream::new(&device).unwrap(), DeviceBuffer::new(&device, bytes).unwrap());
    let mut copies = Copies::new(&device, &[(bytes, 2)]).unwrap();
    let copy = |copies: &mut Copies, byte: u8| {
        fill_content(&steps, copies, &memory, byte).unwrap();
        assert!(copies.copy_out(u64::from(byte), &[memory.slice().part(0, bytes).unwrap()], &steps).unwrap());
        copies.copied(true).unwrap().unwrap().1.unwrap()
    };
    let first = copy(&mut copies, 1);
    let address = first.as_ptr();
    copies.recycle(Content::new(first)).unwrap();
    let second = copy(&mut copies, 2);
    assert_eq!((second.as_ptr(), second.iter().all(|byte| *byte == 2)), (address, true));
}
