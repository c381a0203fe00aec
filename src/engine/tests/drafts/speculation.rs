//! Draft tokens change no text, whatever is drafted and whatever runs next to it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::config::{BeginToken, EngineConfig, SamplingParams, SpeculativeConfig, StructuredOutputs};
use crate::tests::failures::stress::{a_thousand_requests, draft, tiny};
use crate::tests::fake::{hashed, repeating};
use crate::tests::structured::{LOGITS, PROMPT, assert_all_same, matching};
use crate::tests::support::*;
use crate::{FinishReason, SpeculationStats};

/// Draft tokens are found everywhere, so many are wrong.
pub(in crate::tests) const EAGER: SpeculativeConfig =
    SpeculativeConfig { num_speculative_tokens: 6, prompt_lookup_max: 3, prompt_lookup_min: 1, ..DEFAULT };
const DEFAULT: SpeculativeConfig = SpeculativeConfig {
    method: crate::config::SpeculativeMethod::Ngram,
    model: None,
    num_speculative_tokens: 8,
    prompt_lookup_max: 8,
    prompt_lookup_min: 3,
};

/// The model drafts by itself.
const BLOCK: SpeculativeConfig =
    SpeculativeConfig { method: crate::config::SpeculativeMethod::Mtp, num_speculative_tokens: 5, ..DEFAULT };

/// A draft model drafts, and lacks tokens that it did not draft for.
pub(super) const DRAFT_MODEL: SpeculativeConfig =
    SpeculativeConfig { method: crate::config::SpeculativeMethod::DraftModel, ..BLOCK };
const METHODS: [SpeculativeConfig; 3] = [EAGER, BLOCK, DRAFT_MODEL];

/// Returns an engine with this method. One in four model-made draft tokens is wrong.
fn rig_of(method: SpeculativeConfig, config: EngineConfig, rule: crate::tests::fake::Rule) -> Rig {
    let rig = Rig::with(EngineConfig { speculative_config: Some(method), ..config }, rule, None);
    rig.script.wrong_drafts.store(4, SeqCst);
    rig
}

/// A device on which another row costs almost nothing compared to the rest of a step.
fn cheap_rows(rig: &Rig) {
    rig.script.step_micros.store(100, SeqCst);
}

/// Returns the counts and checks that they add up.
fn counts(rig: &Rig) -> SpeculationStats {
    let stats = rig.engine.stats().speculation;
    let SpeculationStats { num_proposed_tokens, num_drafts, num_draft_tokens, num_accepted_tokens, .. } = stats;
    assert!(num_drafts <= num_draft_tokens && num_draft_tokens <= num_proposed_tokens, "{stats:?}");
    assert!(num_accepted_tokens <= num_draft_tokens, "{stats:?}");
    let per_place = &stats.num_accepted_tokens_per_pos;
    assert_eq!(per_place.iter().sum::<u64>(), num_accepted_tokens, "{stats:?}");
    assert!(per_place.is_sorted_by(|before, after| before >= after) && per_place.len() <= 8, "{stats:?}");
    stats
}

/// Periodic text takes far fewer steps than it has tokens, and stays the same.
#[test]
fn repetition_is_verified_several_tokens_a_step() {
    for synchronous in [true, false] {
        let config = EngineConfig {
            speculative_config: Some(DEFAULT),
            context_length: 512,
            max_model_len: 512,
            kv_groups: blocks(200),
            ..config()
        };
        let rig = Rig::with(config, repeating(VOCAB), None);
        rig.script.synchronous.store(synchronous, SeqCst);
        rig.script.step_micros.store(300, SeqCst);
        let done = rig.run(&[1, 2, 3], greedy(400));
        // The period is found once it has repeated.
        let tokens = &done[&0].tokens;
        assert_eq!(tokens.len(), 400);
        let step = |last: u32| {
            let row = (rig.rule)(&[last]);
            (0..VOCAB).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).map(|token| token as u32)
        };
        assert!(tokens.windows(2).all(|pair| step(pair[0]) == Some(pair[1])));
        let stats = counts(&rig);
        assert!(stats.num_accepted_tokens > 0, "{stats:?}");
        let steps = rig.engine.stats().engine_steps;
        assert_eq!(steps + stats.num_accepted_tokens, 400, "each step brings a token and the drafts that were right");
        assert_nothing_left(&rig.engine);
    }
}

