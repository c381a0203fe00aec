//! Rows of the fake executor's step, as a device stores them, and the requests for them.

use super::{Fault, Script};
use crate::selection::{
    Alteration, AlteredToken, BestTokens, DeviceRows, Drawn, NO_TOKEN, Penalties, Ranked, SamplingRequest, Selected,
    TokenMask, Wanted,
};
use crate::{Error, Result};

/// A `SamplingRequest` that owns its parts. It outlives the launch, as on a device.
#[derive(Clone)]
pub(super) struct OwnRequest {
    pub(super) wanted: Wanted,
    tokens: Vec<AlteredToken>,
    penalties: Option<Penalties>,
    mask: Option<TokenMask>,
    unaltered: usize,
}

impl OwnRequest {
    pub(super) fn of(request: &SamplingRequest<'_>) -> Self {
        let tokens = request.alteration.map_or(&[][..], |alteration| alteration.tokens).to_vec();
        let penalties = request.alteration.map(|alteration| alteration.penalties);
        let (mask, unaltered) = (request.mask.cloned(), request.unaltered as usize);
        Self { wanted: request.wanted, tokens, penalties, mask, unaltered }
    }

    /// True if only the row's most likely token is requested.
    pub(super) fn is_argmax(&self) -> bool {
        self.wanted == Wanted::Argmax && self.penalties.is_none() && self.mask.is_none() && self.unaltered == 0
    }

    /// Returns the row after its alteration and under its mask.
    fn altered(&self, row: &[f32]) -> Vec<f32> {
        let mut altered = row.to_vec();
        if let Some(penalties) = self.penalties {
            Alteration { tokens: &self.tokens, penalties }.apply(&mut altered);
        }
        for (token, logit) in (0..).zip(&mut altered) {
            if self.mask.as_ref().is_some_and(|mask| !mask.allows(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        altered
    }
}

/// A row on a device, with its selection.
pub(super) struct FakeRow<'a> {
    row: &'a [f32],
    wanted: Wanted,
    altered: Best,
    /// The best tokens before the row was altered, if requested.
    unaltered: Option<Best>,
    drawn: Option<Drawn>,
}

/// The tokens of a row, best first.
pub(super) struct Best {
    pub(super) ids: Vec<u32>,
    logits: Vec<f32>,
    log_sum_exp: f32,
}

impl Best {
    /// Returns the `k` best.
    pub(super) fn new(row: &[f32], k: usize) -> Self {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
        ids.truncate(k);
        let logits = ids.iter().map(|&id| row[id as usize]).collect();
        let max = f64::from(row[ids[0] as usize]);
        let log_sum_exp = (max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()) as f32;
        Self { ids, logits, log_sum_exp }
    }

    fn top(&self) -> Selected<'_> {
        Selected::Top { ids: &self.ids, logits: &self.logits, log_sum_exp: self.log_sum_exp }
    }
}

impl<'a> FakeRow<'a> {
    pub(super) fn new(row: &'a [f32], request: &OwnRequest) -> Self {
        let (wanted, altered) = (request.wanted, request.altered(row));
        let k = if let Wanted::Top { k } = wanted { k as usize } else { 1 };
        let unaltered = (request.unaltered > 0).then(|| Best::new(row, request.unaltered));
        let drawn = if let Wanted::Draw(draw) = wanted { Some(draw.of_row(&altered)) } else { None };
        Self { row, wanted, altered: Best::new(&altered, k), unaltered, drawn }
    }
}

pub(super) struct FakeRows<'a> {
    pub(super) rows: Vec<FakeRow<'a>>,
    pub(super) script: &'a Script,
}

impl DeviceRows for FakeRows<'_> {
    fn row(&self, row: usize) -> Selected<'_> {
        let FakeRow { row, wanted, altered, drawn, .. } = &self.rows[row];
        match *wanted {
            Wanted::Argmax => {
                let (logit, log_sum_exp) = (altered.logits[0], altered.log_sum_exp);
                Selected::Argmax {
                    token: if log_sum_exp.is_nan() { NO_TOKEN } else { altered.ids[0] },
                    logit,
                    log_sum_exp,
                }
            }
            Wanted::Top { .. } => altered.top(),
            Wanted::Draw(_) => Selected::Drawn(drawn.expect("a token was drawn")),
            Wanted::Row => Selected::Row(row),
            Wanted::Hidden => Selected::Nothing,
        }
    }

    fn unaltered(&self, row: usize) -> Option<BestTokens<'_>> {
        let FakeRow { row, wanted, altered, unaltered, drawn } = &self.rows[row];
        let token = if *wanted == Wanted::Argmax { Some(altered.ids[0]) } else { drawn.map(|drawn| drawn.token.token) };
        let rank_of = |token| Best::new(row, row.len()).ids.iter().position(|&id| id == token);
        let chosen = token.and_then(|token| Some((token, rank_of(token)? as u32 + 1)));
        let chosen = chosen.map(|(token, rank)| Ranked { logit: row[token as usize], rank });
        let Best { ids, logits, log_sum_exp } = unaltered.as_ref()?;
        Some(BestTokens { ids, logits, log_sum_exp: *log_sum_exp, chosen })
    }

    fn fetch(&mut self, row: usize) -> Result<&[f32]> {
        match *self.script.fetch_fault.lock() {
            None => Ok(self.rows[row].row),
            Some(Fault::Dead) => Err(Error::EngineDead { reason: "scripted loss of the device".into() }),
            Some(fault) => Err(Error::Device { device: "fake".into(), problem: format!("scripted {fault:?}") }),
        }
    }
}
