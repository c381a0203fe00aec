//! Any settings and any row of logits. With settings that `validate` accepts, sampling returns a possible token, always
//! the same one, if there is one. It returns the largest logit's token if only the largest counts. From a device's
//! selection of the row it returns the same token as from the row.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use rocmforge::config::SamplingParams;
use rocmforge::sampler::{Picked, Sampler, SequenceSampler};
use rocmforge::selection::{BestTokens, Ranked, Selected, Wanted};

use super::allowed;

/// More than the candidates of a device, so that the row decides in several ways.
const MAX_ROW: usize = 4096;

/// A number within a range, in steps, or any number.
#[derive(Debug, Arbitrary)]
enum Number {
    Step(u8),
    Any(f32),
}

impl Number {
    fn within(&self, least: f32, most: f32) -> f32 {
        match *self {
            Self::Step(step) => least + (most - least) * f32::from(step) / 255.0,
            Self::Any(number) => number,
        }
    }
}

#[derive(Debug, Arbitrary)]
struct Input {
    temperature: Number,
    top_p: Number,
    top_k: u16,
    min_p: Number,
    penalties: Option<[Number; 3]>,
    bias: Vec<(u16, Number)>,
    min_tokens: u8,
    logprobs: Option<u8>,
    seed: u64,
    prompt: Vec<u16>,
    generated: Vec<u16>,
    /// The row repeats these logits, each repetition less by `fall`.
    logits: Vec<Number>,
    repeated: u16,
    fall: Number,
}

impl Input {
    fn params(&self, size: usize) -> SamplingParams {
        let penalty = |place: usize, least, most, none| {
            self.penalties.as_ref().map_or(none, |penalties| penalties[place].within(least, most))
        };
        SamplingParams {
            temperature: self.temperature.within(0.0, 2.0),
            top_p: self.top_p.within(0.0, 1.0),
            top_k: self.top_k.into(),
            min_p: self.min_p.within(0.0, 1.0),
            repetition_penalty: penalty(0, 0.5, 2.0, 1.0),
            presence_penalty: penalty(1, -2.0, 2.0, 0.0),
            frequency_penalty: penalty(2, -2.0, 2.0, 0.0),
            logit_bias: self.bias.iter().map(|(id, bias)| (id_of(*id, size), bias.within(-100.0, 100.0))).collect(),
            min_tokens: self.min_tokens.into(),
            logprobs: self.logprobs.map(usize::from),
            seed: Some(self.seed),
            ..SamplingParams::default()
        }
    }

    fn row(&self) -> Vec<f32> {
        let logits: Vec<f32> = self.logits.iter().map(|logit| logit.within(-20.0, 20.0)).collect();
        let fall = self.fall.within(0.0, 0.5);
        let rounds = 0..=self.repeated;
        let row = rounds.flat_map(|round| logits.iter().map(move |logit| logit - f32::from(round) * fall));
        row.take(MAX_ROW).collect()
    }
}

/// Ids outside the vocabulary are refused when a request arrives.
fn id_of(any: u16, size: usize) -> u32 {
    u32::from(any) % size as u32
}