/// A block whose draft tokens are all right yields several tokens per step, once step times are known. One whose draft
/// tokens are all wrong is soon unused. The number of drafts depends on measured times, which a busy machine changes.
#[test]
fn drafts_of_the_model_are_made_where_they_pay() {
    for (synchronous, states) in [(true, None), (false, None), (false, slots(8, 1, 9)), (true, slots(8, 2, 9))] {
        let long = EngineConfig { context_length: 512, max_model_len: 512, kv_groups: blocks(200), ..config() };
        let config = EngineConfig { states, ..long };
        let expected = Rig::with(config.clone(), hashed(VOCAB), None).run(&[1, 2, 3], greedy(400));
        for wrong in [0, 1] {
            let rig = rig_of(BLOCK, config.clone(), hashed(VOCAB));
            rig.script.synchronous.store(synchronous, SeqCst);
            rig.script.step_micros.store(300, SeqCst);
            rig.script.wrong_drafts.store(wrong, SeqCst);
            let done = rig.run(&[1, 2, 3], greedy(400));
            assert_eq!(done[&0].tokens, expected[&0].tokens);
            let (stats, steps) = (counts(&rig), rig.engine.stats().engine_steps);
            assert_eq!(steps + stats.num_accepted_tokens, 400);
            assert_eq!(stats.num_proposed_tokens, stats.num_draft_tokens, "what is drafted is verified");
            match wrong {
                0 => assert!(stats.num_accepted_tokens == stats.num_draft_tokens && steps < 300, "{steps}: {stats:?}"),
                _ => assert!(stats.num_accepted_tokens == 0 && stats.num_drafts < 100, "{stats:?}"),
            }
            assert_nothing_left(&rig.engine);
        }
    }
}

/// An engine without speculative decoding counts nothing. A text without repetition has no proposals.
#[test]
fn nothing_is_drafted_where_nothing_is_found() {
    let rig = Rig::new();
    rig.run(&[1, 1, 1, 1, 1], greedy(20));
    assert_eq!(rig.engine.stats().speculation, SpeculationStats::default());
    let config = EngineConfig { speculative_config: Some(DEFAULT), ..config() };
    let rig = Rig::with(config, hashed(VOCAB), None);
    rig.run(&[1, 2, 3], greedy(40));
    assert_eq!(counts(&rig).num_draft_tokens, 0);
    assert_nothing_left(&rig.engine);
}

/// Returns any settings of a request, with tokens that are forbidden at first, and tokens that end it.
fn any_settings(random: &mut impl FnMut(u64) -> u64) -> (Vec<u32>, SamplingParams) {
    let (mut prompt, params) = draft(random);
    if random(2) == 0 {
        prompt.extend_from_within(..);
    }
    let max_tokens = 1 + random(40) as usize;
    let params = SamplingParams {
        max_tokens,
        min_tokens: if random(3) == 0 { random(max_tokens as u64 + 1) as usize } else { 0 },
        top_p: if random(3) == 0 { 0.8 } else { 1.0 },
        min_p: if random(4) == 0 { 0.05 } else { 0.0 },
        presence_penalty: if random(4) == 0 { 0.7 } else { 0.0 },
        frequency_penalty: if random(4) == 0 { 0.4 } else { 0.0 },
        logit_bias: if random(4) == 0 { vec![(random(VOCAB as u64) as u32, 6.0)] } else { vec![] },
        logprobs: (random(3) == 0).then_some(2),
        prompt_logprobs: (random(6) == 0).then_some(1),
        ..params
    };
    (prompt, params)
}

