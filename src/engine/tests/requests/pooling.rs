use std::sync::atomic::Ordering;

use crate::Error;
use crate::batch::GroupKind;
use crate::config::{EngineConfig, GroupConfig, Pooling, PoolingParams, RequestParams};
use crate::tests::fake::{Fault, Rule, hashed};
use crate::tests::support::{Rig, VOCAB, alone, assert_nothing_left, blocks, config, greedy, request, submit};
use crate::{ChannelSink, FinishReason, NewRequest, Prompt, SequenceOutput};

fn wanted(pooling: Option<Pooling>, normalize: bool) -> RequestParams {
    RequestParams::Pooling(PoolingParams { pooling, normalize })
}

/// Returns the outputs of pooling requests that arrive at once, in their order.
fn embed(rig: &Rig, prompts: &[Vec<u32>], params: &RequestParams) -> Vec<SequenceOutput> {
    let clients = prompts.iter().map(|prompt| {
        let (sink, outputs) = ChannelSink::new();
        let request = NewRequest { params: params.clone(), ..request(prompt, greedy(1)).with_sink(sink) };
        (rig.engine.add_request(request, |_| {}).unwrap().id, outputs)
    });
    let clients: Vec<_> = clients.collect();
    let outputs = clients.into_iter().map(|(id, outputs)| {
        let mut all = outputs.recv_timeout(crate::tests::support::HANG).unwrap();
        assert_eq!((all.len(), all[0].request), (1, id), "a vector is one output");
        all.remove(0)
    });
    outputs.collect()
}

/// The hidden states of the fake are its logits.
fn expected(rule: &Rule, prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let states: Vec<Vec<f32>> = (1..=prompt.len()).map(|len| rule(&prompt[..len])).collect();
    let chosen = match pooling {
        Pooling::Last | Pooling::Rank => &states[states.len() - 1..],
        Pooling::Cls => &states[..1],
        Pooling::Mean => &states[..],
    };
    let of = |i: usize| chosen.iter().map(|state| f64::from(state[i])).sum::<f64>() / chosen.len() as f64;
    (0..VOCAB).map(|i| of(i) as f32).collect()
}

/// S12: vectors depend only on their own prompts: in chunks, next to texts, with preemptions, and with steps scheduled
/// ahead.
#[test]
fn vectors_beside_texts() {
    for synchronous in [false, true] {
        let rig = Rig::with(EngineConfig { kv_groups: blocks(18), ..config() }, hashed(VOCAB), None);
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        let prompts: Vec<Vec<u32>> =
            [1u32, 3, 4, 5, 23, 24, 25, 40, 64].map(|n| (0..n).map(|i| (i * 7 + n) % 61).collect()).into();
        for pooling in [Pooling::Last, Pooling::Mean, Pooling::Cls] {
            let texts: Vec<_> = (0..4).map(|i| rig.submit(&[i, 2, 3], greedy(30))).collect();
            for (prompt, output) in prompts.iter().zip(embed(&rig, &prompts, &wanted(Some(pooling), false))) {
                let (vector, expected) = (output.embedding.unwrap(), expected(&rig.rule, prompt, pooling));
                let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
                assert!(vector.iter().zip(&expected).all(close), "{pooling:?} of {}", prompt.len());
                assert_eq!((output.finish_reason, output.token_ids.len()), (Some(FinishReason::Stop), 0));
            }
            for (i, text) in (0..4).zip(texts) {
                assert_eq!(text.wait()[&0].tokens, alone(&rig.rule, &[i, 2, 3], &greedy(30), 0, 0));
            }
        }
        let stats = rig.engine.stats();
        assert!(stats.num_preemptions > 0);
        assert_eq!((stats.num_finished_stop, stats.num_finished_length), (27, 12));
        assert_nothing_left(&rig.engine);
    }
}

#[test]
fn vectors_are_units_unless_they_are_not_to_be() {
    let rig = Rig::new();
    let plain = embed(&rig, &[vec![1, 2]], &wanted(None, false)).remove(0).embedding.unwrap();
    assert_eq!(plain, expected(&rig.rule, &[1, 2], config().pooling));
    let unit = embed(&rig, &[vec![1, 2]], &wanted(None, true)).remove(0).embedding.unwrap();
    let length = plain.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    assert!(unit.iter().zip(&plain).all(|(unit, plain)| (f64::from(*unit) * length - f64::from(*plain)).abs() < 1e-5));
    assert_nothing_left(&rig.engine);
}

