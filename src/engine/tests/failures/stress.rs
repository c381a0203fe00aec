//! Many threads, everything that can go wrong, and a pool so small that preemption happens all the time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::FinishReason;
use crate::config::{EngineConfig, SamplingParams};
use crate::tests::fake::{Rule, hashed};
use crate::tests::support::*;

const THREADS: u64 = 16;
const REQUESTS: u64 = 1000;

pub(in crate::tests) fn tiny() -> EngineConfig {
    EngineConfig { kv_groups: blocks(24), max_num_seqs: 12, retention: Duration::from_millis(1), ..config() }
}

/// Returns a random request; many share prefixes.
pub(in crate::tests) fn draft(random: &mut impl FnMut(u64) -> u64) -> (Vec<u32>, SamplingParams) {
    let mut prompt = vec![random(3) as u32; 1 + random(9) as usize];
    prompt.extend((0..random(6)).map(|_| random(VOCAB as u64) as u32));
    let params = SamplingParams {
        n: if random(8) == 0 { 1 + random(3) as usize } else { 1 },
        max_tokens: 1 + random(30) as usize,
        temperature: if random(2) == 0 { 0.0 } else { 1.0 },
        top_k: random(10) as usize,
        repetition_penalty: if random(4) == 0 { 1.2 } else { 1.0 },
        stop_token_ids: if random(3) == 0 { vec![random(VOCAB as u64) as u32] } else { vec![] },
        seed: Some(random(1000)),
        ..Default::default()
    };
    (prompt, params)
}

/// K2, K12, S6, S12, S16, S24: 1,000 requests with cancels, stops, deadlines, consumers that leave and failing steps,
/// from 16 threads. Each result equals that of the request alone, or its start if the request was cut short.
#[test]
fn a_thousand_requests_from_sixteen_threads() {
    [false, true].into_iter().for_each(|synchronous| drop(a_thousand_requests(synchronous, tiny(), hashed(VOCAB))));
}

/// S12, S16: runs the same with recurrent states, of which there are too few for all sequences.
#[test]
fn a_thousand_requests_with_states() {
    for (synchronous, states) in [(false, slots(6, 1, 4)), (true, slots(6, 2, 4)), (true, slots(12, 1, 1))] {
        a_thousand_requests(synchronous, EngineConfig { states, ..tiny() }, hashed(VOCAB));
    }
}

/// Sends the requests to a new engine, and returns it.
pub(in crate::tests) fn a_thousand_requests(synchronous: bool, config: EngineConfig, rule: Rule) -> Rig {
    let rig = Rig::with(config, rule, None);
    rig.script.synchronous.store(synchronous, Ordering::SeqCst);
    rig.script.fail_every.store(97, Ordering::SeqCst);
    let reasons = Mutex::new(HashMap::<FinishReason, u64>::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (rig, reasons) = (&rig, &reasons);
            scope.spawn(move || {
                let mut generator = ChaCha8Rng::seed_from_u64(thread);
                let mut random = move |n: u64| generator.next_u64() % n;
                for _ in 0..REQUESTS.div_ceil(THREADS) {
                    one_request(rig, &mut random, reasons);
                }
            });
        }
    });
    rig.script.fail_every.store(0, Ordering::SeqCst);
    while rig.engine.stats().num_running + rig.engine.stats().num_waiting > 0 {
        std::thread::yield_now();
    }
    assert_nothing_left(&rig.engine);
    let reasons = reasons.into_inner();
    for reason in
        [FinishReason::Stop, FinishReason::Length, FinishReason::Abort, FinishReason::Timeout, FinishReason::Error]
    {
        assert!(reasons.get(&reason).is_some_and(|count| *count > 0), "no {reason:?} in {reasons:?}");
    }
    assert!(rig.engine.stats().num_preemptions > 0);
    // The queue's places were freed, too.
    let clients: Vec<_> = (0..60).map(|_| rig.submit(&[1], greedy(1))).collect();
    clients.into_iter().for_each(|client| assert_eq!(client.wait()[&0].tokens.len(), 1));
    rig
}

fn one_request(rig: &Rig, random: &mut impl FnMut(u64) -> u64, reasons: &Mutex<HashMap<FinishReason, u64>>) {
    let (prompt, params) = draft(random);
    let timeout = (random(10) == 0).then(|| Duration::from_micros(random(500)));
    let priority = random(3) as i32;
    let client = submit(&rig.engine, Draft { timeout, priority, ..request(&prompt, params.clone()) }).unwrap();
    match random(8) {
        0 => rig.engine.abort_id(client.accepted.id).unwrap(),
        1 => {
            client.next_tokens();
            // The consumer leaves and gets nothing more of the request.
            return;
        }
        _ => {}
    }
    for (index, one) in client.wait() {
        let expected = alone(&rig.rule, &prompt, &params, index as u32, params.seed.unwrap_or(0));
        let reason = one.reason.unwrap();
        *reasons.lock().entry(reason).or_default() += 1;
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            assert_eq!(one.tokens, expected);
        } else {
            assert!(expected.starts_with(&one.tokens), "{reason:?}: {:?} of {expected:?}", one.tokens);
        }
    }
}

/// S12: two hundred random mixes give the same tokens alone, together, in chunks and with a cached prefix.
#[test]
fn every_mix_gives_what_each_gives_alone() {
    let mut generator = ChaCha8Rng::seed_from_u64(99);
    let mut random = move |n: u64| generator.next_u64() % n;
    let rule = hashed(VOCAB);
    for mix in 0..200 {
        let config = EngineConfig {
            max_num_batched_tokens: 12 + random(30) as usize,
            kv_groups: blocks(16 + random(40) as usize),
            states: slots(random(9) as usize, 1 + random(2) as usize, 3 + random(9) as usize)
                .filter(|_| random(2) == 0),
            block_size: 4,
            enable_prefix_caching: random(2) == 0,
            ..tiny()
        };
        let rig = Rig::with(config, Arc::clone(&rule), None);
        rig.script.synchronous.store(mix % 2 == 0, Ordering::SeqCst);
        let drafts: Vec<_> = (0..1 + random(10)).map(|_| draft(&mut random)).collect();
        let clients: Vec<_> = drafts.iter().map(|(prompt, params)| rig.submit(prompt, params.clone())).collect();
        for (client, (prompt, params)) in clients.into_iter().zip(&drafts) {
            for (index, one) in client.wait() {
                let expected = alone(&rule, prompt, params, index as u32, params.seed.unwrap_or(0));
                assert_eq!(one.tokens, expected);
            }
        }
        assert_nothing_left(&rig.engine);
    }
}