/// S12: the results are those of the request alone, sampled token by token. This holds with any settings, preemption,
/// chunks, forks, cached prefixes, recurrent states, and scarce rows and slots.
#[test]
fn every_mix_has_the_text_that_it_has_without_drafts() {
    let mut generator = ChaCha8Rng::seed_from_u64(11);
    let mut random = move |n: u64| generator.next_u64() % n;
    let rule = repeating(VOCAB);
    let (mut num_accepted, mut with_states, mut num_preemptions) = (0, 0, 0);
    for mix in 0..60 {
        let speculative_config = Some([DEFAULT, EAGER, BLOCK, DRAFT_MODEL][mix % 4].clone());
        let config = EngineConfig {
            max_num_batched_tokens: 12 + random(40) as usize,
            max_drafts: 1 + random(20) as usize,
            kv_groups: blocks(20 + random(40) as usize),
            block_size: 4,
            enable_prefix_caching: random(2) == 0,
            states: if mix % 5 < 2 { slots(6, 1 + mix % 2, 1 + random(24) as usize) } else { None },
            speculative_config,
            ..tiny()
        };
        let rig = Rig::with(config.clone(), Arc::clone(&rule), None);
        let plain = Rig::with(EngineConfig { speculative_config: None, ..config }, Arc::clone(&rule), None);
        let (synchronous, selects) = (mix % 2 == 0, mix % 4 < 2);
        rig.script.wrong_drafts.store(4, SeqCst);
        for rig in [&rig, &plain] {
            rig.script.synchronous.store(synchronous, SeqCst);
            rig.script.selects.store(selects, SeqCst);
        }
        cheap_rows(&rig);
        let drafts: Vec<_> = (0..1 + random(8)).map(|_| any_settings(&mut random)).collect();
        let clients: Vec<_> = drafts.iter().map(|(prompt, params)| rig.submit(prompt, params.clone())).collect();
        for (client, (prompt, params)) in clients.into_iter().zip(&drafts) {
            let without = plain.run(prompt, params.clone());
            for (index, one) in client.wait() {
                let expected = alone(&rule, prompt, params, index as u32, params.seed.unwrap_or(0));
                assert_eq!(one.tokens, expected, "{params:?}");
                let other = &without[&index];
                assert_eq!((one.reason, &one.stop), (other.reason, &other.stop));
                assert_eq!(one.logprobs.len(), params.logprobs.map_or(0, |_| expected.len()));
                assert_all_same(&one.logprobs, &other.logprobs);
                assert_eq!(one.prompt_logprobs, other.prompt_logprobs);
            }
        }
        num_accepted += counts(&rig).num_accepted_tokens;
        with_states += if mix % 5 < 2 { counts(&rig).num_accepted_tokens } else { 0 };
        num_preemptions += rig.engine.stats().num_preemptions;
        assert_nothing_left(&rig.engine);
        assert_nothing_left(&plain.engine);
    }
    let all = (num_accepted, with_states, num_preemptions);
    assert!(num_accepted > 100 && with_states > 30 && num_preemptions > 0, "{all:?}");
}

/// Draft tokens do not change the probability of a text. In many sampled texts, mostly computed as drafts, token
/// triples are distributed as the model says (a chi-square test).
#[test]
fn drawn_texts_have_the_distribution_of_the_model() {
    // The tokens after each token have these probabilities, in different orders.
    let chance = |last: u32, token: u32| [0.35f32, 0.3, 0.2, 0.15][((last + token) % 4) as usize];
    let rule: crate::tests::fake::Rule = Arc::new(move |content: &[u32]| {
        let last = content[content.len() - 1];
        (0..VOCAB as u32).map(|token| if token < 4 { chance(last, token).ln() } else { -100.0 }).collect()
    });
    METHODS.into_iter().for_each(|method| check_distribution(method, &rule, chance));
}

fn check_distribution(method: SpeculativeConfig, rule: &crate::tests::fake::Rule, chance: impl Fn(u32, u32) -> f32) {
    let rig = rig_of(method, EngineConfig { kv_groups: blocks(100), ..config() }, Arc::clone(rule));
    cheap_rows(&rig);
    // Every pair of tokens occurs somewhere.
    let prompt = [0, 0, 1, 1, 2, 2, 3, 3, 0, 2, 0, 3, 1, 3, 2, 1, 0];
    let (mut observed, num_texts) = ([0.0; 64], 3200);
    for first in (0..num_texts).step_by(32) {
        let params = |seed| SamplingParams { temperature: 1.0, seed: Some(seed), ..greedy(6) };
        let clients: Vec<Client> = (first..first + 32).map(|seed| rig.submit(&prompt, params(seed))).collect();
        for client in clients {
            let done = client.wait();
            let place = done[&0].tokens[1..4].iter().fold(0, |place, token| 4 * place + *token as usize);
            observed[place] += 1.0;
        }
    }
    let mut squares = 0.0;
    for (place, observed) in (0u32..).zip(observed) {
        let [one, two, three] = [place / 16, place / 4 % 4, place % 4];
        let begin: f32 = (0..4).map(|first| chance(0, first) * chance(first, one)).sum();
        let expected = f64::from(begin * chance(one, two) * chance(two, three)) * num_texts as f64;
        squares += (observed - expected) * (observed - expected) / expected;
    }
    // With 63 degrees of freedom, a sum above 119 occurs once in 40,000 times.
    assert!(squares < 119.0, "{squares}");
    let counts = counts(&rig);
    assert!(counts.num_accepted_tokens > 500 && counts.num_draft_tokens > 1500, "{counts:?}");
    assert_nothing_left(&rig.engine);
}

