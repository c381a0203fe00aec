//! The thread pool: a team that runs one job at a time. A job is split into chunks that threads claim dynamically.
//!
//! The protocol is one 64-bit ticket, `(epoch, unclaimed chunks)`. `run` publishes a job by storing a new epoch with
//! its number of chunks. Caller and workers claim a chunk by a compare-and-swap of the ticket. This has two
//! consequences:
//!
//! * A worker that wakes late cannot touch a finished job, because its swap fails on the epoch. The epoch has 40 bits,
//!   so a false match takes exactly 2^40 jobs between a load and its swap.
//! * Nobody waits for a worker that has not woken up. With fewer free cores than threads, the caller claims all chunks
//!   itself. It waits only for chunks that are already claimed.
//!
//! Idle workers spin for some microseconds, since the jobs of a step follow each other quickly. They then yield and
//! finally park, so an idle pool takes no CPU time.
#![allow(unsafe_code)] // A job borrows from the caller's stack and is reached by workers through a raw pointer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::PoisonError;
use std::time::Duration;

use crate::interrupt::Interrupt;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Arc, Condvar, Mutex, thread};
use crate::{Error, Result};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait;

use wait::spin_until;

/// The ops of a step follow each other within microseconds.
const SPIN: Duration = Duration::from_micros(40);
const CHUNK_BITS: u32 = 24;
/// The most chunks that one ticket can count. Longer jobs run in slices.
const MAX_CHUNKS: usize = (1 << CHUNK_BITS) - 1;

type ChunkFn<'a> = dyn Fn(usize) + Sync + 'a;
type PanicPayload = Box<dyn Any + Send>;

/// A team of threads that runs one job at a time, split into chunks that threads claim dynamically.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<thread::JoinHandle<()>>,
    /// Held by the thread whose job the team is running.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// `epoch << CHUNK_BITS | unclaimed chunks`.
    ticket: AtomicU64,
    /// The job of the current epoch, on the stack of its caller. Only a thread that has claimed one of its chunks, and
    /// not yet reported it in `pending`, may read it.
    job: AtomicPtr<Job>,
    /// Chunks of the current job not yet reported as done.
    pending: AtomicUsize,
    stop: AtomicBool,
    /// Workers that are parked or about to be.
    sleepers: AtomicUsize,
    /// True while the caller is parked, or about to park, until `pending` is 0.
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    work: Condvar,
    done: Condvar,
    interrupt: Interrupt,
    /// The time that a thread without work spins before it parks.
    spin: Duration,
}

struct Job {
    run_chunk: *const ChunkFn<'static>,
    first_chunk: usize,
    num_chunks: usize,
    /// The first panic of a chunk, for the caller.
    panic: Mutex<Option<PanicPayload>>,
}

impl ThreadPool {
    /// Starts a team of `num_threads` threads including the calling thread. One thread means no workers.
    ///
    /// # Errors
    /// `InvalidRequest` for zero threads, `Device` if the system refuses a thread.
    pub fn new(num_threads: usize) -> Result<Self> {
        Self::spinning(num_threads, SPIN)
    }

