//! The whole row is the reference: `pick` must make the same of a selection as `pick_from_row` of its row.

use std::sync::Arc;

use proptest::prelude::*;

use super::{LARGE_VOCAB, logits, sequence};
use crate::Error;
use crate::config::SamplingParams;
use crate::selection::{
    BestTokens, Cut, Draw, Drawn, FRACTION_BITS, MAX_TOP, NO_TOKEN, Ranked, SamplingRequest, Selected, TokenMask,
    Wanted,
};
use crate::{Picked, Sampler, SequenceSampler};

/// A row as a device sees it.
struct Device {
    row: Vec<f32>,
    order: Vec<u32>,
    sorted: Vec<f32>,
}

impl Device {
    fn new(row: Vec<f32>) -> Self {
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        order.sort_by(|&a, &b| row[b as usize].partial_cmp(&row[a as usize]).unwrap().then(a.cmp(&b)));
        let sorted = order.iter().map(|&id| row[id as usize]).collect();
        Self { row, order, sorted }
    }

    fn max(&self) -> f64 {
        f64::from(self.sorted[0])
    }

    fn log_total(&self) -> f64 {
        let weights = self.sorted.iter().map(|&x| if x == self.sorted[0] { 0.0 } else { f64::from(x) - self.max() });
        weights.map(f64::exp).sum::<f64>().ln()
    }

    fn select(&self, wanted: Wanted) -> Selected<'_> {
        let Self { row, order, sorted } = self;
        let log_sum_exp = (self.max() + self.log_total()) as f32;
        match wanted {
            Wanted::Argmax => Selected::Argmax { token: order[0], logit: sorted[0], log_sum_exp },
            Wanted::Top { k } => {
                Selected::Top { ids: &order[..k as usize], logits: &sorted[..k as usize], log_sum_exp }
            }
            Wanted::Draw(draw) => Selected::Drawn(draw.of_row(row)),
            Wanted::Row => Selected::Row(row),
            Wanted::Hidden => Selected::Nothing,
        }
    }
}

impl Device {
    /// Returns the `k` best tokens of the row, and the rank of the picked one; `None` if `k` is 0.
    fn unaltered(&self, k: u32, chosen: Option<u32>) -> Option<BestTokens<'_>> {
        let Selected::Top { ids, logits, log_sum_exp } = self.select(Wanted::Top { k }) else { panic!("candidates") };
        let place = chosen.and_then(|token| self.order.iter().position(|&id| id == token));
        let chosen = place.map(|place| Ranked { logit: self.sorted[place], rank: place as u32 + 1 });
        (k > 0).then_some(BestTokens { ids, logits, log_sum_exp, chosen })
    }
}

fn assert_same(got: &Picked, expected: &Picked) {
    assert_eq!(got.token, expected.token);
    match (&got.logprobs, &expected.logprobs) {
        (None, None) => {}
        (Some(got), Some(expected)) => {
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!((got.token_id, got.rank), (expected.token_id, expected.rank));
                assert!((got.logprob - expected.logprob).abs() <= 3e-6 * expected.logprob.abs().max(1.0));
            }
        }
        _ => panic!("log-probabilities from one of them only"),
    }
}

/// Samples `steps` tokens from the selection of a row and from the row. Returns how many the selection decided.
fn compare(device: &Device, params: &SamplingParams, steps: usize) -> usize {
    compare_under(device, params, None, steps)
}

/// Does the same as `compare`, with only the tokens of the mask.
fn compare_under(device: &Device, params: &SamplingParams, mask: Option<&TokenMask>, steps: usize) -> usize {
    let (mut one, mut other) = (Sampler::new(device.row.len()), Sampler::new(device.row.len()));
    let prompt: Vec<u32> = device.order.iter().copied().step_by(3).take(50).collect();
    let mut sequence = SequenceSampler::new(Arc::new(params.clone()), 5, 0, &prompt, Arc::from(&device.order[..1]));
    let mut decided = 0;
    for _ in 0..steps {
        let expected = other.pick_from_row(&device.row, &sequence, mask).unwrap();
        let SamplingRequest { wanted, alteration, unaltered, .. } =
            sequence.sampling_request(device.row.len(), 0, mask);
        let altered = (alteration.is_some() || mask.is_some()).then(|| {
            let mut row = device.row.clone();
            alteration.iter().for_each(|alteration| alteration.apply(&mut row));
            mask.iter().for_each(|mask| mask.apply(&mut row));
            Device::new(row)
        });
        let selected = altered.as_ref().unwrap_or(device).select(wanted);
        let chosen = match selected {
            Selected::Argmax { token, .. } => Some(token),
            Selected::Drawn(drawn) => Some(drawn.token.token),
            _ => None,
        };
        let unaltered = device.unaltered(unaltered, chosen);
        if let Some(picked) = one.pick(selected, unaltered, &sequence, mask).unwrap() {
            assert_same(&picked, &expected);
            decided += 1;
        }
        sequence.accept(expected.token);
    }
    decided
}