/// K2, S6, S16: cancels, deadlines, consumers that leave and steps that fail, with speculative decoding.
#[test]
fn a_thousand_requests_with_drafts() {
    for (synchronous, states) in [(false, None), (true, None), (false, slots(6, 1, 6)), (true, slots(6, 2, 9))] {
        for method in METHODS {
            let config = EngineConfig { states, speculative_config: Some(method), ..tiny() };
            let rig = a_thousand_requests(synchronous, config, repeating(VOCAB));
            counts(&rig);
            assert_nothing_left(&rig.engine);
        }
    }
}

/// A token without meaning in the grammars below.
const MARKER: u32 = 70;

/// Two engines over letters, one of which drafts. Their texts repeat themselves, and their end can be made more likely.
fn two_of_letters(method: SpeculativeConfig, config: &EngineConfig) -> [Rig; 2] {
    let logits = repeating(LOGITS);
    let rule: crate::tests::fake::Rule = Arc::new(move |content: &[u32]| {
        let mut row = logits(content);
        let letters_and_space = 3..30;
        (0u32..)
            .zip(&mut row)
            .filter(|(token, _)| !letters_and_space.contains(token) && ![EOS, MARKER].contains(token))
            .for_each(|(_, logit)| *logit = -100.0);
        row[EOS as usize] -= 12.0;
        row
    });
    [Some(method), None].map(|speculative_config| {
        let config = EngineConfig { speculative_config, ..config.clone() };
        let rig = Rig::with(config, Arc::clone(&rule), Some(tokenizer(&["ab"])));
        rig.script.selects.store(true, SeqCst);
        cheap_rows(&rig);
        rig
    })
}

/// A stop string, end token or stop token among the drafts also ends the text, and nothing follows it.
#[test]
fn texts_end_where_they_end_without_drafts() {
    METHODS.into_iter().for_each(check_ends);
}

fn check_ends(method: SpeculativeConfig) {
    let config = EngineConfig { kv_groups: blocks(60), ..config() };
    let [rig, plain] = two_of_letters(method, &config);
    let prompt: Vec<u32> = "abcabdabcabd".chars().map(letter).collect();
    let free = plain.run(&prompt, greedy(30));
    let text = free[&0].text.clone();
    for at in 0..12 {
        let (tokens, seed) = (free[&0].tokens.clone(), Some(at as u64));
        let stop = text.chars().skip(at).take(2 + at % 3).collect::<String>();
        for params in [
            SamplingParams { stop: vec![stop.clone()], ..greedy(30) },
            SamplingParams { stop: vec![stop], include_stop_str_in_output: true, min_tokens: 9, ..greedy(30) },
            SamplingParams { stop_token_ids: vec![tokens[at]], min_tokens: at, ..greedy(30) },
            SamplingParams { logit_bias: vec![(EOS, 2.0 * at as f32)], seed, ..greedy(30) },
            SamplingParams { logit_bias: vec![(EOS, 16.0)], seed, temperature: 0.8, ..greedy(30) },
            SamplingParams {
                logit_bias: vec![(EOS, 16.0)],
                seed,
                ignore_eos: true,
                n: 3,
                temperature: 0.8,
                ..greedy(30)
            },
        ] {
            let (with, without) = (rig.run(&prompt, params.clone()), plain.run(&prompt, params.clone()));
            for (index, one) in &with {
                let other = &without[index];
                assert_eq!((&one.tokens, &one.text), (&other.tokens, &other.text), "{params:?}");
                assert_eq!((one.reason, &one.stop), (other.reason, &other.stop), "{params:?}");
            }
        }
    }
    assert!(counts(&rig).num_accepted_tokens > 0);
    [rig, plain].iter().for_each(|rig| assert_nothing_left(&rig.engine));
}

