//! Tests from acceptance to the first step: the counts of a request, and what it shares with others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::kv_cache::BlockState;
use crate::tests::support::*;

/// Returns how many of the prompt's tokens came from the prefix cache.
fn cached(done: &Finished) -> usize {
    done[&0].last.as_ref().unwrap().metrics.num_cached_tokens
}

/// A13: a request is counted from its acceptance to its end, even while the engine thread is busy with a step. The
/// blocks of that step are counted, too.
#[test]
fn an_accepted_request_waits_or_runs() {
    for synchronous in [true, false] {
        let rig = Rig::new();
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        rig.script.close_gate();
        let gauges = || {
            let stats = rig.engine.stats();
            (stats.num_waiting, stats.num_running)
        };
        let first = rig.submit(&[1; 10], greedy(5));
        let (waiting, running) = gauges();
        assert_eq!(waiting + running, 1);
        rig.script.wait_at_gate();
        assert_eq!(gauges(), (0, 1), "while its first step is computed");
        let owned = rig.engine.block_map().iter().filter(|block| block.state == BlockState::Owned).count();
        assert_eq!((rig.engine.stats().kv_cache.blocks_owned, owned), (3, 3));
        let second = rig.submit(&[2; 3], greedy(1));
        assert_eq!(gauges(), (1, 1), "accepted, and not taken in yet");
        rig.script.open_gate();
        first.wait();
        second.wait();
        assert_nothing_left(&rig.engine);
    }
}

/// A22: equal prompts that arrive together are computed once.
#[test]
fn equal_prompts_share() {
    let rig = Rig::new();
    rig.script.close_gate();
    let other = rig.submit(&[63; 4], greedy(8));
    rig.script.wait_at_gate();
    let clients: Vec<_> = (0..3).map(|_| rig.submit(&[5; 17], greedy(3))).collect();
    rig.script.open_gate();
    let done: Vec<_> = clients.into_iter().map(Client::wait).collect();
    assert_eq!(done.iter().map(cached).collect::<Vec<_>>(), [0, 16, 16]);
    for one in &done {
        assert_eq!(one[&0].tokens, alone(&rig.rule, &[5; 17], &greedy(3), 0, 0));
    }
    other.wait();
    assert_nothing_left(&rig.engine);
}

/// A20: requests share prefixes only with requests of the same salt.
#[test]
fn salts_keep_prefixes_apart() {
    let rig = Rig::new();
    let run = |salt: Option<&str>| {
        let draft = Draft { cache_salt: salt.map(Into::into), ..request(&[4; 9], greedy(2)) };
        cached(&submit(&rig.engine, draft).unwrap().wait())
    };
    let salts = [None, Some("a"), Some("b"), Some("a"), None];
    assert_eq!(salts.map(run), [0, 0, 0, 8, 8]);
    for salt in [String::new(), "x".repeat(1025)] {
        let draft = Draft { cache_salt: Some(salt), ..request(&[4; 9], greedy(2)) };
        let error = submit(&rig.engine, draft).map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("cache_salt: got "), "{error}");
    }
    assert_nothing_left(&rig.engine);
}

/// The caller and the request share one copy of the prompt for as long as the request lives.
#[test]
fn a_prompt_is_shared() {
    let rig = Rig::new();
    rig.script.close_gate();
    let client = rig.submit(&[3; 40], greedy(2));
    rig.script.wait_at_gate();
    let prompt = Arc::clone(&client.accepted.prompt_token_ids);
    assert!(Arc::strong_count(&prompt) > 2, "here, in what was accepted, and in the request");
    rig.script.open_gate();
    client.wait();
    assert_nothing_left(&rig.engine);
    assert_eq!((&*prompt, Arc::strong_count(&prompt)), (&[3; 40][..], 1));
}
