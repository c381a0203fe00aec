//! Steps that are interrupted. The scripted ones never end by themselves, so a test that ends has seen an interruption.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::Error;
use crate::FinishReason;
use crate::config::{EngineConfig, SamplingParams};
use crate::tests::fake::Fault;
use crate::tests::support::*;

pub(in crate::tests) fn synchronous(config: EngineConfig) -> Rig {
    let rig = Rig::with(config, crate::tests::fake::hashed(VOCAB), None);
    rig.script.synchronous.store(true, Ordering::SeqCst);
    rig
}

/// Waits until the executor runs the step with this number.
fn in_step(rig: &Rig, number: u64) {
    while rig.script.steps.load(Ordering::SeqCst) <= number {
        std::thread::yield_now();
    }
}

/// A10: an engine whose step would never end still closes, from any thread and from several.
#[test]
fn closing_stops_the_step() {
    let rig = synchronous(config());
    rig.script.fault(0, Fault::UntilInterrupted);
    let client = rig.submit(&[1; 9], greedy(5));
    in_step(&rig, 0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                rig.engine.close();
                assert!(rig.script.dropped.load(Ordering::SeqCst), "closed, yet not all is freed");
            });
        }
        scope.spawn(|| while !rig.engine.close_within(Duration::from_millis(10)) {});
    });
    assert_eq!(client.wait()[&0].reason, Some(FinishReason::Abort));
    assert_nothing_left(&rig.engine);
}

/// A10: a cancelled request ends at once. The others of its step get exactly the tokens that they get alone.
#[test]
fn the_others_of_a_stopped_step_lose_nothing() {
    for stopped in 1..7 {
        let config = EngineConfig { enable_prefix_caching: stopped % 2 == 0, ..config() };
        assert_others_lose_nothing(&synchronous(config), stopped);
    }
}

/// Cancels a request in step `stopped`, together with a prompt in chunks, sequences that decode, and forks.
pub(in crate::tests) fn assert_others_lose_nothing(rig: &Rig, stopped: u64) {
    rig.script.close_gate();
    rig.script.fault(stopped, Fault::UntilInterrupted);
    // Its priority is highest, so it is in every step but the first, which is at the gate.
    let first = rig.submit(&[1; 3], greedy(1));
    rig.script.wait_at_gate();
    let victim = submit(&rig.engine, Draft { priority: -1, ..request(&[7; 2], greedy(60)) }).unwrap();
    let forked = SamplingParams { n: 3, temperature: 1.5, seed: Some(11), ..greedy(12) };
    let others = [(&[3; 30][..], greedy(9)), (&[4; 6], forked), (&[5; 19], greedy(20))];
    let clients = others.clone().map(|(prompt, params)| rig.submit(prompt, params));
    rig.script.open_gate();
    in_step(rig, stopped);
    rig.engine.abort_id(victim.accepted.id).unwrap();
    assert_eq!(victim.wait()[&0].reason, Some(FinishReason::Abort));
    assert_eq!(first.wait()[&0].reason, Some(FinishReason::Length));
    for (client, (prompt, params)) in clients.into_iter().zip(others) {
        for (index, one) in client.wait() {
            let expected = alone(&rig.rule, prompt, &params, index as u32, params.seed.unwrap_or(0));
            assert_eq!(one.tokens, expected, "step {stopped}, sequence {index}");
        }
    }
    assert_nothing_left(&rig.engine);
}

/// A16: a deadline that passes within a step ends its request then, alone or next to another one, which continues.
#[test]
fn a_deadline_acts_within_a_step() {
    let rig = synchronous(config());
    rig.script.fault(0, Fault::UntilInterrupted);
    let late = || Draft { timeout: Some(Duration::from_millis(20)), ..request(&[1; 9], greedy(30)) };
    assert_eq!(submit(&rig.engine, late()).unwrap().wait()[&0].reason, Some(FinishReason::Timeout));
    rig.script.close_gate();
    let other = rig.submit(&[2; 5], greedy(10));
    rig.script.wait_at_gate();
    // The deadline is long enough for the next step to include it on a slow machine, and that step does not end
    // earlier.
    let late = submit(&rig.engine, Draft { timeout: Some(Duration::from_secs(1)), ..late() }).unwrap();
    rig.script.fault(rig.script.steps.load(Ordering::SeqCst), Fault::UntilInterrupted);
    rig.script.open_gate();
    let late = late.wait();
    assert_eq!((late[&0].reason, late[&0].tokens.len()), (Some(FinishReason::Timeout), 0));
    assert_eq!(other.wait()[&0].tokens, alone(&rig.rule, &[2; 5], &greedy(10), 0, 0));
    assert_nothing_left(&rig.engine);
}