/// Draft tokens stop before a forced token, and where structured output begins.
#[test]
fn drafts_keep_to_reasoning_and_forms() {
    for (num_blocks, method) in [60, 16].into_iter().flat_map(|blocks| METHODS.map(|method| (blocks, method))) {
        let config = EngineConfig { kv_groups: blocks(num_blocks), ..config() };
        let [rig, plain] = two_of_letters(method, &config);
        let behind = |optional| {
            let begin = Some(BeginToken { id: MARKER, optional });
            matching("[ab]{3}(cdcd[ab]){2}").map(|outputs| StructuredOutputs { begin, ..outputs })
        };
        for seed in 0..8 {
            let base = |budget| SamplingParams {
                thinking_end_token_id: Some(MARKER),
                thinking_token_budget: Some(budget),
                temperature: 0.5,
                seed: Some(seed),
                ..greedy(30)
            };
            for params in [
                base(0),
                base(7),
                SamplingParams { logit_bias: vec![(MARKER, 14.0)], ..base(11) },
                SamplingParams { structured_outputs: behind(false), ..base(9) },
                SamplingParams { structured_outputs: behind(true), n: 2, logprobs: Some(2), ..base(15) },
                SamplingParams { structured_outputs: behind(true), logit_bias: vec![(MARKER, 14.0)], ..base(20) },
                SamplingParams { structured_outputs: matching("(abcd[ab]){4}"), frequency_penalty: 0.5, ..greedy(25) },
            ] {
                let clients = [&rig, &rig, &plain].map(|rig| rig.submit(&PROMPT, params.clone()));
                let [one, two, without] = clients.map(Client::wait);
                for (index, other) in &without {
                    for with in [&one[index], &two[index]] {
                        assert_eq!((&with.tokens, &with.text), (&other.tokens, &other.text), "{params:?}");
                        assert_eq!(with.reason, other.reason, "{:?}", with.error);
                        assert_ne!(with.reason, Some(FinishReason::Error), "{:?}", with.error);
                    }
                }
            }
        }
        assert!(counts(&rig).num_accepted_tokens > 0);
        [rig, plain].iter().for_each(|rig| assert_nothing_left(&rig.engine));
    }
}

/// Vectors and logits of prompts have no drafts, and do not change next to texts that have.
#[test]
fn prompts_without_texts_are_as_ever() {
    METHODS.into_iter().for_each(check_prompts);
}

fn check_prompts(method: SpeculativeConfig) {
    let rig = rig_of(method, EngineConfig { kv_groups: blocks(80), ..config() }, repeating(VOCAB));
    cheap_rows(&rig);
    let text = rig.submit(&[5, 6, 5, 6, 5], greedy(40));
    let prompt = vec![3, 4, 3, 4, 3, 4];
    let logits = prompt_logits(&rig.engine, prompt.clone()).unwrap();
    let expected: Vec<f32> = (1..=prompt.len()).flat_map(|len| (rig.rule)(&prompt[..len])).collect();
    assert_eq!(logits, expected);
    assert_eq!(text.wait()[&0].tokens, alone(&rig.rule, &[5, 6, 5, 6, 5], &greedy(40), 0, 0));
    assert_nothing_left(&rig.engine);
}

/// A step that is interrupted, or withdrawn for a newcomer, is computed again with its drafts.
#[test]
fn requests_that_come_and_go_disturb_no_drafts() {
    let devices = [(true, None), (false, None), (true, slots(8, 2, 9)), (false, slots(8, 1, 9))];
    for ((synchronous, states), method) in devices.into_iter().flat_map(|device| METHODS.map(|method| (device, method)))
    {
        let rig = rig_of(method, EngineConfig { states, ..config() }, repeating(VOCAB));
        rig.script.synchronous.store(synchronous, SeqCst);
        cheap_rows(&rig);
        let expected = alone(&rig.rule, &[1, 2, 3], &greedy(60), 0, 0);
        for round in 0..10u32 {
            let client = rig.submit(&[1, 2, 3], greedy(60));
            let mut leaving = Vec::new();
            for other in 0..6 {
                let (prompt, name) = (vec![round, other, 9, round, other], Some(format!("client {other}")));
                leaving.push(submit(&rig.engine, Draft { client: name, ..request(&prompt, greedy(30)) }).unwrap());
                if other % 2 == 0 {
                    rig.engine.abort_id(leaving[0].accepted.id).unwrap();
                    leaving.remove(0).wait();
                }
            }
            assert_eq!(client.wait()[&0].tokens, expected);
            leaving.into_iter().for_each(|client| drop(client.wait()));
        }
        assert_nothing_left(&rig.engine);
    }
}
