//! Selection from a step's logits: the largest, the best few, their log-sum-exp, a random token, or the row.

use super::tally::bits;
use super::{BufferOf, Random, Tally, fill, matrix, rows_batch};
use crate::Result;
use crate::backend::{Backend, Embed, Loader, Ops};
use rocmforge_core::selection::{
    Alteration, AlteredToken, BestTokens, Cut, Draw, Drawn, FRACTION_BITS, MAX_TOP, NO_TOKEN, Penalties, Ranked,
    SamplingRequest, Selected, TokenMask, Wanted,
};

/// Vocabulary sizes: smaller and larger than a thread block reads at once, and a real one.
const COLS: [usize; 6] = [1, 3, 257, 2050, 33_000, 151_936];

/// Functions from a token's index to its logit. The path through a kernel depends on the places of the large logits.
const PATTERNS: [fn(&mut Random, usize) -> f32; 11] = [
    |random, _| 30.0 * random.value(),
    |_, i| i as f32 / 1000.0,
    |_, i| -(i as f32) / 1000.0,
    // Short ramps: the best of a thread's neighbours comes last, and its share contains several of the best.
    |_, i| (i % 8) as f32 - (i / 8 % 97) as f32 / 16.0,
    // All logits are equal, so the ids decide.
    |_, _| 1.5,
    |_, i| if i % 5 == 1 { f32::NEG_INFINITY } else { (i % 11) as f32 },
    |_, i| if i % 3 == 2 { f32::NAN } else { i as f32 },
    // More good logits in few places than a kernel can hold at once, with the best at the start or in the middle.
    |_, i| if i / 4 % 32 == 0 { -(i as f32) } else { -1e6 },
    |_, i| if i / 4 % 32 == 0 { -(i as f32 - 34_304.0).abs() } else { -1e6 },
    // The logits that decide are all at the start.
    |_, i| if i == 0 { f32::NAN } else { i as f32 },
    |_, i| if i < 100 { i as f32 } else { f32::NEG_INFINITY },
];

