//! Calls of the driver that fail, one after the other, until none fails any more: over a load, over 200 requests, and
//! over the end. The device is the stand-in's, which checks what has to happen before what: memory that is used too
//! early, after a wait that failed too, ends it.
//!
//! Each round has an engine of its own, and the first step waits until all requests are there: round N makes the calls
//! of round N + 1 up to the one that fails. (The calls of a load that come from several threads are in an order of
//! their own.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use proptest::test_runner::Config;

use super::support::*;
use super::tiny;
use crate::backend::MemoryLedger;
use crate::backend::OpenDevice;
use crate::backend::gpu::Device;
use crate::backend::gpu::tests::devices::{self, Call, Faults, Live};
use crate::batch::Batch;
use crate::config::{DeviceKind, EngineArgs, SamplingParams};
use crate::engine::load::load_on;
use crate::engine::{Engine, Executor, FinishReason, LoadedModel};
use crate::selection::{Needs, Selection, Wish};
use crate::testdata::TempFile;
use crate::{Error, Result};

const INVALID: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
/// An illegal address in a kernel.
const LOST: i32 = 700;

const REQUESTS: usize = 200;
/// The first ones, which are of every kind.
const MIXED: usize = 12;
const MAX_SEQS: usize = 8;

/// The model, and the name of a device that nobody else uses.
struct Rig {
    target: &'static str,
    file: TempFile,
    /// An optional part of a load that is turned on.
    extra: Extra,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    /// Steps are recorded.
    Recordings,
    /// Kernels are tested.
    SelfTest,
}

/// A device that was opened anew, and an engine's arguments for it.
struct Round {
    device: Device,
    faults: Faults,
    args: EngineArgs,
}

impl Rig {
    fn new(target: &'static str, extra: Extra) -> Self {
        Self { target, file: tiny::model(), extra }
    }

    /// `None` where the stand-in was not built.
    fn round(&self) -> Option<Round> {
        let (device, mut gpu, faults) = devices::open_faulty(self.target)?;
        gpu.self_test = self.extra == Extra::SelfTest;
        gpu.graphs = Some(self.extra == Extra::Recordings);
        let args = EngineArgs {
            device: DeviceKind::Gpu,
            gpu,
            max_model_len: Some(48),
            max_num_seqs: Some(MAX_SEQS),
            max_num_batched_tokens: Some(40),
            // The blocks are so few that cached prefixes are evicted.
            kv_cache_memory: Some(10 * tiny::BLOCK_BYTES),
            seed: Some(3),
            ..EngineArgs::new(&self.file.0)
        };
        Some(Round { device, faults, args })
    }
}

impl Round {
    fn load(&self) -> Result<LoadedModel> {
        load_on(&self.args, || Ok(OpenDevice::Gpu(self.device.clone())), &mut |_| true)
    }

    fn start(&self) -> Served {
        let LoadedModel { executor, config, .. } = self.load().unwrap();
        let ((arrived, is_here), (go, open)) = (bounded(0), bounded(0));
        let closed = Arc::new(AtomicBool::new(false));
        let held = Held { executor, closed: Arc::clone(&closed), arrived, open };
        let engine = Engine::start(Box::new(held), config, None, None).unwrap();
        Served { engine, closed, is_here, go }
    }

    /// Asserts that nothing of an engine is left on the device or in its page-locked memory.
    fn assert_nothing_left(&self, round: &str) {
        assert_eq!(self.faults.live(), Live::default(), "{round}");
        assert_eq!(self.device.allocated_bytes(), 0, "{round}");
    }
}

/// Keeps the first step back until it is let go.
struct Held {
    executor: Box<dyn Executor>,
    closed: Arc<AtomicBool>,
    arrived: Sender<()>,
    open: Receiver<()>,
}

impl Executor for Held {
    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()> {
        self.executor.draft(batch, first)
    }

    fn launch(&mut self, batch: &Batch, needs: Needs) -> Result<()> {
        if self.closed.swap(false, Ordering::SeqCst) {
            self.arrived.send(()).unwrap();
            self.open.recv().unwrap();
        }
        self.executor.launch(batch, needs)
    }

    fn select(&mut self, wishes: &[Wish<'_>]) -> Result<()> {
        self.executor.select(wishes)
    }

    fn collect(&mut self) -> Result<Selection<'_>> {
        self.executor.collect()
    }

    fn is_asynchronous(&self) -> bool {
        self.executor.is_asynchronous()
    }