/// A10: ends take effect in consecutive interrupted steps. The others of these steps get exactly their tokens.
#[test]
fn steps_in_a_row_are_stopped() {
    let rig = synchronous(config());
    rig.script.close_gate();
    let client = rig.submit(&[6; 20], greedy(5));
    rig.script.wait_at_gate();
    (1..4).for_each(|step| rig.script.fault(step, Fault::UntilInterrupted));
    let victims = [1, 2, 3].map(|token| {
        let draft = Draft { priority: -1, ..request(&[token; 3], greedy(50)) };
        submit(&rig.engine, draft).unwrap()
    });
    rig.script.open_gate();
    for (step, victim) in (1..).zip(victims) {
        in_step(&rig, step);
        rig.engine.abort_id(victim.accepted.id).unwrap();
        assert_eq!(victim.wait()[&0].reason, Some(FinishReason::Abort));
    }
    assert_eq!(client.wait()[&0].tokens, alone(&rig.rule, &[6; 20], &greedy(5), 0, 0));
    assert_nothing_left(&rig.engine);
}

fn of_client(client: &str, draft: Draft) -> Draft {
    Draft { client: Some(client.into()), ..draft }
}

/// An occasional client does not wait for a step of another's prompts: that step is interrupted and later computed
/// again with the same tokens. A client that has sent that many prompts interrupts nothing with another one.
#[test]
fn a_step_stops_for_a_newcomer() {
    let rig = synchronous(config());
    rig.script.close_gate();
    let prompts: Vec<Vec<u32>> = (1..9).map(|token| vec![token; 24]).collect();
    let ask = |prompt: &[u32]| submit(&rig.engine, of_client("many", request(prompt, greedy(2)))).unwrap();
    let many: Vec<_> = prompts.iter().map(|prompt| ask(prompt)).collect();
    rig.script.wait_at_gate();
    rig.script.fault(4, Fault::UntilInterrupted);
    rig.script.open_gate();
    in_step(&rig, 4);
    let last = ask(&[9; 24]);
    assert!(!rig.script.interrupt.is_set());
    let one = submit(&rig.engine, of_client("one", request(&[10; 3], greedy(4)))).unwrap();
    assert_eq!(one.wait()[&0].tokens, alone(&rig.rule, &[10; 3], &greedy(4), 0, 0));
    for (client, prompt) in many.into_iter().zip(&prompts) {
        assert_eq!(client.wait()[&0].tokens, alone(&rig.rule, prompt, &greedy(2), 0, 0));
    }
    assert_eq!(last.wait()[&0].tokens, alone(&rig.rule, &[9; 24], &greedy(2), 0, 0));
    assert_nothing_left(&rig.engine);
}

/// On an asynchronous device, the step scheduled ahead is withdrawn, and the newcomer's step is next.
#[test]
fn the_step_ahead_gives_way_to_a_newcomer() {
    let rig = Rig::new();
    rig.script.close_gate();
    let prompts: Vec<Vec<u32>> = (1..9).map(|token| vec![token; 24]).collect();
    let ask = |prompt: &Vec<u32>| submit(&rig.engine, of_client("many", request(prompt, greedy(2)))).unwrap();
    let many: Vec<_> = prompts.iter().map(ask).collect();
    for _ in 0..4 {
        rig.script.wait_at_gate();
        rig.script.let_one_pass();
    }
    rig.script.wait_at_gate();
    // The next step has already been scheduled. The engine only waits for the one at the gate.
    let one = submit(&rig.engine, of_client("one", request(&[10; 3], greedy(1)))).unwrap();
    for _ in 0..2 {
        rig.script.wait_at_gate();
        rig.script.let_one_pass();
    }
    assert_eq!(one.wait()[&0].tokens, alone(&rig.rule, &[10; 3], &greedy(1), 0, 0));
    rig.script.open_gate();
    for (client, prompt) in many.into_iter().zip(&prompts) {
        assert_eq!(client.wait()[&0].tokens, alone(&rig.rule, prompt, &greedy(2), 0, 0));
    }
    assert_nothing_left(&rig.engine);
}

/// A11: dropping the pending logits of a prompt ends its request, in any step.
#[test]
fn logits_that_nobody_waits_for_are_not_computed() {
    let rig = synchronous(config());
    rig.script.fault(1, Fault::UntilInterrupted);
    let pending = rig.engine.start_prompt_logits(vec![1; 60]).unwrap();
    in_step(&rig, 1);
    assert!(rig.engine.stats().kv_cache.blocks_owned > 0);
    drop(pending);
    assert_eq!(rig.run(&[1, 2, 3], greedy(1))[&0].reason, Some(FinishReason::Length));
    assert_nothing_left(&rig.engine);
    // Dropping it after the answer does not lose the answer.
    let pending = rig.engine.start_prompt_logits(vec![1; 5]).unwrap();
    assert!(matches!(pending.answer().recv(), Ok(Ok(logits)) if logits.len() == 5 * VOCAB));
    drop(pending);
    assert!(!matches!(rig.engine.check_integrity(), Err(Error::Internal { .. })));
    assert_nothing_left(&rig.engine);
}