/// Draws from all tokens, with min-p, with top-p, among nearly equal tokens, and with top-k. They end at the first
/// token, at the last one and in between.
const DRAWS: [Draw; 8] = [
    Draw { per_logit: 1.25, min_p: 0.0, top_k: 0, top_p: 1.0, uniform: 0.37 },
    Draw { per_logit: 1.0, min_p: 0.0, top_k: 0, top_p: 0.9, uniform: 0.999 },
    Draw { per_logit: 0.5, min_p: 0.05, top_k: 0, top_p: 0.5, uniform: 0.0 },
    Draw { per_logit: 0.05, min_p: 0.0, top_k: 0, top_p: 0.95, uniform: 0.8 },
    Draw { per_logit: 0.01, min_p: 0.3, top_k: 0, top_p: 1.0, uniform: 0.6 },
    Draw { per_logit: 0.05, min_p: 0.0, top_k: 300, top_p: 1.0, uniform: 0.999 },
    Draw { per_logit: 0.01, min_p: 0.3, top_k: 1000, top_p: 0.9, uniform: 0.6 },
    Draw { per_logit: 0.01, min_p: 0.0, top_k: 30_000, top_p: 0.999, uniform: 0.9999 },
];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("argmax, top-k, penalties");
    for (seed, &cols) in tally.part(&COLS) {
        tally.begin(&format!("selection among {cols} logits"))?;
        let mut random = Random(seed as u64);
        let rows = PATTERNS.len();
        let logits: Vec<f32> =
            PATTERNS.iter().flat_map(|at| (0..cols).map(|i| at(&mut random, i)).collect::<Vec<_>>()).collect();
        let mut loader = loader(rows)?;
        let table = matrix(&mut loader, &logits, cols)?;
        let mut buffer = loader.alloc_buffer(rows, cols)?;
        let mut backend = loader.finish()?;
        fill(&mut backend, &table, rows, &mut buffer)?;
        let most = MAX_TOP.min(cols) as u32;
        let top = |k: u32| Wanted::Top { k: k.min(most) };
        let draws = DRAWS.map(Wanted::Draw);
        for pair in [
            [Wanted::Argmax, Wanted::Argmax],
            [top(1), top(3)],
            [top(2), draws[0]],
            [draws[1], top(40)],
            [Wanted::Row, top(u32::MAX)],
            [draws[2], draws[3]],
            [draws[3], draws[4]],
            [draws[5], draws[6]],
            [draws[7], draws[5]],
        ] {
            let wanted: Vec<Wanted> = (0..rows).map(|row| pair[row % 2]).collect();
            let sampling_requests: Vec<SamplingRequest<'_>> = wanted.iter().map(|&wanted| wanted.into()).collect();
            backend.select(&buffer, cols, &sampling_requests)?;
            let mut selection = backend.collect(&buffer, rows, cols)?;
            for (row, logits) in logits.chunks(cols).enumerate() {
                let what = format!("row {row} of {cols} logits, {:?}", wanted[row]);
                tally.judge(&what, 1, verdict(selection.row(row), wanted[row], logits));
                tally.same(&format!("{what}: the whole row"), selection.whole_row(row)?, logits);
            }
        }
        let pairs = [[Wanted::Argmax; 2], [top(u32::MAX), top(7)], [draws[0], draws[1]], [draws[6], top(256)]];
        // A simulator is slow, so the largest vocabulary gets only a part of the pairs.
        for pair in pairs.into_iter().skip(if cols > 100_000 { 2 } else { 0 }) {
            // The last selection has altered its rows.
            fill(&mut backend, &table, rows, &mut buffer)?;
            check_altered(&mut backend, &buffer, &logits, cols, pair, tally)?;
        }
        // Several thread blocks may share a single row.
        for (row, logits) in logits.chunks(cols).enumerate() {
            let batch = rows_batch(vec![row as u32]);
            backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
                step.embed(Embed { table: &table, scale: 1.0, out: &mut buffer })
            })?;
            backend.select(&buffer, cols, &[Wanted::Argmax.into()])?;
            let selection = backend.collect(&buffer, 1, cols)?;
            let what = format!("row {row} of {cols} logits, alone");
            tally.judge(&what, 1, verdict(selection.row(0), Wanted::Argmax, logits));
        }
    }
    Ok(())
}