    fn vocab_size(&self) -> usize {
        self.executor.vocab_size()
    }

    fn memory(&self) -> MemoryLedger {
        self.executor.memory()
    }

    fn device_allocations(&self) -> u64 {
        self.executor.device_allocations()
    }

    fn describe(&self) -> String {
        self.executor.describe()
    }
}

/// A running engine and the hand on its first step.
struct Served {
    engine: Engine,
    closed: Arc<AtomicBool>,
    is_here: Receiver<()>,
    go: Sender<()>,
}

impl Served {
    /// All that comes for `drafts`, which are all there before the first step is made, and `arm` called.
    fn run(&self, drafts: Vec<Draft>, arm: impl FnOnce()) -> Vec<Finished> {
        self.closed.store(true, Ordering::SeqCst);
        let mut drafts = drafts.into_iter();
        let first = submit(&self.engine, drafts.next().unwrap()).unwrap();
        self.is_here.recv_timeout(HANG).unwrap();
        let others: Vec<_> = drafts.map(|draft| submit(&self.engine, draft).unwrap()).collect();
        arm();
        self.go.send(()).unwrap();
        [first].into_iter().chain(others).map(Client::wait).collect()
    }
}

/// Requests of every kind that steps differ for: prompts in pieces and from the cache, rows that are chosen from,
/// altered, reported and drawn from whole, sequences that fork; then many of one token, which take next to no time.
fn drafts(count: usize) -> Vec<Draft> {
    let token = |i: usize| (i % tiny::VOCAB as usize) as u32;
    (0..count)
        .map(|i| {
            if i >= MIXED {
                return request(&[token(i)], greedy(1));
            }
            let mut prompt: Vec<u32> = (0..[3, 41, 1, 26, 17][i % 5]).map(|at| token(7 * at)).collect();
            prompt.extend((0..1 + i % 3).map(|at| token(11 * i + 5 * at)));
            let params = greedy(1 + i % 3);
            let sampled = SamplingParams { temperature: 0.8, seed: Some(i as u64), ..params.clone() };
            let params = match i % 6 {
                1 => SamplingParams { top_k: 5, ..sampled },
                2 => SamplingParams { repetition_penalty: 1.3, logit_bias: vec![(5, 2.0)], ..params },
                3 => SamplingParams { logprobs: Some(2), ..params },
                4 => SamplingParams { n: 2, top_k: 8, ..sampled },
                // Drawn from the whole row.
                5 => SamplingParams { temperature: 1.5, ..sampled },
                _ => params,
            };
            request(&prompt, params)
        })
        .collect()
}

/// Counts requests that ended in an error. Asserts that all others have exactly the expected tokens, and that the
/// failed ones have a prefix of theirs.
fn check_ends(ends: &[Finished], expected: &[Finished], is_right: impl Fn(&Error) -> bool, round: &str) -> usize {
    let mut failed = 0;
    for (request, (ended, expected)) in ends.iter().zip(expected).enumerate() {
        failed += usize::from(ended.values().any(|one| one.reason == Some(FinishReason::Error)));
        for (one, expected) in ended.values().zip(expected.values()) {
            match one.reason {
                Some(FinishReason::Error) => {
                    let error = one.error.as_ref().unwrap();
                    assert!(is_right(error), "{round}, request {request}: {error}");
                    assert!(expected.tokens.starts_with(&one.tokens), "{round}, request {request}");
                }
                reason => {
                    assert_eq!(reason, expected.reason, "{round}, request {request}");
                    assert_eq!(one.tokens, expected.tokens, "{round}, request {request}");
                }
            }
        }
    }
    failed
}

/// G3, G10: whatever call of a load fails, the load says so by a typed error, and nothing of it is left.
#[test]
fn every_call_of_a_load_fails_once() {
    let rig = Rig::new("cpu-wave32:up@load", Extra::SelfTest);
    for nth in 0.. {
        let Some(round) = rig.round() else { return };
        round.faults.fail_any(nth, INVALID);
        let loaded = round.load();
        let Some(call) = round.faults.failed() else {
            loaded.unwrap();
            assert!(nth > 100, "{nth} calls");
            return;
        };
        // A failure to give something back is reported by the next use of the device.
        let error = loaded.and_then(|_| round.device.check()).expect_err("no failure is swallowed");
        let is_told = matches!(&error, Error::Device { problem, .. } if problem.contains("failed on purpose"));
        assert!(is_told, "call {nth}, {call:?}: {error}");
        round.assert_nothing_left(&format!("call {nth}, {call:?}"));
    }
}

