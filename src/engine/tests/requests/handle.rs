//! Tests of rejected requests, and of queries from any thread.

use std::collections::HashSet;
use std::sync::Arc;

use crate::backend::MemoryLedger;
use crate::config::{EngineArgs, EngineConfig, SamplingParams};
use crate::handle::same_process;
use crate::tests::fake::hashed;
use crate::tests::support::*;
use crate::{ChannelSink, Engine, LoadedModel, NewRequest, Prompt};
use crate::{Error, Result};

fn what(result: Result<Client>) -> &'static str {
    match result.err().expect("was accepted") {
        Error::InvalidRequest { what, .. } => what,
        other => panic!("{other}"),
    }
}

/// S18, S22: invalid requests are rejected on the caller's thread, with the reason, and leave nothing.
#[test]
fn bad_requests_are_refused() {
    let rig = Rig::with(EngineConfig { kv_groups: blocks(12), ..config() }, hashed(VOCAB), None);
    let refuse = |draft: Draft| what(submit(&rig.engine, draft));
    let with = |params: SamplingParams| refuse(request(&[1], params));
    assert_eq!(refuse(request(&[], greedy(1))), "prompt");
    assert_eq!(refuse(request(&[0, 64], greedy(1))), "prompt token id");
    assert_eq!(refuse(request(&[u32::MAX], greedy(1))), "prompt token id");
    assert_eq!(refuse(request(&[1; 64], greedy(1))), "prompt length in tokens");
    assert_eq!(refuse(request(&[1; 30], greedy(30))), "prompt length + max_tokens");
    assert_eq!(refuse(Draft { prompt: Prompt::Text("hi".into()), ..request(&[], greedy(1)) }), "tokenizer");
    assert_eq!(refuse(Draft { name: Some(String::new()), ..request(&[1], greedy(1)) }), "request id");
    assert_eq!(refuse(Draft { name: Some("x".repeat(2000)), ..request(&[1], greedy(1)) }), "request id");
    assert_eq!(with(SamplingParams { n: 8 + 64 + 1, ..greedy(1) }), "n");
    assert_eq!(with(SamplingParams { temperature: f32::NAN, ..greedy(1) }), "temperature");
    assert_eq!(with(SamplingParams { stop: vec!["x".into()], ..greedy(1) }), "stop");
    assert_eq!(with(SamplingParams { logit_bias: vec![(64, 1.0)], ..greedy(1) }), "logit_bias token id");
    assert_eq!(with(SamplingParams { stop_token_ids: vec![64], ..greedy(1) }), "stop_token_ids");
    assert_eq!(rig.run(&[1; 40], greedy(9))[&0].tokens.len(), 9);
    assert_eq!(rig.engine.stats().num_finished_length, 1);
    assert_nothing_left(&rig.engine);
}

/// A name is in use while its request is active, and free afterwards.
#[test]
fn names_in_use_are_refused() {
    let rig = Rig::new();
    let named = |name: &str| Draft { name: Some(name.into()), ..request(&[1, 2], greedy(2)) };
    rig.script.close_gate();
    let first = submit(&rig.engine, named("request-2")).unwrap();
    assert_eq!(what(submit(&rig.engine, named("request-2"))), "request id");
    // A generated name avoids the caller's.
    let unnamed: Vec<Client> = (0..3).map(|_| rig.submit(&[3], greedy(1))).collect();
    let mut names: HashSet<String> = unnamed.iter().map(|client| client.accepted.name.clone()).collect();
    assert!(names.insert("request-2".into()) && names.len() == 4);
    rig.script.open_gate();
    first.wait();
    for client in unnamed {
        client.wait();
    }
    submit(&rig.engine, named("request-2")).unwrap().wait();
    assert_nothing_left(&rig.engine);
}

/// The queue's limit applies at once, even for requests that the engine thread has not seen.
#[test]
fn a_full_queue_refuses() {
    let rig = Rig::with(EngineConfig { max_queue_size: 3, max_num_seqs: 1, ..config() }, hashed(VOCAB), None);
    rig.script.close_gate();
    let running = rig.submit(&[1], greedy(5));
    rig.script.wait_at_gate();
    let mut clients: Vec<Client> = (0..3).map(|i| rig.submit(&[i], greedy(2))).collect();
    for _ in 0..2 {
        let refused = submit(&rig.engine, request(&[9], greedy(1))).err().unwrap();
        assert!(matches!(refused, Error::QueueFull { waiting: 3, limit: 3 }), "{refused}");
    }
    assert!(matches!(prompt_logits(&rig.engine, vec![1]), Err(Error::QueueFull { .. })));
    // Cancelling a waiting request makes room for another.
    rig.engine.abort_id(clients[0].accepted.id).unwrap();
    rig.script.open_gate();
    clients.remove(0).wait();
    running.wait();
    for client in clients {
        assert_eq!(client.wait()[&0].tokens.len(), 2);
    }
    for _ in 0..10 {
        rig.run(&[5, 6], greedy(2));
    }
    assert_nothing_left(&rig.engine);
}

