use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use super::ThreadPool;
use crate::Error;

fn counts(pool: &ThreadPool, num_chunks: usize) -> Vec<usize> {
    let counts: Vec<_> = (0..num_chunks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(num_chunks, &|chunk| {
        counts[chunk].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_chunk_runs_exactly_once() {
    for num_threads in [1, 2, 3, 8] {
        let pool = ThreadPool::new(num_threads).unwrap();
        assert_eq!(pool.num_threads(), num_threads);
        for num_chunks in [0, 1, 2, 3, 7, 64, 1000] {
            for _ in 0..20 {
                assert_eq!(counts(&pool, num_chunks), vec![1; num_chunks]);
            }
        }
    }
}

#[test]
fn no_threads_is_an_error() {
    assert!(matches!(ThreadPool::new(0), Err(Error::InvalidRequest { what: "num_threads", .. })));
}

/// The barrier opens only if two threads are inside the job at once.
#[test]
fn workers_take_part_and_are_named() {
    let pool = ThreadPool::new(2).unwrap();
    let barrier = Barrier::new(2);
    let names = Mutex::new(HashSet::new());
    pool.run(2, &|_| {
        barrier.wait();
        names.lock().unwrap().insert(std::thread::current().name().unwrap_or("").to_owned());
    });
    assert!(names.into_inner().unwrap().contains("rocmforge-cpu-1"));
}

/// Workers wake up for the next job after a long time parked.
#[test]
fn parked_workers_wake_up() {
    let pool = ThreadPool::new(2).unwrap();
    while pool.shared.sleepers.load(Ordering::Relaxed) < 1 {
        std::thread::yield_now();
    }
    let barrier = Barrier::new(2);
    pool.run(2, &|_| {
        barrier.wait();
    });
}

/// A worker that is slow in its chunk parks the caller. The other chunks finish meanwhile.
#[test]
fn caller_waits_for_a_slow_claimed_chunk() {
    let pool = ThreadPool::new(2).unwrap();
    let entered = Barrier::new(2);
    let sum = AtomicUsize::new(0);
    let caller = std::thread::current().id();
    pool.run(50, &|chunk| {
        if chunk < 2 {
            entered.wait();
            if std::thread::current().id() != caller {
                while !pool.shared.caller_sleeps.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        }
        sum.fetch_add(chunk, Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 49 * 50 / 2);
}

#[test]
fn a_panic_is_resumed_after_all_chunks_ran_and_the_pool_lives_on() {
    for num_threads in [1, 3] {
        let pool = ThreadPool::new(num_threads).unwrap();
        let ran = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(20, &|chunk| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert!(chunk != 3, "chunk 3 failed");
            });
        }));
        assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "chunk 3 failed");
        assert_eq!(ran.into_inner(), 20);
        assert_eq!(counts(&pool, 10), vec![1; 10]);
    }
}

#[test]
fn a_nested_run_is_served_by_the_calling_thread() {
    let pool = ThreadPool::new(3).unwrap();
    let inner = AtomicUsize::new(0);
    pool.run(4, &|_| {
        let me = std::thread::current().id();
        pool.run(5, &|_| {
            assert_eq!(std::thread::current().id(), me);
            inner.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(inner.into_inner(), 20);
}

#[test]
fn concurrent_callers_each_get_all_their_chunks() {
    let pool = ThreadPool::new(2).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(counts(&pool, 9), vec![1; 9]);
                }
            });
        }
    });
}

/// With far more threads than cores, the caller does not wait for workers that never got a core.
#[test]
fn oversubscribed_team_completes() {
    let pool = ThreadPool::new(32).unwrap();
    for _ in 0..200 {
        assert_eq!(counts(&pool, 40), vec![1; 40]);
    }
}

#[test]
fn more_chunks_than_a_ticket_counts() {
    let pool = ThreadPool::new(2).unwrap();
    let sum = AtomicUsize::new(0);
    let n = super::MAX_CHUNKS + 10;
    pool.run(n, &|chunk| {
        sum.fetch_add(chunk, Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), n * (n - 1) / 2);
}

/// A10: an interrupted job hands out no more chunks, and the pool serves the next job normally.
#[test]
fn an_interrupted_job_stops() {
    for num_threads in [1, 3] {
        let pool = ThreadPool::new(num_threads).unwrap();
        for num_chunks in [1, 2, 1000] {
            let (stop, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
            pool.run(num_chunks, &|_| {
                // No thread continues before the request exists, so each thread runs at most one chunk.
                if stop.fetch_add(1, Ordering::Relaxed) == 0 {
                    pool.interrupt().stop_at(std::time::Instant::now());
                }
                while !pool.interrupt().is_due() {
                    std::hint::spin_loop();
                }
                ran.fetch_add(1, Ordering::Relaxed);
            });
            let ran = ran.into_inner();
            assert!((1..=num_threads.min(num_chunks)).contains(&ran), "{ran} of {num_chunks} chunks");
            assert_eq!(counts(&pool, num_chunks), vec![0; num_chunks]);
            pool.interrupt().clear();
            assert_eq!(counts(&pool, num_chunks), vec![1; num_chunks]);
        }
    }
}