/// If a call fails while a load records steps, the load goes on without recordings and says so, and nothing of them is
/// left.
#[test]
fn calls_of_recordings_fail() {
    let rig = Rig::new("cpu-wave32:up@recordings", Extra::Recordings);
    let mut done_without = 0;
    for nth in (0..).step_by(stride(3)) {
        let Some(round) = rig.round() else { return };
        round.faults.fail_any(nth, INVALID);
        let loaded = round.load().and_then(|loaded| round.device.check().map(|()| loaded));
        let Some(call) = round.faults.failed() else {
            loaded.unwrap();
            assert!(done_without > 10, "{done_without} of {nth} calls");
            return;
        };
        match loaded {
            Ok(LoadedModel { executor, .. }) => {
                let described = executor.describe();
                assert!(described.contains("recording a step failed"), "call {nth}, {call:?}: {described}");
                assert_eq!(round.faults.live().graphs, 0, "call {nth}, {call:?}");
                done_without += 1;
            }
            Err(error) => assert!(error.to_string().contains("failed on purpose"), "call {nth}, {call:?}: {error}"),
        }
        round.assert_nothing_left(&format!("call {nth}, {call:?}"));
    }
}

/// G3: whichever allocation of a load finds no memory, on the device or page-locked, the load ends in `OutOfMemory`,
/// and nothing of it is left; once it is loaded, an engine allocates nothing more.
#[test]
fn every_allocation_fails_once() {
    let rig = Rig::new("cpu-wave32:up@allocations", Extra::SelfTest);
    for call in [Call::Allocate, Call::AllocateHost] {
        for nth in 0.. {
            let Some(round) = rig.round() else { return };
            round.faults.fail(call, nth, OUT_OF_MEMORY);
            let loaded = round.load();
            if round.faults.failed().is_none() {
                assert!(loaded.is_ok() && nth > 5, "{nth} of {call:?}");
                break;
            }
            let error = loaded.map(drop).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{call:?} {nth}: {error}");
            round.device.check().unwrap();
            round.assert_nothing_left(&format!("{call:?} {nth}"));
        }
    }
    let Some(round) = rig.round() else { return };
    let served = round.start();
    let allocations = || [Call::Allocate, Call::AllocateHost].map(|call| round.faults.calls(call));
    let loaded = allocations();
    let ends = served.run(drafts(REQUESTS), || {});
    assert!(ends.iter().flat_map(|ended| ended.values()).all(|one| one.reason == Some(FinishReason::Length)));
    assert_eq!(allocations(), loaded);
    served.engine.close();
    round.assert_nothing_left("closed");
}

/// Rounds of `count` requests, in which calls fail with a code.
struct Serving {
    rig: Rig,
    count: usize,
    /// The results of the requests where no call fails.
    expected: Vec<Finished>,
}

impl Serving {
    fn new(target: &'static str, count: usize) -> Option<Self> {
        let rig = Rig::new(target, Extra::Recordings);
        let round = rig.round()?;
        let served = round.start();
        let expected = served.run(drafts(count), || {});
        assert!(expected.iter().flat_map(|one| one.values()).all(|one| one.reason == Some(FinishReason::Length)));
        served.engine.close();
        round.assert_nothing_left("undisturbed");
        Some(Self { rig, count, expected })
    }

    /// `plan` says which call fails with `INVALID`. Requests of one step end with an error that says so, each once; all
    /// others have exactly their tokens, those that come later too; nothing is left of any. `false` where none fails
    /// any more.
    fn fail(&self, plan: impl FnOnce(&Faults)) -> bool {
        let round = self.rig.round().unwrap();
        let served = round.start();
        let allocations = served.engine.stats().device_allocations;
        let ends = served.run(drafts(self.count), || plan(&round.faults));
        let Some(call) = round.faults.failed() else {
            assert_eq!(check_ends(&ends, &self.expected, |_| false, "undisturbed"), 0);
            return false;
        };
        let name = format!("{call:?}, of {} calls", round.faults.calls(call));
        let is_told = |error: &Error| matches!(error, Error::StepFailed { problem } if problem.contains("on purpose"));
        let failed = check_ends(&ends, &self.expected, is_told, &name);
        assert!(failed <= MAX_SEQS, "{name}: {failed} requests failed, a step has {MAX_SEQS}");
        // The engine lives on. What failed when the last step gave something back is told only now.
        let ends = served.run(drafts(4), || {});
        let failed_later = check_ends(&ends, &self.expected, is_told, &name);
        assert!((failed == 0) == (failed_later > 0), "{name}: {failed} and then {failed_later}");
        assert_nothing_left_of(&served.engine, allocations);
        served.engine.close();
        round.device.check().unwrap();
        round.assert_nothing_left(&name);
        true
    }

