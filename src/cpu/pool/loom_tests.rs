//! Model checks of the protocol: `make test-loom`.

use super::ThreadPool;
use crate::sync::atomic::{AtomicUsize, Ordering};

fn check(preemption_bound: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemption_bound);
    model.check(f);
}

/// Runs one job and checks that each chunk ran once and is visible to the caller.
fn run_and_count(pool: &ThreadPool, num_chunks: usize) {
    let runs: Vec<_> = (0..num_chunks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(num_chunks, &|chunk| {
        // Relaxed: visibility to the caller must come from the pool's own protocol.
        runs[chunk].fetch_add(1, Ordering::Relaxed);
    });
    for run in &runs {
        assert_eq!(run.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn loom_each_chunk_runs_once_and_drop_joins() {
    check(3, || run_and_count(&ThreadPool::new(2).unwrap(), 2));
}

/// A worker that is late for the first job must not run the second job's chunks through the first job's pointer.
#[test]
fn loom_late_worker_never_touches_a_finished_job() {
    check(3, || {
        let pool = ThreadPool::new(2).unwrap();
        run_and_count(&pool, 2);
        run_and_count(&pool, 3);
    });
}

#[test]
fn loom_two_workers() {
    check(2, || run_and_count(&ThreadPool::new(3).unwrap(), 3));
}

#[test]
fn loom_chunk_writes_are_visible_without_atomics() {
    check(3, || {
        let pool = ThreadPool::new(2).unwrap();
        let cells = [loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)];
        let cells = Cells(&cells);
        pool.run(2, &|chunk| cells.set(chunk, chunk + 1));
        assert_eq!((cells.get(0), cells.get(1)), (1, 2));
    });
}

/// Plain memory that loom watches: an access without a happens-before edge fails the model.
struct Cells<'a>(&'a [loom::cell::UnsafeCell<usize>; 2]);

// SAFETY: loom checks each access, which is the purpose of the test.
unsafe impl Sync for Cells<'_> {}

impl Cells<'_> {
    fn set(&self, index: usize, value: usize) {
        // SAFETY: loom reports a race instead of making one.
        self.0[index].with_mut(|p| unsafe { *p = value });
    }
    fn get(&self, index: usize) -> usize {
        // SAFETY: as above.
        self.0[index].with(|p| unsafe { *p })
    }
}