/// S5, S23: a step that fails, hidden states that are not finite, and a caller that leaves.
#[test]
fn vectors_that_never_come() {
    let rig = Rig::new();
    rig.script.fault(0, Fault::Error);
    let failed = embed(&rig, &[vec![1, 2]], &wanted(None, true)).remove(0);
    assert!(matches!(failed.error, Some(Error::StepFailed { .. })) && failed.embedding.is_none());

    let broken: Rule = std::sync::Arc::new(|_| vec![f32::NAN; VOCAB]);
    let nan = Rig::with(config(), broken, None);
    let output = embed(&nan, &[(0..20).collect()], &wanted(None, true)).remove(0);
    assert!(output.error.unwrap().to_string().contains("no numbers"));
    assert_eq!(nan.engine.stats().kv_cache.blocks_cached, 0);
    assert_nothing_left(&nan.engine);

    rig.script.close_gate();
    let client = submit(&rig.engine, request(&[5; 60], greedy(1))).unwrap();
    let (sink, outputs) = ChannelSink::new();
    let request = NewRequest { params: wanted(None, true), ..request(&[1; 60], greedy(1)).with_sink(sink) };
    let id = rig.engine.add_request(request, |_| {}).unwrap().id;
    rig.engine.abort_id(id).unwrap();
    rig.script.open_gate();
    client.wait();
    let end = outputs.recv_timeout(crate::tests::support::HANG).unwrap().remove(0);
    assert_eq!((end.finish_reason, end.embedding), (Some(FinishReason::Abort), None));
    assert_nothing_left(&rig.engine);
}

/// F4: hidden states of a long prompt come in pieces, each once, even if the step is interrupted between two of them.
#[test]
fn vectors_of_rows_in_pieces() {
    let prompt: Vec<u32> = (0..60).map(|i| i * 7 % 61).collect();
    for (pooling, stopped) in [(Pooling::Mean, 0), (Pooling::Mean, 1), (Pooling::Mean, 2), (Pooling::Cls, 1)] {
        let rig = Rig::new();
        rig.script.synchronous.store(true, Ordering::SeqCst);
        rig.script.stopped_piece.store(stopped, Ordering::SeqCst);
        let output = embed(&rig, std::slice::from_ref(&prompt), &wanted(Some(pooling), false)).remove(0);
        let expected = expected(&rig.rule, &prompt, pooling);
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(output.embedding.unwrap().iter().zip(&expected).all(close), "{pooling:?}, {stopped}");
        let steps = rig.script.steps.load(Ordering::SeqCst);
        assert_eq!((steps, rig.script.pieces.load(Ordering::SeqCst) >= 2), (3 + stopped.min(1), true));
        assert_nothing_left(&rig.engine);
    }
}

/// Returns the configuration of a bidirectional model.
fn encoder() -> EngineConfig {
    let kind = GroupKind::Bidirectional { reach: u32::MAX };
    let kv_groups = vec![GroupConfig { kind, num_blocks: 20 }];
    EngineConfig { kv_groups, max_model_len: 24, enable_prefix_caching: false, ..config() }
}

/// S12: more whole prompts than fit in a step, on both kinds of devices; nothing of them stays.
#[test]
fn vectors_of_an_encoder() {
    for synchronous in [false, true] {
        let rig = Rig::with(encoder(), hashed(VOCAB), None);
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        let lengths = [1u32, 24, 3, 5, 23, 1, 8, 8, 8, 24, 2];
        let prompts: Vec<Vec<u32>> = lengths.iter().map(|&n| (0..n).map(|i| (i * 7 + n) % 61).collect()).collect();
        for pooling in [Pooling::Last, Pooling::Mean, Pooling::Cls] {
            for (prompt, output) in prompts.iter().zip(embed(&rig, &prompts, &wanted(Some(pooling), false))) {
                let (vector, expected) = (output.embedding.unwrap(), expected(&rig.rule, prompt, pooling));
                let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
                assert!(vector.iter().zip(&expected).all(close), "{pooling:?} of {}", prompt.len());
            }
        }
        let stats = rig.engine.stats();
        assert_eq!((stats.num_preemptions, stats.kv_cache.blocks_cached), (0, 0));
        let computed = rig.script.tokens_computed.load(Ordering::SeqCst);
        assert_eq!(computed, 3 * u64::from(lengths.iter().sum::<u32>()), "no prompt was computed in parts");
        assert_nothing_left(&rig.engine);
    }
}

/// A bidirectional model only serves pooling requests.
#[test]
fn an_encoder_generates_nothing() {
    let rig = Rig::with(encoder(), hashed(VOCAB), None);
    let refused = |error: Error| {
        let text = error.to_string();
        assert!(
            matches!(error, Error::InvalidRequest { what: "model", .. }) && text.contains("an embedding model"),
            "{text}"
        );
    };
    refused(submit(&rig.engine, request(&[1, 2], greedy(1))).err().unwrap());
    refused(rig.engine.prepare(Prompt::TokenIds(vec![1]), Vec::new(), &greedy(1).into()).err().unwrap());
    refused(rig.engine.start_prompt_logits(vec![1, 2]).err().unwrap());
    let too_long =
        NewRequest { params: wanted(None, true), ..request(&[1; 25], greedy(1)).with_sink(ChannelSink::new().0) };
    let error = rig.engine.add_request(too_long, |_| {}).err().unwrap().to_string();
    assert!(error.contains("at most 24 (max_num_batched_tokens)"), "{error}");
    assert_eq!(rig.engine.stats().engine_steps, 0);
    assert_nothing_left(&rig.engine);
}