    /// `plan` says which call finds that the device is lost: all requests end with `EngineDead`, but for those that had
    /// ended before, and so does what comes later; nothing is left.
    fn lose(&self, plan: impl FnOnce(&Faults)) -> bool {
        let round = self.rig.round().unwrap();
        let served = round.start();
        let ends = served.run(drafts(self.count), || plan(&round.faults));
        let Some(call) = round.faults.failed() else {
            assert_eq!(check_ends(&ends, &self.expected, |_| false, "undisturbed"), 0);
            return false;
        };
        let name = format!("{call:?}, of {} calls", round.faults.calls(call));
        let is_told = |error: &Error| matches!(error, Error::EngineDead { reason } if reason.contains("on purpose"));
        assert!(check_ends(&ends, &self.expected, is_told, &name) > 0, "{name}");
        let later = submit(&served.engine, request(&[1], greedy(1))).err().unwrap();
        assert!(is_told(&later), "{name}: {later}");
        served.engine.close();
        round.assert_nothing_left(&name);
        true
    }
}

/// Kinds of calls that steps make.
const OF_STEPS: [Call; 6] =
    [Call::Synchronize, Call::Record, Call::CopyToDevice, Call::CopyToHost, Call::Launch, Call::LaunchGraph];

/// Every call in `make test-soak`, which asks for many cases of all property tests; else every `usual`-th.
fn stride(usual: usize) -> usize {
    if Config::default().cases > 10_000 { 1 } else { usual }
}

/// G3, G10: whatever call fails while requests are served takes one step with it and nothing else (`Serving::fail`):
/// some calls of each kind, with requests of every kind.
#[test]
fn calls_of_each_kind_fail() {
    let Some(serving) = Serving::new("cpu-wave32:up@kinds", MIXED) else { return };
    for call in OF_STEPS {
        for nth in [0, 1, 4, 11] {
            if !serving.fail(|faults| faults.fail(call, nth, INVALID)) {
                assert!(nth > 0, "steps do not make the call {call:?}");
                break;
            }
        }
    }
}

/// G3, G10: the same over 200 requests: every 211th call, or every one (`stride`).
#[test]
fn calls_of_200_requests_fail() {
    let Some(serving) = Serving::new("cpu-wave32:up@requests", REQUESTS) else { return };
    let calls = (0..).step_by(stride(211));
    let fired = calls.take_while(|&nth| serving.fail(|faults| faults.fail_any(nth, INVALID)));
    assert!(fired.count() > 1);
}

/// G10: whatever call finds that the device is lost ends everything (`Serving::lose`): every 37th call, or every one
/// (`stride`), with requests of every kind.
#[test]
fn calls_find_the_device_lost() {
    let Some(serving) = Serving::new("cpu-wave32:up@lost", MIXED) else { return };
    let calls = (0..).step_by(stride(37));
    let fired = calls.take_while(|&nth| serving.lose(|faults| faults.fail_any(nth, LOST)));
    assert!(fired.count() > 3);
}

/// G3: whatever call fails when an engine ends with a step under way, nothing of it is left.
#[test]
fn every_call_of_an_end_fails_once() {
    let rig = Rig::new("cpu-wave32:up@end", Extra::Recordings);
    for nth in 0.. {
        let Some(round) = rig.round() else { return };
        let served = round.start();
        served.closed.store(true, Ordering::SeqCst);
        let client = submit(&served.engine, request(&[1; 30], greedy(15))).unwrap();
        served.is_here.recv_timeout(HANG).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| served.engine.close());
            while served.engine.commands_in_queue() == 0 {
                std::thread::yield_now();
            }
            round.faults.fail_any(nth, INVALID);
            served.go.send(()).unwrap();
        });
        let call = round.faults.failed();
        let name = format!("call {nth}, {call:?}");
        let reason = client.wait()[&0].reason;
        assert!(matches!(reason, Some(FinishReason::Abort | FinishReason::Error)), "{name}: {reason:?}");
        round.assert_nothing_left(&name);
        if call.is_none() {
            assert!(nth > 50, "{name}");
            return;
        }
    }
}