    /// Like `new`, with the time that a thread without work spins. It should be longer than the pauses between jobs,
    /// since waking a parked thread takes tens of microseconds.
    ///
    /// # Errors
    /// As for `new`.
    pub fn spinning(num_threads: usize, spin: Duration) -> Result<Self> {
        if num_threads == 0 {
            return Err(Error::invalid("num_threads", num_threads, "at least 1"));
        }
        let shared = Arc::new(Shared { spin, ..Shared::default() });
        let mut pool = Self { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..num_threads {
            let shared = Arc::clone(&pool.shared);
            let spawned = thread::Builder::new()
                .name(format!("rocmforge-cpu-{index}"))
                .spawn(move || shared.work_until_stopped());
            // On failure the pool is dropped, which ends the workers already started.
            pool.workers.push(spawned.map_err(|e| Error::Device {
                device: "cpu".to_owned(),
                problem: format!("cannot start worker thread {index} of {num_threads}: {e}; use fewer num_threads"),
            })?);
        }
        Ok(pool)
    }

    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Returns the signal that stops the jobs of this pool. Once it is due, this job and all later ones skip their
    /// chunks. Check it before using the results of a job.
    pub fn interrupt(&self) -> &Interrupt {
        &self.shared.interrupt
    }

    /// Calls `job(chunk)` once for every chunk in `0..num_chunks`, on any of the threads, and returns when all are
    /// done.
    ///
    /// If the team is busy, the calling thread runs all chunks alone. This happens in a call from inside a chunk or
    /// from a second thread.
    ///
    /// # Panics
    /// A panic in a chunk is resumed in the caller once the team has run all chunks (the first panic, if there are
    /// several).
    pub fn run(&self, num_chunks: usize, job: &(dyn Fn(usize) + Sync)) {
        let turn = match (num_chunks, self.turn.try_lock()) {
            (2.., Ok(turn)) => turn,
            _ => return (0..num_chunks).take_while(|_| !self.shared.interrupt.is_due()).for_each(job),
        };
        let mut panic = None;
        for first in (0..num_chunks).step_by(MAX_CHUNKS) {
            let thrown = self.shared.run_as_caller(first, MAX_CHUNKS.min(num_chunks - first), job);
            panic = panic.or(thrown);
        }
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake_workers();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a chunk, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a job, takes part in it and waits for the chunks that workers claimed. Returns the first panic.
    fn run_as_caller(&self, first_chunk: usize, num_chunks: usize, run_chunk: &ChunkFn<'_>) -> Option<PanicPayload> {
        // SAFETY: only the lifetime changes. The pointer is used only for claimed, unreported chunks (see `claim`).
        // This function returns only after all chunks are reported, so the pointer is not used after `run_chunk`'s
        // borrow ends.
        let run_chunk = unsafe { std::mem::transmute::<*const ChunkFn<'_>, *const ChunkFn<'static>>(run_chunk) };
        let job = Job { run_chunk, first_chunk, num_chunks, panic: Mutex::new(None) };

        // Relaxed: both are only read after the ticket, which is stored below with release. No earlier claim is
        // unreported, since the previous call waited for all of them.
        self.job.store(ptr::from_ref(&job).cast_mut(), Ordering::Relaxed);
        self.pending.store(num_chunks, Ordering::Relaxed);
        let epoch = (self.ticket.load(Ordering::Relaxed) >> CHUNK_BITS).wrapping_add(1);
        self.ticket.store(epoch << CHUNK_BITS | num_chunks as u64, Ordering::Release);
        self.wake_workers();

        self.run_chunks();
        if !spin_until(self.spin, || self.pending.load(Ordering::Acquire) == 0) {
            self.sleep_until_done();
        }
        job.panic.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn work_until_stopped(&self) {
        while !self.stop.load(Ordering::Acquire) {
            self.run_chunks();
            if !spin_until(self.spin, || self.has_news()) {
                self.sleep_until_news();
            }
        }
    }

    /// Claims and runs chunks until none is left, then reports them.
    fn run_chunks(&self) {
        let mut num_run = 0;
        while let Some((job, chunk)) = self.claim() {
            // SAFETY: `job` is alive until the claimed chunk is reported, which happens below.
            let job = unsafe { &*job };
            // SAFETY: as above: the closure outlives the job.
            let run_chunk = unsafe { &*job.run_chunk };
            // A skipped chunk is still claimed and reported, so the job ends in the usual way.
            if !self.interrupt.is_due()
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| run_chunk(chunk)))
            {
                job.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            num_run += 1;
        }
        // Release: the caller that sees 0 sees what the chunks wrote. Nothing of the job is touched afterwards.
        if num_run > 0 && self.pending.fetch_sub(num_run, Ordering::AcqRel) == num_run {
            // Pairs with the fence in `sleep_until_done`: either the caller sees 0, or we see it asleep.
            fence(Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::Relaxed) {
                drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
                self.done.notify_one();
            }
        }
    }

    /// Claims the next chunk of the current job. The job stays alive until the chunk is reported in `pending`.
    fn claim(&self) -> Option<(*const Job, usize)> {
        let mut ticket = self.ticket.load(Ordering::Relaxed);
        loop {
            let unclaimed = ticket as usize & MAX_CHUNKS;
            if unclaimed == 0 {
                return None;
            }
            // Acquire: pairs with the publishing store, through the other claims (a release sequence).
            match self.ticket.compare_exchange_weak(ticket, ticket - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let job = self.job.load(Ordering::Relaxed).cast_const();
                    // SAFETY: the swap succeeded on the current epoch and one of its chunks is now ours, so the caller
                    // waits for us: the pointer is this epoch's, and its target is alive.
                    let (first, count) = unsafe { ((*job).first_chunk, (*job).num_chunks) };
                    return Some((job, first + count - unclaimed));
                }
                Err(now) => ticket = now,
            }
        }
    }

    /// True if a worker has something to do: a chunk, or to end.
    fn has_news(&self) -> bool {
        self.ticket.load(Ordering::Relaxed) as usize & MAX_CHUNKS != 0 || self.stop.load(Ordering::Relaxed)
    }

    /// Wakes sleeping workers after news was stored. Costs one load while no worker sleeps.
    fn wake_workers(&self) {
        // Pairs with the fence in `sleep_until_news`: either the worker sees the news, or we see the sleeper.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Sleepers hold the lock from their last check until they wait, so this cannot happen in between.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.work.notify_all();
        }
    }

    fn sleep_until_news(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !self.has_news() {
            guard = self.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn sleep_until_done(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.caller_sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.pending.load(Ordering::Acquire) != 0 {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::Relaxed);
    }
}
