//! Makes driver calls fail, one after the other, until none is left: during a load, during 200 requests, and during the
//! end. A commit tests some of the calls, and `make test-soak` every one (`stride`). The device is simulated and checks
//! the order of operations. It aborts if memory is used too early, even after a failed wait.
//!
//! Each round has its own engine, and the first step waits until all requests have arrived. So round N makes the calls
//! of round N + 1 up to the one that fails. (The calls of a load that come from several threads have no fixed order.)

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use proptest::test_runner::Config;

use crate::backend::MemoryLedger;
use crate::batch::Batch;
use crate::config::{DeviceKind, EngineArgs, SamplingParams};
use crate::devices::OpenDevice;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, Call, Faults, Live};
use crate::load::load_on;
use crate::model::vision::Images;
use crate::selection::{Needs, SamplingRequest, Selection};
use crate::testdata::TempFile;
use crate::tests::support::*;
use crate::tests::tiny;
use crate::{Engine, Executor, FinishReason, LoadedModel};
use crate::{Error, Result};

const INVALID: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
/// An illegal address in a kernel.
const LOST: i32 = 700;

const REQUESTS: usize = 200;
/// The first requests, which are of every kind.
const MIXED: usize = 12;
const MAX_SEQS: usize = 8;

/// The model, and the name of a device that no other test uses.
struct Rig {
    target: &'static str,
    file: TempFile,
    /// An optional part of a load that is enabled.
    extra: Extra,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    /// Steps are captured as graphs.
    Captures,
    /// Kernels are tested at load.
    SelfTest,
}

/// A newly opened device, and an engine's arguments for it.
struct Round {
    device: Device,
    faults: Faults,
    args: EngineArgs,
}

impl Rig {
    fn new(target: &'static str, extra: Extra) -> Self {
        Self { target, file: tiny::model(), extra }
    }

    /// Returns `None` if the simulator was not built.
    fn round(&self) -> Option<Round> {
        let (device, mut gpu, faults) = devices::open_faulty(self.target)?;
        gpu.self_test = self.extra == Extra::SelfTest;
        gpu.graphs = Some(self.extra == Extra::Captures);
        let args = EngineArgs {
            device: DeviceKind::Gpu,
            gpu,
            max_model_len: Some(48),
            max_num_seqs: Some(MAX_SEQS),
            max_num_batched_tokens: Some(40),
            // There are so few blocks that cached prefixes are evicted.
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
        let engine = Engine::start(LoadedModel::new(Box::new(held), config)).unwrap();
        Served { engine, closed, is_here, go }
    }

    /// Asserts that an engine left nothing on the device or in page-locked memory.
    fn assert_nothing_left(&self, round: &str) {
        assert_eq!(self.faults.live(), Live::default(), "{round}");
        assert_eq!(self.device.allocated_bytes(), 0, "{round}");
    }
}

/// Holds the first step back until it is released.
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

    fn launch(&mut self, batch: &Batch, images: &Images, needs: Needs) -> Result<()> {
        if self.closed.swap(false, Ordering::SeqCst) {
            self.arrived.send(()).unwrap();
            self.open.recv().unwrap();
        }
        self.executor.launch(batch, images, needs)
    }

    fn rows_at_once(&self) -> usize {
        self.executor.rows_at_once()
    }

    fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()> {
        self.executor.select(rows, sampling_requests)
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

/// A running engine, and the controls of its first step.
struct Served {
    engine: Engine,
    closed: Arc<AtomicBool>,
    is_here: Receiver<()>,
    go: Sender<()>,
}

impl Served {
    /// Returns all results of `drafts`. All requests arrive, and `arm` is called, before the first step is built.
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

/// Requests of every kind that affects steps: prompts in chunks and from the cache, rows with picked tokens, with
/// alterations, with log-probabilities and with whole-row draws, and forks. Then many fast requests for one token.
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

/// G3, G10: whatever call of a load fails, the load returns a typed error and leaves nothing.
#[test]
fn calls_of_a_load_fail() {
    let rig = Rig::new("cpu-wave32:up@load", Extra::SelfTest);
    for nth in (0..).step_by(stride(7)) {
        let Some(round) = rig.round() else { return };
        round.faults.fail_any(nth, INVALID);
        let loaded = round.load();
        let Some(call) = round.faults.failed() else {
            loaded.unwrap();
            assert!(nth > 100, "{nth} calls");
            return;
        };
        // The next use of the device reports a failure to free something.
        let loaded = loaded.and_then(|_| round.device.check());
        if call == Call::MemoryInfo && loaded.is_ok() {
            // The engine estimates free memory that the driver does not tell.
            round.assert_nothing_left(&format!("call {nth}, {call:?}"));
            continue;
        }
        let error = loaded.expect_err("no failure is swallowed");
        let is_told = matches!(&error, Error::Device { problem, .. } if problem.contains("failed on purpose"));
        assert!(is_told, "call {nth}, {call:?}: {error}");
        round.assert_nothing_left(&format!("call {nth}, {call:?}"));
    }
}

/// If a call fails while a load captures steps, the load continues without captured graphs, reports that, and leaves
/// nothing of them.
#[test]
fn calls_of_captures_fail() {
    let rig = Rig::new("cpu-wave32:up@recordings", Extra::Captures);
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
                let has_failed = described.contains("capturing a step failed");
                // The engine estimates free memory that the driver does not tell.
                assert!(has_failed || call == Call::MemoryInfo, "call {nth}, {call:?}: {described}");
                if has_failed {
                    assert_eq!(round.faults.live().graphs, 0, "call {nth}, {call:?}");
                    done_without += 1;
                }
            }
            Err(error) => assert!(error.to_string().contains("failed on purpose"), "call {nth}, {call:?}: {error}"),
        }
        round.assert_nothing_left(&format!("call {nth}, {call:?}"));
    }
}