/// S14, G21: with every kind of filter and the vocabulary of Qwen, the row never has to be read.
#[test]
fn candidates_decide_as_the_row_does() {
    check_filters(15);
}

fn check_filters(steps: usize) {
    let device = Device::new(logits(LARGE_VOCAB, 1).into_iter().map(|x| 1.5 * x).collect());
    let warm = SamplingParams { temperature: 0.8, ..Default::default() };
    let cases = [
        SamplingParams { temperature: 0.0, ..Default::default() },
        SamplingParams { temperature: 0.0, logprobs: Some(0), ..Default::default() },
        SamplingParams { temperature: 0.0, logprobs: Some(20), ..Default::default() },
        SamplingParams { top_k: 1, ..warm.clone() },
        SamplingParams { top_k: 50, logprobs: Some(5), ..Default::default() },
        SamplingParams { top_k: MAX_TOP, temperature: 3.0, ..Default::default() },
        SamplingParams { top_k: MAX_TOP + 1, temperature: 3.0, ..Default::default() },
        SamplingParams { top_k: 1000, temperature: 20.0, top_p: 0.9, min_p: 0.5, ..Default::default() },
        SamplingParams { top_k: 100_000, temperature: 20.0, logprobs: Some(2), ..Default::default() },
        SamplingParams { top_k: 3, logprobs: Some(20), ..warm.clone() },
        SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.02, ..warm.clone() },
        SamplingParams { min_p: 0.05, ..warm.clone() },
        SamplingParams { min_p: 0.1, temperature: 1.3, top_p: 0.5, ..Default::default() },
        SamplingParams { top_p: 0.6, ..Default::default() },
        SamplingParams { top_p: 0.8, logprobs: Some(2), ..warm.clone() },
        SamplingParams { top_p: 0.9, temperature: 1.2, ..Default::default() },
        SamplingParams { top_p: 0.95, temperature: 0.5, ..Default::default() },
        SamplingParams { logprobs: Some(1), ..warm },
        SamplingParams::default(),
        SamplingParams { temperature: 20.0, ..Default::default() },
        SamplingParams { temperature: 20.0, top_p: 0.95, ..Default::default() },
        SamplingParams { temperature: 20.0, top_p: 0.5, min_p: 0.7, logprobs: Some(3), ..Default::default() },
    ];
    for params in cases {
        assert_eq!(compare(&device, &params, steps), steps, "{params:?}");
    }
}

/// Tests that take too long for every commit.
mod deep {
    #[test]
    fn more_draws_decide_as_the_row_does() {
        super::check_filters(100);
    }
}

/// S14, G21: the best few tokens also decide with penalties, bias and a minimum length.
#[test]
fn candidates_of_an_altered_row_decide() {
    let device = Device::new(logits(5000, 1).into_iter().map(|x| 1.5 * x).collect());
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let cases = [
        (SamplingParams { repetition_penalty: 1.1, ..greedy.clone() }, 40),
        (SamplingParams { presence_penalty: 0.6, frequency_penalty: 0.3, logprobs: Some(2), ..greedy.clone() }, 40),
        (SamplingParams { min_tokens: 20, logprobs: Some(0), ..greedy }, 40),
        (SamplingParams { repetition_penalty: 1.3, top_k: 40, top_p: 0.9, ..Default::default() }, 40),
        (SamplingParams { repetition_penalty: 0.7, min_p: 0.1, logprobs: Some(4), ..Default::default() }, 40),
        (SamplingParams { logit_bias: vec![(3, 5.0), (4, -100.0)], top_p: 0.8, ..Default::default() }, 40),
        (SamplingParams { frequency_penalty: 1.2, ..Default::default() }, 40),
    ];
    for (params, at_least) in cases {
        let decided = compare(&device, &params, 40);
        assert!(decided >= at_least, "{decided} of 40 decided: {params:?}");
    }
}