/// Lower priority values run earlier.
#[test]
fn priorities() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 1, ..config() }, hashed(VOCAB), None);
    rig.script.close_gate();
    let (sink, outputs) = ChannelSink::new();
    let add = |token: u32, priority: i32| {
        let prompt = Prompt::TokenIds(vec![token]);
        let sink = Arc::clone(&sink);
        let request = NewRequest {
            name: None,
            prompt,
            images: Vec::new(),
            params: greedy(1).into(),
            priority,
            timeout: None,
            cache_salt: None,
            client: None,
            sink,
        };
        rig.engine.add_request(request, |_| {}).unwrap().id
    };
    let first = add(1, 0);
    rig.script.wait_at_gate();
    let (late, middle, early) = (add(2, 5), add(3, 0), add(4, -5));
    rig.script.open_gate();
    let mut order = Vec::new();
    while order.len() < 4 {
        order.extend(outputs.recv_timeout(HANG).unwrap().into_iter().map(|output| output.request));
    }
    assert_eq!(order, [first, early, middle, late]);
}

#[test]
fn numbers_that_contradict_each_other() {
    let start = |config: EngineConfig| {
        let fake = crate::tests::fake::Fake::new(Arc::default(), hashed(VOCAB), VOCAB, config.block_size, false);
        Engine::start(LoadedModel::new(Box::new(fake), config)).map(|_| ())
    };
    start(config()).unwrap();
    for bad in [
        EngineConfig { max_num_seqs: 0, ..config() },
        EngineConfig { max_num_batched_tokens: 7, ..config() },
        EngineConfig { max_model_len: 0, ..config() },
        EngineConfig { max_model_len: usize::MAX, ..config() },
        EngineConfig { block_size: 0, ..config() },
        EngineConfig { kv_groups: blocks(0), ..config() },
        EngineConfig { kv_groups: blocks(usize::MAX), ..config() },
        EngineConfig { max_queue_size: 0, ..config() },
        EngineConfig { max_num_partial_prefills: 0, ..config() },
        EngineConfig { max_long_partial_prefills: 0, ..config() },
        EngineConfig { long_prefill_token_threshold: 0, ..config() },
    ] {
        assert!(matches!(start(bad.clone()), Err(Error::InvalidRequest { .. })), "{bad:?}");
    }
}

/// The handle reports the engine's state, even while a step runs.
#[test]
fn what_the_handle_tells() {
    let rig = Rig::new();
    assert_eq!(rig.engine.describe(), "fake device");
    assert_eq!(
        rig.engine.memory(),
        MemoryLedger { weights: 1000, kv_cache: 500, scratch: 30, other: 4, host_weights: 7, kv_offload: 0 }
    );
    assert_eq!(rig.engine.config().max_num_seqs, 8);
    assert!(matches!(rig.engine.chat_template(), Err(Error::ChatTemplate { .. })));
    assert!(rig.engine.tokenizer().is_err());
    assert_eq!(rig.engine.block_map().len(), 64);
    rig.script.close_gate();
    let running = rig.submit(&[1; 10], greedy(50));
    rig.script.wait_at_gate();
    let engine = rig.engine.clone();
    let asking = std::thread::spawn(move || engine.reset_prefix_cache().unwrap());
    while rig.engine.commands_in_queue() == 0 {
        std::thread::yield_now();
    }
    rig.script.open_gate();
    assert!(!asking.join().unwrap());
    running.wait();
    assert!(rig.engine.reset_prefix_cache().unwrap());
}

#[test]
fn a_forked_process_is_told_so() {
    same_process(7, 7).unwrap();
    assert!(matches!(same_process(7, 8), Err(Error::Forked { owner: 7, current: 8 })));
}

/// S14: the same seed gives the same text, whatever else runs. Requests without a seed differ.
#[test]
fn seeds() {
    let rig = Rig::new();
    let params = |seed| SamplingParams { seed, max_tokens: 20, ..Default::default() };
    let first = rig.run(&[1, 2, 3], params(Some(1)))[&0].tokens.clone();
    assert_eq!(first, alone(&rig.rule, &[1, 2, 3], &params(Some(1)), 0, 1));
    let noise: Vec<_> = (0..6).map(|i| rig.submit(&[i, i], params(None))).collect();
    assert_eq!(rig.run(&[1, 2, 3], params(Some(1)))[&0].tokens, first);
    assert_ne!(rig.run(&[1, 2, 3], params(Some(2)))[&0].tokens, first);
    assert_ne!(rig.run(&[1, 2, 3], params(None))[&0].tokens, rig.run(&[1, 2, 3], params(None))[&0].tokens);
    drop(noise.into_iter().map(Client::wait).collect::<Vec<_>>());
}

/// S5: a load that fails at any point returns an error and starts nothing, and the next load works.
#[test]
fn loads_that_fail() {
    let load = |args: EngineArgs, go_on: bool| Engine::load(args, &mut |_| go_on);
    let bad = EngineArgs { max_num_seqs: Some(0), ..EngineArgs::new("no such file.gguf") };
    assert!(matches!(load(bad, true), Err(Error::InvalidRequest { what: "max_num_seqs", .. })));
    assert!(matches!(load(EngineArgs::new("no such file.gguf"), true), Err(Error::FileNotFound { .. })));
    let file = crate::testdata::file("arch/qwen2.gguf");
    let args = || EngineArgs { num_threads: Some(1), kv_cache_memory: Some(1 << 20), ..EngineArgs::new(&file.0) };
    assert!(matches!(load(args(), false), Err(Error::Interrupted)));
    let engine = load(args(), true).unwrap();
    assert!(prompt_logits(&engine, vec![1, 2, 3]).unwrap().iter().all(|logit| logit.is_finite()));
    engine.check_integrity().unwrap();
    engine.close();
    assert_eq!(engine.memory(), MemoryLedger::default());
}