/// G3: whatever device or page-locked allocation of a load fails, the load ends in `OutOfMemory` and leaves nothing. A
/// loaded engine allocates nothing more.
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

/// Rounds of `count` requests, in which calls fail with an error code.
struct Serving {
    rig: Rig,
    count: usize,
    /// The results of the requests if no call fails.
    expected: Vec<Finished>,
}

impl Serving {
    fn new(target: &'static str, count: usize) -> Option<Self> {
        let rig = Rig::new(target, Extra::Captures);
        let round = rig.round()?;
        let served = round.start();
        let expected = served.run(drafts(count), || {});
        assert!(expected.iter().flat_map(|one| one.values()).all(|one| one.reason == Some(FinishReason::Length)));
        served.engine.close();
        round.assert_nothing_left("undisturbed");
        Some(Self { rig, count, expected })
    }

    /// `plan` selects the call that fails with `INVALID`. Each request of one step ends with an error that says so. All
    /// others, including later ones, have exactly their tokens, and nothing is left of any. Returns `false` once no
    /// call fails.
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
        // The engine stays alive. A failure while the last step freed something is only reported now.
        let ends = served.run(drafts(4), || {});
        let failed_later = check_ends(&ends, &self.expected, is_told, &name);
        assert!((failed == 0) == (failed_later > 0), "{name}: {failed} and then {failed_later}");
        assert_nothing_left_of(&served.engine, allocations);
        served.engine.close();
        round.device.check().unwrap();
        round.assert_nothing_left(&name);
        true
    }

    /// `plan` selects the call that finds the device lost. All live and all later requests end with `EngineDead`, and
    /// nothing is left.
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

/// The kinds of calls that steps make.
const OF_STEPS: [Call; 6] =
    [Call::Synchronize, Call::Record, Call::CopyToDevice, Call::CopyToHost, Call::Launch, Call::LaunchGraph];

/// Returns 1, for every call, in `make test-soak`, which sets many cases for all property tests; else `usual`.
fn stride(usual: usize) -> usize {
    if Config::default().cases > 10_000 { 1 } else { usual }
}

/// G3, G10: whatever call fails during requests, only one step is lost (`Serving::fail`). It tests some calls of each
/// kind with requests of every kind.
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

/// G3, G10: does the same over 200 requests, for every 211th call, or for every one (`stride`).
#[test]
fn calls_of_200_requests_fail() {
    let Some(serving) = Serving::new("cpu-wave32:up@requests", REQUESTS) else { return };
    let calls = (0..).step_by(stride(211));
    let fired = calls.take_while(|&nth| serving.fail(|faults| faults.fail_any(nth, INVALID)));
    assert!(fired.count() > 1);
}

/// G10: whatever call finds the device lost, everything ends (`Serving::lose`). It tests every 37th call, or every one
/// (`stride`), with requests of every kind.
#[test]
fn calls_find_the_device_lost() {
    let Some(serving) = Serving::new("cpu-wave32:up@lost", MIXED) else { return };
    let calls = (0..).step_by(stride(37));
    let fired = calls.take_while(|&nth| serving.lose(|faults| faults.fail_any(nth, LOST)));
    assert!(fired.count() > 3);
}

/// G3: whatever call fails when an engine ends during a step, nothing is left.
#[test]
fn calls_of_an_end_fail() {
    let rig = Rig::new("cpu-wave32:up@end", Extra::Captures);
    for nth in (0..).step_by(stride(5)) {
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