/// Checks biases and penalties of the best and many other tokens, for all rows except every third; masks of most rows.
fn check_altered<B: Backend>(
    backend: &mut B,
    buffer: &B::Buffer,
    logits: &[f32],
    cols: usize,
    pair: [Wanted; 2],
    tally: &mut Tally<'_>,
) -> Result<()> {
    let rows = logits.len() / cols;
    let mut random = Random(7);
    let lists: Vec<(Vec<AlteredToken>, Penalties)> = logits
        .chunks(cols)
        .map(|logits| {
            let best = order(logits).into_iter().map(|(id, _)| id);
            let mut ids: Vec<u32> = best.take(300).chain((0..cols as u32).step_by(1 + cols / 2500)).collect();
            ids.sort_unstable();
            ids.dedup();
            // A request's list may name an id beyond the vocabulary, which alters nothing.
            ids.push(cols as u32 + 3);
            let token = |(i, id): (usize, u32)| {
                let bias = [0.0, 0.0, 3.7, -1.3, f32::NEG_INFINITY, 1e-3][i % 6] * random.value().abs();
                AlteredToken {
                    id,
                    bias: if i % 6 == 4 { f32::NEG_INFINITY } else { bias },
                    seen: (i % 5) as u32 * 3 / 2,
                }
            };
            let tokens = ids.into_iter().enumerate().map(token).collect();
            let penalties =
                Penalties { repetition: 0.6 + random.value().abs(), frequency: random.value(), presence: 0.3 };
            (tokens, penalties)
        })
        .collect();
    let masks: Vec<Option<TokenMask>> = (0..rows).map(|row| mask(row, cols)).collect();
    let most = MAX_TOP.min(cols) as u32;
    let request = |row: usize| {
        let (tokens, penalties) = &lists[row];
        let alteration = (!row.is_multiple_of(3)).then_some(Alteration { tokens, penalties: *penalties });
        let mask = masks[row].as_ref();
        let unaltered = if row.is_multiple_of(2) { most } else { 0 };
        SamplingRequest { wanted: pair[row % 2], alteration, mask, unaltered }
    };
    let asked: Vec<SamplingRequest<'_>> = (0..rows).map(request).collect();
    backend.select(buffer, cols, &asked)?;
    let mut selection = backend.collect(buffer, rows, cols)?;
    for (row, own) in logits.chunks(cols).enumerate() {
        let SamplingRequest { wanted, alteration, .. } = asked[row];
        let what = format!("altered row {row} of {cols} logits, {wanted:?}");
        if let Some(unaltered) = selection.unaltered(row) {
            let BestTokens { ids, logits, log_sum_exp, chosen } = unaltered;
            let top = Selected::Top { ids, logits, log_sum_exp };
            tally.judge(&what, 1, verdict(top, Wanted::Top { k: most }, own));
            tally.judge(&what, 1, verdict_of_rank(selection.row(row), chosen, own));
        }
        match selection.row(row) {
            Selected::Row(whole) => tally.same(&format!("{what}: the model's own row"), whole, own),
            selected => {
                let (tokens, penalties) = &lists[row];
                let tokens = if alteration.is_some() { &tokens[..] } else { &[] };
                let mut expected = altered(own, tokens, penalties);
                for (token, logit) in expected.iter_mut().enumerate().filter(|(_, logit)| !logit.is_nan()) {
                    *logit = if is_allowed(row, token, cols) { *logit } else { f32::NEG_INFINITY };
                }
                tally.judge(&what, 1, verdict(selected, wanted, &expected));
                if selection.unaltered(row).is_some() != row.is_multiple_of(2) {
                    tally.judge(&what, 1, Err("what was not asked for, or not what was".to_owned()));
                }
            }
        }
        tally.same(&format!("{what}: the whole row"), selection.whole_row(row)?, own);
    }
    Ok(())
}

/// True if a row's mask allows a token. Every fourth row has no mask. The other masks allow about half of the tokens,
/// three tokens, or nearly all.
fn is_allowed(row: usize, token: usize, cols: usize) -> bool {
    match row % 4 {
        0 => true,
        1 => token == 0 || (token.wrapping_mul(2_654_435_761) >> 7).is_multiple_of(2),
        2 => [0, cols / 2, cols - 1].contains(&token),
        _ => token % 1000 != 500,
    }
}

/// Returns a row's mask. One kind ends with its last allowed token, another is longer than the row.
fn mask(row: usize, cols: usize) -> Option<TokenMask> {
    let mut words = vec![0u32; cols.div_ceil(32) + if row.is_multiple_of(2) { 0 } else { 3 }];
    let allowed = (0..cols).filter(|&token| is_allowed(row, token, cols));
    allowed.for_each(|token| words[token / 32] |= 1 << (token % 32));
    if row % 4 == 1 {
        // Tokens after the last word are not allowed.
        let last = (0..cols).rfind(|&token| is_allowed(row, token, cols));
        words.truncate(last.map_or(1, |token| token / 32 + 1));
    }
    (!row.is_multiple_of(4)).then(|| TokenMask::from_words(words))
}

/// Returns the row with bias and penalties. Operations are computed in f64 and rounded, which for these four equals
/// rounding in f32.
fn altered(row: &[f32], tokens: &[AlteredToken], penalties: &Penalties) -> Vec<f32> {
    let mut out = row.to_vec();
    let of = |x: f32| f64::from(x);
    for token in tokens.iter().filter(|token| (token.id as usize) < row.len()) {
        let mut x = row[token.id as usize];
        if x.is_nan() {
            continue;
        }
        x = (of(x) + of(token.bias)) as f32;
        if token.bias == f32::NEG_INFINITY {
            x = f32::NEG_INFINITY;
        }
        if let Some(generated) = token.seen.checked_sub(1) {
            let factor = of(penalties.repetition);
            x = if x > 0.0 { of(x) / factor } else { of(x) * factor } as f32;
            let frequent = (of(penalties.frequency) * f64::from(generated)) as f32;
            x = (of(x) - of(frequent)) as f32;
            x = if generated > 0 { of(x) - of(penalties.presence) } else { of(x) } as f32;
        }
        out[token.id as usize] = x;
    }
    out
}

