//! A ring of bytes in memory that two processes share. One writes and the other reads. After each write or read, a
//! process rings a bell (an eventfd) for the other.
#![allow(unsafe_code)] // memory that another process writes cannot be borrowed, and descriptors come as numbers

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::engine::SequenceOutput;
use crate::{Error, Result};

/// The bytes before the ring itself: the counters, each in its own cache line.
const HEADER: usize = 128;
const WRITTEN: usize = 0;
const READ: usize = 64;
/// The bytes of the length that precedes each frame.
const LENGTH: usize = size_of::<u64>();

/// Descriptors of a ring's three files: its memory, the bell rung after a write, and the bell rung after a read.
#[derive(Debug, Clone, Copy)]
pub struct RingFiles {
    pub memory: RawFd,
    pub written: RawFd,
    pub read: RawFd,
}

struct Ring {
    map: MmapRaw,
    written: File,
    read: File,
}

impl Ring {
    /// Opens duplicates of the files; the caller keeps its descriptors.
    fn open(files: RingFiles) -> io::Result<Self> {
        let memory = duplicate(files.memory)?;
        let length = memory.metadata()?.len();
        if length <= HEADER as u64 {
            return Err(io::Error::other(format!("a ring of {length} bytes, expected more than {HEADER}")));
        }
        let map = MmapOptions::new().len(length as usize).map_raw(&memory)?;
        Ok(Self { map, written: duplicate(files.written)?, read: duplicate(files.read)? })
    }

    fn capacity(&self) -> usize {
        self.map.len() - HEADER
    }

    /// Returns the counter of all bytes written (at `WRITTEN`) or read so far.
    fn counter(&self, place: usize) -> &AtomicU64 {
        // SAFETY: the place lies within the header, for which `open` has checked that there is room. It is aligned,
        // since a mapping begins at a page. Both processes access it only by atomic operations.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(place).cast()) }
    }

    /// Returns the parts of the ring that hold `count` bytes from the running number `from` on. The first ends at the
    /// ring's end at the latest, and the second begins at its start.
    fn parts(&self, from: u64, count: usize) -> [(*mut u8, usize); 2] {
        let capacity = self.capacity();
        let start = (from % capacity as u64) as usize;
        let first = count.min(capacity - start);
        // SAFETY: `start` is less than the capacity, which ends where the mapping does.
        let ring = unsafe { self.map.as_mut_ptr().add(HEADER) };
        // SAFETY: as above.
        [(unsafe { ring.add(start) }, first), (ring, count - first)]
    }
}

fn duplicate(descriptor: RawFd) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::Error::other(format!("the descriptor {descriptor}")));
    }
    // SAFETY: the descriptor is borrowed only for this call, which duplicates it. The call fails for a number that is
    // not an open descriptor.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map(File::from)
}

/// Rings the bell.
fn ring(mut bell: &File) -> io::Result<()> {
    bell.write_all(&1u64.to_ne_bytes())
}

/// Waits until the bell has been rung since the last wait.
fn wait(mut bell: &File) -> io::Result<()> {
    bell.read_exact(&mut [0; 8])
}

/// The writing end, in the child process.
pub(super) struct OutputWriter {
    ring: Ring,
    frame: Vec<u8>,
}

impl OutputWriter {
    pub(super) fn open(files: RingFiles) -> io::Result<Self> {
        Ok(Self { ring: Ring::open(files)?, frame: Vec::new() })
    }

    /// Writes outputs as one frame, and waits for room as often as needed.
    pub(super) fn write(&mut self, outputs: &[SequenceOutput]) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.extend([0; LENGTH]);
        frame = postcard::to_extend(outputs, frame).map_err(io::Error::other)?;
        let length = (frame.len() - LENGTH) as u64;
        frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
        let done = self.write_bytes(&frame);
        self.frame = frame;
        done
    }

    fn write_bytes(&self, mut bytes: &[u8]) -> io::Result<()> {
        let shared = &self.ring;
        while !bytes.is_empty() {
            let written = shared.counter(WRITTEN).load(Ordering::Relaxed);
            // Acquire: the reader no longer accesses bytes that it has counted as read.
            let read = shared.counter(READ).load(Ordering::Acquire);
            let room = shared.capacity().saturating_sub(written.wrapping_sub(read) as usize);
            if room == 0 {
                wait(&shared.read)?;
                continue;
            }
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            let [(first, count), (second, others)] = shared.parts(written, now.len());
            // SAFETY: both parts lie in the ring, and the reader does not access them before they are counted as
            // written.
            unsafe {
                first.copy_from_nonoverlapping(now.as_ptr(), count);
                second.copy_from_nonoverlapping(now[count..].as_ptr(), others);
            }
            shared.counter(WRITTEN).store(written + now.len() as u64, Ordering::Release);
            ring(&shared.written)?;
            bytes = rest;
        }
        Ok(())
    }
}