/// Log-probabilities are those of the model's own row. They come from its best tokens, or else from the whole row.
#[test]
fn log_probabilities_before_the_alteration() {
    let device = Device::new(logits(1000, 4));
    let (best, second) = (device.order[0], device.order[1]);
    let params = SamplingParams { temperature: 0.0, logprobs: Some(2), min_tokens: 1, ..Default::default() };
    let sequence = SequenceSampler::new(Arc::new(params), 0, 0, &[], Arc::from([best]));
    let altered = Selected::Argmax { token: second, logit: device.sorted[1], log_sum_exp: 1.0 };
    let mut sampler = Sampler::new(1000);
    let mut pick = |unaltered| sampler.pick(altered, unaltered, &sequence, None).unwrap();
    let own = pick(device.unaltered(2, Some(second))).unwrap();
    assert_eq!(pick(device.unaltered(5, None)), Some(own.clone()));
    let entries = own.logprobs.unwrap();
    assert_eq!(own.token, second);
    assert_eq!(
        entries.iter().map(|entry| (entry.token_id, entry.rank)).collect::<Vec<_>>(),
        [(second, 2), (best, 1), (second, 2)]
    );
    let expected = f64::from(device.sorted[1]) - device.max() - device.log_total();
    assert!((f64::from(entries[0].logprob) - expected).abs() < 1e-5);
    // The row is needed without the model's own tokens, and if the picked one is not among them.
    assert_eq!(pick(None), None);
    assert_eq!(pick(device.unaltered(1, None)), None);
}

/// The results are the same under a mask of a few tokens or half of them, with other alterations. If the alteration
/// leaves no allowed token, or a log-probability is unknown, the row decides.
#[test]
fn candidates_decide_under_a_mask() {
    let device = Device::new(logits(LARGE_VOCAB, 2));
    let words = LARGE_VOCAB.div_ceil(32);
    let mask_of = |tokens: &[u32]| {
        let mut mask = vec![0u32; words];
        tokens.iter().for_each(|&token| mask[token as usize / 32] |= 1 << (token % 32));
        TokenMask::from_words(mask)
    };
    let few = mask_of(&[device.order[3], device.order[500], device.order[90_000], 7]);
    let half = TokenMask::from_words(vec![0x5555_5555; words]);
    let warm = SamplingParams { temperature: 0.8, ..Default::default() };
    for (mask, params, least) in [
        (&few, SamplingParams { temperature: 0.0, ..warm.clone() }, 50),
        (&few, warm.clone(), 50),
        (&few, SamplingParams { top_k: 3, ..warm.clone() }, 50),
        (&few, SamplingParams { top_p: 0.9, repetition_penalty: 1.3, ..warm.clone() }, 50),
        (&few, SamplingParams { min_p: 0.01, frequency_penalty: 0.4, ..warm.clone() }, 50),
        (&few, SamplingParams { temperature: 0.0, logprobs: Some(3), ..warm.clone() }, 50),
        (&half, SamplingParams { temperature: 0.0, ..warm.clone() }, 50),
        (&half, SamplingParams { top_k: 40, top_p: 0.9, logprobs: Some(5), ..warm.clone() }, 40),
        (&half, SamplingParams { top_p: 0.5, presence_penalty: 0.2, ..warm.clone() }, 50),
    ] {
        let decided = compare_under(&device, &params, Some(mask), 50);
        assert!(decided >= least, "{decided} of 50 with {params:?}");
    }
    // The mask only allows the end token, which the settings forbid at first.
    let end = mask_of(&device.order[..1]);
    let params = SamplingParams { min_tokens: 5, temperature: 0.0, ..Default::default() };
    assert_eq!(compare_under(&device, &params, Some(&end), 10), 5);
}

/// Infinities need the row, except for the token of the largest logit. A vocabulary that fits never needs it.
#[test]
fn edges() {
    let mut row = logits(1000, 3);
    row[40] = f32::INFINITY;
    row[60] = f32::INFINITY;
    let infinite = Device::new(row);
    assert_eq!(compare(&infinite, &SamplingParams::default(), 10), 0);
    assert_eq!(compare(&infinite, &SamplingParams { temperature: 0.0, ..Default::default() }, 10), 10);
    let mut row = logits(1000, 3);
    row[7] = f32::NEG_INFINITY;
    assert_eq!(compare(&Device::new(row), &SamplingParams { top_p: 0.5, ..Default::default() }, 20), 20);
    let small = Device::new(logits(200, 3));
    for params in [
        SamplingParams::default(),
        SamplingParams { top_p: 0.999, ..Default::default() },
        SamplingParams { top_k: 1000, min_p: 1e-6, ..Default::default() },
    ] {
        assert_eq!(compare(&small, &params, 50), 50, "{params:?}");
    }
    // With equal logits the ids decide.
    let flat = Device::new(vec![0.5; 5000]);
    assert_eq!(compare(&flat, &SamplingParams { top_k: 7, ..Default::default() }, 50), 50);
    assert_eq!(compare(&flat, &SamplingParams { top_p: 0.031, ..Default::default() }, 50), 50);
    assert_eq!(compare(&flat, &SamplingParams::default(), 50), 50);
}