/// A row on a backend; several thread blocks search for its largest logit.
pub(super) struct RowRig<L: Loader> {
    backend: L::Backend,
    buffer: BufferOf<L>,
    logits: Vec<f32>,
}

impl<L: Loader> RowRig<L> {
    pub(super) fn new(mut loader: L, logits: Vec<f32>) -> Result<Self> {
        let table = matrix(&mut loader, &logits, logits.len())?;
        let mut buffer = loader.alloc_buffer(1, logits.len())?;
        let mut backend = loader.finish()?;
        fill(&mut backend, &table, 1, &mut buffer)?;
        Ok(Self { backend, buffer, logits })
    }

    /// Returns `bits` after a comparison of the largest logit with the expected one.
    pub(super) fn run(&mut self, what: &str, tally: &mut Tally<'_>) -> Result<Vec<f32>> {
        self.backend.select(&self.buffer, self.logits.len(), &[Wanted::Argmax.into()])?;
        {
            let selection = self.backend.collect(&self.buffer, 1, self.logits.len())?;
            tally.judge(what, 1, verdict(selection.row(0), Wanted::Argmax, &self.logits));
        }
        self.bits()
    }

    /// Returns token, logit and the logarithm of the sum, or the row if the backend returns that.
    pub(super) fn bits(&mut self) -> Result<Vec<f32>> {
        self.backend.select(&self.buffer, self.logits.len(), &[Wanted::Argmax.into()])?;
        let selection = self.backend.collect(&self.buffer, 1, self.logits.len())?;
        Ok(match selection.row(0) {
            Selected::Argmax { token, logit, log_sum_exp } => vec![f32::from_bits(token), logit, log_sum_exp],
            Selected::Top { logits, .. } => logits.to_vec(),
            Selected::Row(row) => row.to_vec(),
            Selected::Drawn(_) | Selected::Nothing => Vec::new(),
        })
    }
}

/// Returns the error of a selection relative to the tolerance, or a description of the fault.
fn verdict(got: Selected<'_>, wanted: Wanted, logits: &[f32]) -> std::result::Result<f64, String> {
    let broken = logits.iter().any(|x| x.is_nan());
    let log_of = |got: f32, expected: f64| match broken {
        true if got.is_nan() => Ok(0.0),
        true => Err(format!("the logarithm of a sum with NaN is {got}")),
        false => match (f64::from(got) - expected).abs() / (1e-5 * expected.abs().max(1.0)) {
            share if share <= 1.0 => Ok(share),
            _ => Err(format!("the logarithm of a sum is {got}, not {expected}")),
        },
    };
    match (got, wanted) {
        // Any backend may return the whole row.
        (Selected::Row(row), _) => match row.iter().map(|&x| bits(x)).eq(logits.iter().map(|&x| bits(x))) {
            true => Ok(0.0),
            false => Err("the row is another".to_owned()),
        },
        (Selected::Argmax { token, .. }, Wanted::Argmax) if broken => match token {
            NO_TOKEN => Ok(0.0),
            _ => Err(format!("token {token} is the largest of a row with NaN")),
        },
        (Selected::Argmax { token, logit, log_sum_exp }, Wanted::Argmax) => {
            let (best, _) = order(logits)[0];
            if (token, logit) != (best, logits[best as usize]) {
                return Err(format!("token {token} of {logit}, not {best} of {}", logits[best as usize]));
            }
            log_of(log_sum_exp, f64::from(logit) + log_total(logits))
        }
        (Selected::Top { log_sum_exp, .. }, Wanted::Top { .. }) if broken => log_of(log_sum_exp, 0.0),
        (Selected::Top { ids, logits: values, log_sum_exp }, Wanted::Top { k }) => {
            let expected = order(logits);
            if !ids.iter().copied().zip(values.iter().copied()).eq(expected[..k as usize].iter().copied()) {
                return Err(format!("not the best {k} in their order"));
            }
            log_of(log_sum_exp, f64::from(expected[0].1) + log_total(logits))
        }
        (Selected::Drawn(got), Wanted::Draw(draw)) => verdict_of_draw(got, draw, logits),
        (got, _) => Err(format!("{got:?}, which was not asked for")),
    }
}