pub fn check(bytes: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let row = input.row();
    if row.is_empty() {
        return;
    }
    let params = input.params(row.len());
    if allowed(params.validate()).is_none() {
        return;
    }
    let greedy = params.temperature == 0.0 || params.top_k == 1;
    let ids = |tokens: &[u16]| tokens.iter().map(|&id| id_of(id, row.len())).collect::<Vec<_>>();
    let prompt = ids(&input.prompt);
    let mut sequence = SequenceSampler::new(Arc::new(params), input.seed, 0, &prompt, Arc::from([0]));
    ids(&input.generated).into_iter().for_each(|token| sequence.accept(token));

    let mut sampler = Sampler::new(row.len());
    let from_row = allowed(sampler.pick_from_row(&row, &sequence, None));
    assert_eq!(from_row, allowed(sampler.pick_from_row(&row, &sequence, None)), "two samplings of one row differ");
    let is_nan = row.iter().any(|logit| logit.is_nan());
    assert!(from_row.is_none() || !is_nan, "a token of a row with a NaN");
    let request = sequence.sampling_request(row.len(), 0, None);
    if request.wanted == Wanted::Row {
        assert!(from_row.is_none_or(|picked| (picked.token as usize) < row.len()), "no token of the vocabulary");
        return;
    }
    let mut altered = row.clone();
    if let Some(alteration) = request.alteration {
        alteration.apply(&mut altered);
    }
    let possible = altered.iter().any(|&logit| logit > f32::NEG_INFINITY);
    let Some(from_row) = from_row else {
        assert!(is_nan || !possible, "no token, although one is possible");
        return;
    };
    let logit = altered.get(from_row.token as usize).copied();
    assert!(logit > Some(f32::NEG_INFINITY), "token {} has the logit {logit:?}", from_row.token);
    if greedy {
        let largest = altered.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(altered.iter().position(|&logit| logit == largest), Some(from_row.token as usize));
    }
    let (best, unaltered) = (Best::of(&altered), Best::of(&row));
    let selected = match request.wanted {
        Wanted::Draw(draw) => Selected::Drawn(draw.of_row(&altered)),
        wanted => best.select(wanted),
    };
    let chosen = match selected {
        Selected::Argmax { token, .. } => Some(token),
        Selected::Drawn(drawn) => Some(drawn.token.token),
        _ => None,
    };
    let own = (request.unaltered > 0).then(|| unaltered.unaltered(request.unaltered, chosen));
    if let Some(from_device) = allowed(sampler.pick(selected, own, &sequence, None)).flatten() {
        same(&from_device, &from_row);
    }
}

fn same(device: &Picked, row: &Picked) {
    assert_eq!(device.token, row.token, "a selection gives another token than the row");
    let places = |picked: &Picked| {
        let entries = picked.logprobs.as_ref();
        entries.map(|entries| entries.iter().map(|entry| (entry.token_id, entry.rank)).collect::<Vec<_>>())
    };
    assert_eq!(places(device), places(row));
    let all = [device, row].into_iter().filter_map(|picked| picked.logprobs.as_ref()).flatten();
    all.for_each(|entry| assert!(entry.logprob <= 0.0, "the log-probability {}", entry.logprob));
}

/// A row's tokens in the sampler's order, as a device selects them.
struct Best {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Best {
    fn of(row: &[f32]) -> Self {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        // Rows with a NaN do not reach this code; zeros of both signs are equal.
        ids.sort_by(|&a, &b| {
            let (x, y) = (row[a as usize], row[b as usize]);
            if x == y { a.cmp(&b) } else { y.total_cmp(&x) }
        });
        let logits = ids.iter().map(|&id| row[id as usize]).collect();
        Self { ids, logits }
    }

    fn log_sum_exp(&self) -> f32 {
        let largest = self.logits[0];
        let above = |x: f32| if x == largest { 0.0 } else { f64::from(x) - f64::from(largest) };
        let total: f64 = self.logits.iter().map(|&x| above(x).exp()).sum();
        (f64::from(largest) + total.ln()) as f32
    }

    fn select(&self, wanted: Wanted) -> Selected<'_> {
        let log_sum_exp = self.log_sum_exp();
        match wanted {
            Wanted::Argmax => Selected::Argmax { token: self.ids[0], logit: self.logits[0], log_sum_exp },
            Wanted::Top { k } => {
                Selected::Top { ids: &self.ids[..k as usize], logits: &self.logits[..k as usize], log_sum_exp }
            }
            other => panic!("{other:?} is not among the best tokens"),
        }
    }

    fn unaltered(&self, k: u32, chosen: Option<u32>) -> BestTokens<'_> {
        let place = chosen.and_then(|token| self.ids.iter().position(|&id| id == token));
        let chosen = place.map(|place| Ranked { logit: self.logits[place], rank: place as u32 + 1 });
        let (ids, logits) = (&self.ids[..k as usize], &self.logits[..k as usize]);
        BestTokens { ids, logits, log_sum_exp: self.log_sum_exp(), chosen }
    }
}