#[test]
fn what_is_wanted() {
    let wanted = |params| sequence(params, 0).sampling_request(1000, 0, None).wanted;
    let top = |k: u32| Wanted::Top { k };
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    assert_eq!(wanted(greedy.clone()), Wanted::Argmax);
    assert_eq!(wanted(SamplingParams { logprobs: Some(0), ..greedy.clone() }), Wanted::Argmax);
    assert_eq!(wanted(SamplingParams { logprobs: Some(4), ..greedy }), top(4));
    assert_eq!(wanted(SamplingParams { top_k: 4, logprobs: Some(9), ..Default::default() }), top(9));
    let drawn = |params| match wanted(params) {
        Wanted::Draw(Draw { per_logit, min_p, top_k, top_p, .. }) => (per_logit, min_p, top_k, top_p),
        other => panic!("{other:?}"),
    };
    assert_eq!(drawn(SamplingParams::default()), (1.0, 0.0, 0, 1.0));
    assert_eq!(drawn(SamplingParams { min_p: 0.1, temperature: 2.0, ..Default::default() }), (0.5, 0.1, 0, 1.0));
    let cold = SamplingParams { top_p: 0.5, temperature: 1e-40, top_k: MAX_TOP + 1, ..Default::default() };
    assert_eq!(drawn(cold), (f32::MAX, 0.0, MAX_TOP as u32 + 1, 0.5));
    // The random number of a later token is the one that it has when it is the next.
    let mut sequence = sequence(SamplingParams::default(), 0);
    let ahead = sequence.sampling_request(1000, 2, None).wanted;
    [5, 6].into_iter().for_each(|token| sequence.accept(token));
    assert_eq!(sequence.sampling_request(1000, 0, None).wanted, ahead);
    assert_eq!(wanted(SamplingParams { top_k: MAX_TOP, ..Default::default() }), top(MAX_TOP as u32));
}

/// A device gets an alteration as long as there is one, with the tokens that it currently affects.
#[test]
fn what_alters_a_row() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let ends: Arc<[u32]> = Arc::from([8, 9]);
    let new = |params: SamplingParams| SequenceSampler::new(Arc::new(params), 0, 0, &[5, 6, 5], Arc::clone(&ends));
    let listed = |sequence: &SequenceSampler| {
        let SamplingRequest { wanted, alteration, .. } = sequence.sampling_request(1000, 0, None);
        assert_eq!(wanted, Wanted::Argmax);
        let tokens = alteration.map(|alteration| alteration.tokens.iter().map(|t| (t.id, t.bias, t.seen)).collect());
        tokens.map(|mut tokens: Vec<_>| {
            tokens.sort_by_key(|token| token.0);
            tokens
        })
    };
    assert_eq!(listed(&new(greedy.clone())), None);
    let mut penalised = new(SamplingParams { repetition_penalty: 1.1, ..greedy.clone() });
    [6, 7, 7].into_iter().for_each(|token| penalised.accept(token));
    assert_eq!(listed(&penalised), Some(vec![(5, 0.0, 1), (6, 0.0, 2), (7, 0.0, 3)]));
    let mut present = new(SamplingParams { presence_penalty: 0.5, ..greedy.clone() });
    present.accept(6);
    assert_eq!(listed(&present), Some(vec![(6, 0.0, 2)]));
    let mut masked = new(SamplingParams { min_tokens: 2, ..greedy.clone() });
    let least = f32::NEG_INFINITY;
    assert_eq!(listed(&masked), Some(vec![(8, least, 0), (9, least, 0)]));
    masked.accept(1);
    assert!(listed(&masked).is_some());
    masked.accept(1);
    assert_eq!(listed(&masked), None);
    let mut both = new(SamplingParams { min_tokens: 1, logit_bias: vec![(9, 2.5)], ..greedy.clone() });
    assert_eq!(listed(&both), Some(vec![(8, least, 0), (9, least, 0)]));
    both.accept(1);
    assert_eq!(listed(&both), Some(vec![(8, 0.0, 0), (9, 2.5, 0)]));
}