/// The reading end, in the parent process. It trusts nothing that the writer wrote, since a stray write may have killed
/// it.
pub struct OutputReader {
    ring: Ring,
    /// Bytes that were read but are not a whole frame yet.
    bytes: Vec<u8>,
    ended: Arc<AtomicBool>,
}

/// Ends the reading from another thread.
pub struct EndOfOutputs {
    bell: File,
    ended: Arc<AtomicBool>,
}

impl EndOfOutputs {
    /// Ends the reading once everything written before has been read.
    ///
    /// # Errors
    /// `Internal` if the system cannot ring the bell.
    pub fn end(&self) -> Result<()> {
        self.ended.store(true, Ordering::Release);
        ring(&self.bell).map_err(Error::internal)
    }
}

impl OutputReader {
    /// # Errors
    /// `Internal` if the files do not form a ring.
    pub fn open(files: RingFiles) -> Result<Self> {
        let ring = Ring::open(files).map_err(Error::internal)?;
        Ok(Self { ring, bytes: Vec::new(), ended: Arc::default() })
    }

    /// Returns the handle that ends the reading.
    ///
    /// # Errors
    /// `Internal` if the system has no more descriptors.
    pub fn end(&self) -> Result<EndOfOutputs> {
        let bell = self.ring.written.try_clone().map_err(Error::internal)?;
        Ok(EndOfOutputs { bell, ended: Arc::clone(&self.ended) })
    }

