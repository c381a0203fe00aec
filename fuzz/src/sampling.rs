//! Any settings and any row of logits. What `validate` accepts samples a token that is possible, the same one each
//! time, wherever there is one; the largest where nothing but the largest counts; and from the best few what the row
//! gives.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use rocmforge::config::SamplingParams;
use rocmforge::sampler::{Picked, Sampler, SequenceSampler};
use rocmforge::selection::{Selected, Wanted};

use crate::allowed;

/// More than the candidates of a device, so that the row decides in several ways.
const MAX_ROW: usize = 4096;

/// A number within a range, in steps, or any at all.
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
    /// The row is these again and again, each time less by `fall`.
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

/// Ids beyond the vocabulary are refused when a request comes in.
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
    let wish = sequence.wish(row.len(), None);
    if wish.wanted == Wanted::Row {
        assert!(from_row.is_none_or(|picked| (picked.token as usize) < row.len()), "no token of the vocabulary");
        return;
    }
    let mut altered = row.clone();
    if let Some(alteration) = wish.alteration {
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
    let unaltered = Best::of(&row);
    let own = unaltered.select(Wanted::Top { k: wish.unaltered, temperature: 1.0 });
    let own = (wish.unaltered > 0).then_some(own);
    let few = Best::of(&altered);
    if let Some(from_few) = allowed(sampler.pick(few.select(wish.wanted), own, &sequence, None)).flatten() {
        same(&from_few, &from_row);
    }
}

fn same(few: &Picked, row: &Picked) {
    assert_eq!(few.token, row.token, "the best few tokens give another one than the row");
    let places = |picked: &Picked| {
        let entries = picked.logprobs.as_ref();
        entries.map(|entries| entries.iter().map(|entry| (entry.token_id, entry.rank)).collect::<Vec<_>>())
    };
    assert_eq!(places(few), places(row));
    let all = [few, row].into_iter().filter_map(|picked| picked.logprobs.as_ref()).flatten();
    all.for_each(|entry| assert!(entry.logprob <= 0.0, "the log-probability {}", entry.logprob));
}

/// A row's tokens in the sampler's order, as a device selects from them.
struct Best {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Best {
    fn of(row: &[f32]) -> Self {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        // Rows with a NaN do not come here; zeros of both signs are equals.
        ids.sort_by(|&a, &b| {
            let (x, y) = (row[a as usize], row[b as usize]);
            if x == y { a.cmp(&b) } else { y.total_cmp(&x) }
        });
        let logits = ids.iter().map(|&id| row[id as usize]).collect();
        Self { ids, logits }
    }

    fn log_total(&self, temperature: f64) -> f64 {
        let largest = self.logits[0];
        let above = |x: f32| if x == largest { 0.0 } else { f64::from(x) - f64::from(largest) };
        self.logits.iter().map(|&x| (above(x) / temperature).exp()).sum::<f64>().ln()
    }

    fn select(&self, wanted: Wanted) -> Selected<'_> {
        let log_sum_exp = (f64::from(self.logits[0]) + self.log_total(1.0)) as f32;
        match wanted {
            Wanted::Argmax => Selected::Argmax { token: self.ids[0], logit: self.logits[0], log_sum_exp },
            Wanted::Top { k, temperature } => Selected::Top {
                ids: &self.ids[..k as usize],
                logits: &self.logits[..k as usize],
                log_sum_exp,
                log_total: self.log_total(f64::from(temperature)) as f32,
            },
            Wanted::Row | Wanted::Hidden => panic!("a row is wanted, or a hidden state"),
        }
    }
}