/// Returns tokens with their logits in descending order; equal logits are in the order of their ids.
fn order(logits: &[f32]) -> Vec<(u32, f32)> {
    let mut all: Vec<_> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

/// Returns the logarithm of the sum of all `exp(logit - largest)`.
fn log_total(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// Judges the rank of the chosen token in the model's original row.
fn verdict_of_rank(got: Selected<'_>, chosen: Option<Ranked>, own: &[f32]) -> std::result::Result<f64, String> {
    let token = match got {
        Selected::Argmax { token, .. } => token,
        Selected::Drawn(drawn) => drawn.token.token,
        Selected::Top { .. } | Selected::Row(_) | Selected::Nothing => NO_TOKEN,
    };
    let place = || order(own).iter().position(|&(id, _)| id == token);
    let expected = match own.get(token as usize) {
        Some(&logit) if !own.iter().any(|x| x.is_nan()) => {
            place().map(|place| Ranked { logit, rank: place as u32 + 1 })
        }
        _ => return Ok(0.0),
    };
    if chosen == expected { Ok(0.0) } else { Err(format!("{chosen:?}, not {expected:?}")) }
}

/// Judges a draw. The device adds fixed-point weights, so its sums must be exact, and close to those of f64 weights. It
/// may give up if very many tokens are as good as the one that it searches for.
fn verdict_of_draw(got: Drawn, draw: Draw, logits: &[f32]) -> std::result::Result<f64, String> {
    let expected = draw.of_row(logits);
    if bits(got.largest) != bits(expected.largest) {
        return Err(format!("the largest logit is {}, not {}", got.largest, expected.largest));
    }
    if !got.largest.is_finite() {
        return Ok(0.0);
    }
    let finite = || logits.iter().copied().filter(|logit| logit.is_finite());
    let near = (got.largest - finite().fold(f32::INFINITY, f32::min)) / 1024.0;
    let is_crowded = |at: f32| finite().filter(|logit| (logit - at).abs() <= near).count() > 1024;
    let kept = order(logits).into_iter().map(|(_, logit)| logit).take(match draw.top_k {
        0 => usize::MAX,
        top_k => top_k as usize,
    });
    if got.total == 0 && draw.top_k > 0 && kept.clone().next_back().is_some_and(is_crowded) {
        return Ok(0.0);
    }
    let is_right = |got: Cut, expected: Cut| got == expected || (got == Cut::NONE && is_crowded(expected.logit));
    let gave_up = got.last_kept != expected.last_kept && got.token == Cut::NONE;
    let is_token_right = gave_up || is_right(got.token, expected.token);
    if got.total != expected.total || !is_right(got.last_kept, expected.last_kept) || !is_token_right {
        return Err(format!("{got:?}, not {expected:?}"));
    }
    let weights = kept.map(|x| (f64::from(x - got.largest) * f64::from(draw.per_logit)).exp());
    let total: f64 = weights.filter(|&weight| weight >= f64::from(draw.min_p)).sum();
    let share = (got.total as f64 / (1u64 << FRACTION_BITS) as f64 / total - 1.0).abs() / 1e-5;
    if share <= 1.0 { Ok(share) } else { Err(format!("the sum of all weights is {}, not {total}", got.total)) }
}