    /// Waits for the next outputs and returns them; `None` at the end. An incomplete frame of a dead writer is ignored.
    ///
    /// # Errors
    /// `Internal` if the written data is invalid.
    pub fn next_outputs(&mut self) -> Result<Option<Vec<SequenceOutput>>> {
        loop {
            if let Some(outputs) = self.take_frame()? {
                return Ok(Some(outputs));
            }
            // `ended` is loaded first, so that everything written before it was set is still read.
            let ended = self.ended.load(Ordering::Acquire);
            if self.read_bytes()? == 0 {
                if ended {
                    return Ok(None);
                }
                wait(&self.ring.written).map_err(Error::internal)?;
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Vec<SequenceOutput>>> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u64::from_le_bytes(*length);
        if (rest.len() as u64) < length {
            return Ok(None);
        }
        let end = length as usize;
        let outputs = postcard::from_bytes(&rest[..end]).map_err(Error::internal)?;
        self.bytes.drain(..LENGTH + end);
        Ok(Some(outputs))
    }

    fn read_bytes(&mut self) -> Result<usize> {
        let shared = &self.ring;
        let read = shared.counter(READ).load(Ordering::Relaxed);
        // Acquire: the bytes that are counted have been written.
        let count = shared.counter(WRITTEN).load(Ordering::Acquire).wrapping_sub(read);
        if count > shared.capacity() as u64 {
            return Err(Error::internal(format!("{count} bytes in a ring of {}", shared.capacity())));
        }
        let count = count as usize;
        if count > 0 {
            for (part, length) in shared.parts(read, count) {
                // SAFETY: the part lies in the ring. A correct writer does not touch it before it is counted as read.
                // An incorrect one can only change the bytes, and any bytes are valid.
                self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(part, length) });
            }
            shared.counter(READ).store(read + count as u64, Ordering::Release);
            ring(&shared.read).map_err(Error::internal)?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::engine::{FinishReason, RequestId, RequestMetrics, StopReason, TokenLogprob};

    /// The files of a ring.
    struct Files {
        memory: File,
        bells: [File; 2],
    }

    fn bell() -> File {
        // SAFETY: the call takes two numbers and touches no memory. The descriptor is open and has no other owner.
        unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC);
            assert!(descriptor >= 0);
            <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor)
        }
    }

    fn files(capacity: usize) -> (Files, RingFiles) {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len((HEADER + capacity) as u64).unwrap();
        let files = Files { memory, bells: [bell(), bell()] };
        let [written, read] = files.bells.each_ref().map(AsRawFd::as_raw_fd);
        let ring = RingFiles { memory: files.memory.as_raw_fd(), written, read };
        (files, ring)
    }

    fn output(request: u64, tokens: usize) -> SequenceOutput {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        SequenceOutput {
            request: RequestId(request),
            index: tokens % 3,
            text: "é".repeat(tokens),
            logprobs: ids
                .iter()
                .map(|&token_id| vec![TokenLogprob { token_id, logprob: f32::NEG_INFINITY, rank: 7 }])
                .collect(),
            token_ids: ids,
            cumulative_logprob: Some(-0.1),
            prompt_logprobs: Some(vec![None, Some(Vec::new())]),
            embedding: Some(vec![0.5; tokens]),
            finish_reason: (tokens.is_multiple_of(2)).then_some(FinishReason::Error),
            stop_reason: Some(StopReason::String("ü".into())),
            error: (tokens.is_multiple_of(2)).then(|| Error::StepFailed { problem: "no".into() }),
            metrics: RequestMetrics { arrival_time: 1.5, total_time: Some(0.1), ..Default::default() },
        }
    }

    fn shown(outputs: &[SequenceOutput]) -> String {
        format!("{outputs:?}")
    }

    /// A23: for any ring and frame sizes, everything arrives once, unchanged and in order.
    #[test]
    fn what_is_written_is_read() {
        for capacity in [1, 7, 64, 1000, 1 << 16] {
            let (_files, ring) = files(capacity);
            let mut writer = OutputWriter::open(ring).unwrap();
            let mut reader = OutputReader::open(ring).unwrap();
            let end = reader.end().unwrap();
            let batches: Vec<Vec<_>> = (0..40)
                .map(|batch| (0..batch % 4).map(|i| output(batch, (batch * 5 % 17 + i) as usize)).collect())
                .collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    batches.iter().for_each(|batch| writer.write(batch).unwrap());
                    end.end().unwrap();
                });
                for batch in &batches {
                    assert_eq!(shown(&reader.next_outputs().unwrap().unwrap()), shown(batch), "{capacity}");
                }
                assert!(reader.next_outputs().unwrap().is_none());
            });
        }
    }

    /// A writer may die at any moment, even of a stray write. An incomplete frame is ignored, and invalid data is an
    /// error.
    #[test]
    fn a_writer_that_died_is_not_trusted() {
        let (_files, ring) = files(1 << 12);
        let mut writer = OutputWriter::open(ring).unwrap();
        let mut reader = OutputReader::open(ring).unwrap();
        writer.write(&[output(1, 3)]).unwrap();
        writer.write_bytes(&100u64.to_le_bytes()).unwrap();
        writer.write_bytes(&[1, 2, 3]).unwrap();
        reader.end().unwrap().end().unwrap();
        assert_eq!(reader.next_outputs().unwrap().unwrap().len(), 1);
        assert!(reader.next_outputs().unwrap().is_none());

        let (_files, ring) = files(1 << 12);
        let mut reader = OutputReader::open(ring).unwrap();
        OutputWriter::open(ring).unwrap().write_bytes(&[&3u64.to_le_bytes()[..], &[0xff; 3]].concat()).unwrap();
        assert!(reader.next_outputs().is_err());

        let (_files, ring) = files(16);
        let mut reader = OutputReader::open(ring).unwrap();
        reader.ring.counter(WRITTEN).store(17, Ordering::Release);
        assert!(reader.next_outputs().unwrap_err().to_string().contains("17 bytes in a ring of 16"));
    }

    #[test]
    fn other_files_are_no_ring() {
        let (_files, ring) = files(0);
        assert!(OutputReader::open(ring).is_err());
        assert!(OutputReader::open(RingFiles { memory: -1, ..ring }).is_err());
    }
}