/// A selection that cannot decide is not an error, but one that contradicts every row is.
#[test]
fn selections_of_every_kind() {
    let device = Device::new(logits(1000, 9));
    let random = sequence(SamplingParams { temperature: 2.0, ..Default::default() }, 0);
    let mut sampler = Sampler::new(1000);
    assert_eq!(sampler.pick(device.select(Wanted::Argmax), None, &random, None).unwrap(), None);
    let few = Wanted::Top { k: 3 };
    assert_eq!(sampler.pick(device.select(few), None, &random, None).unwrap(), None);
    assert!(sampler.pick(device.select(Wanted::Row), None, &random, None).unwrap().is_some());
    let greedy = sequence(SamplingParams { temperature: 0.0, ..Default::default() }, 0);
    for wanted in [Wanted::Argmax, few, Wanted::Row] {
        assert_eq!(sampler.pick(device.select(wanted), None, &greedy, None).unwrap().unwrap().token, device.order[0]);
    }
    let failed = |selected: Selected<'_>, sequence: &SequenceSampler| {
        matches!(Sampler::new(1000).pick(selected, None, sequence, None), Err(Error::StepFailed { .. }))
    };
    let nan = f32::NAN;
    assert!(failed(Selected::Argmax { token: NO_TOKEN, logit: 1.0, log_sum_exp: nan }, &greedy));
    assert!(failed(Selected::Top { ids: &[3], logits: &[1.0], log_sum_exp: nan }, &random));
    let least = f32::NEG_INFINITY;
    assert!(failed(Selected::Argmax { token: 0, logit: least, log_sum_exp: least }, &greedy));
    let Selected::Drawn(drawn) = device.select(random.sampling_request(1000, 0, None).wanted) else { panic!("a draw") };
    let expected = sampler.pick_from_row(&device.row, &random, None).unwrap();
    assert_eq!(sampler.pick(Selected::Drawn(drawn), None, &random, None).unwrap(), Some(expected));
    assert!(failed(Selected::Drawn(Drawn { largest: nan, ..drawn }), &random));
    assert!(failed(Selected::Drawn(Drawn { largest: least, ..drawn }), &random));
    // Anything that a device reports and that cannot be verified.
    let heavier = 1u64 << FRACTION_BITS;
    for uncertain in [
        Drawn { largest: f32::INFINITY, ..drawn },
        Drawn { token: Cut::NONE, ..drawn },
        Drawn { token: Cut { before: drawn.token.before + heavier, ..drawn.token }, ..drawn },
        Drawn { total: drawn.total + 20 * heavier, ..drawn },
    ] {
        assert_eq!(sampler.pick(Selected::Drawn(uncertain), None, &random, None).unwrap(), None, "{uncertain:?}");
    }
    let mut broken = |ids: &[u32], logits: &[f32]| {
        matches!(
            sampler.pick(Selected::Top { ids, logits, log_sum_exp: 1.0 }, None, &greedy, None),
            Err(Error::Internal { .. })
        )
    };
    assert!(broken(&[], &[]) && broken(&[1, 2], &[0.5]) && broken(&[1000], &[0.5]));
    assert!(broken(&[1, 2], &[0.5, 0.6]) && broken(&[2, 1], &[0.5, 0.5]));
    assert!(!broken(&[1, 2], &[0.5, 0.5]));
}

proptest! {
    /// S14: any settings and any row, peaked or flat, with equal logits, altered or not.
    #[test]
    fn any_settings_agree_with_the_row(
        seed in any::<u64>(),
        vocab_size in prop_oneof![1usize..40, 200usize..600, Just(5000usize)],
        spread in prop_oneof![Just(0.0f32), 0.05f32..3.0],
        steps_of in prop_oneof![Just(0.0f32), Just(0.5f32)],
        temperature in prop_oneof![Just(0.0f32), Just(1.0f32), 0.05f32..4.0],
        filters in (
            prop_oneof![Just(0usize), 1usize..300],
            prop_oneof![Just(1.0f32), 0.01f32..1.0],
            prop_oneof![Just(0.0f32), 0.0f32..0.3],
        ),
        logprobs in prop_oneof![Just(None), (0usize..21).prop_map(Some)],
        penalties in prop_oneof![Just((1.0f32, 0.0f32, 0.0f32)), (0.5f32..2.0, -2.0f32..2.0, -2.0f32..2.0)],
        (logit_bias, min_tokens) in (prop::collection::vec((0u32..40, -5.0f32..5.0), 0..4), 0usize..4),
    ) {
        let row = logits(vocab_size, seed).into_iter().map(|x| x * spread);
        let rounded = row.map(|x| if steps_of > 0.0 { (x / steps_of).round() * steps_of } else { x });
        let (top_k, top_p, min_p) = filters;
        let (repetition_penalty, presence_penalty, frequency_penalty) = penalties;
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            logprobs,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            // A vocabulary of one token needs that token.
            min_tokens: if vocab_size > 1 { min_tokens } else { 0 },
            ..Default::default()
        };
        compare(&Device::new(rounded.collect()), &params, 8);
    }
}
