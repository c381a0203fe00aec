//! What a step brings back of its logits: the largest, the best few, their log-sum-exp, or the row.

use super::{Random, fill, matrix, rows_batch};
use crate::backend::{Backend, Loader};
use crate::selection::{Alteration, AlteredToken, MAX_TOP, NO_TOKEN, Penalties, Selected, Wanted, Wish};

/// Vocabularies: smaller and larger than what a block of threads reads at a time, and a real one.
const COLS: [usize; 6] = [1, 3, 257, 2050, 33_000, 151_936];

/// How logits lie in a row; where the large ones are decides which way a kernel takes.
const PATTERNS: [fn(&mut Random, usize) -> f32; 11] = [
    |random, _| 30.0 * random.value(),
    |_, i| i as f32 / 1000.0,
    |_, i| -(i as f32) / 1000.0,
    // Short ramps: the best of a thread's neighbours comes last, and its share holds several of the best.
    |_, i| (i % 8) as f32 - (i / 8 % 97) as f32 / 16.0,
    // All alike: the ids decide.
    |_, _| 1.5,
    |_, i| if i % 5 == 1 { f32::NEG_INFINITY } else { (i % 11) as f32 },
    |_, i| if i % 3 == 2 { f32::NAN } else { i as f32 },
    // More good ones in few places than can be held at once: the best of them at the start, or in the middle.
    |_, i| if i / 4 % 32 == 0 { -(i as f32) } else { -1e6 },
    |_, i| if i / 4 % 32 == 0 { -(i as f32 - 34_304.0).abs() } else { -1e6 },
    // What decides is all at the start.
    |_, i| if i == 0 { f32::NAN } else { i as f32 },
    |_, i| if i < 100 { i as f32 } else { f32::NEG_INFINITY },
];

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> L) {
    for (seed, cols) in COLS.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let rows = PATTERNS.len();
        let logits: Vec<f32> =
            PATTERNS.iter().flat_map(|at| (0..cols).map(|i| at(&mut random, i)).collect::<Vec<_>>()).collect();
        let mut loader = loader(rows);
        let table = matrix(&mut loader, &logits, cols);
        let mut buffer = loader.alloc_buffer(rows, cols).unwrap();
        let mut backend = loader.finish().unwrap();
        fill(&mut backend, &table, rows, &mut buffer);
        let most = MAX_TOP.min(cols) as u32;
        let top = |k: u32, temperature| Wanted::Top { k: k.min(most), temperature };
        for wishes in [
            [Wanted::Argmax, Wanted::Argmax],
            [top(1, 1.0), top(3, 0.5)],
            [top(2, 2.0), Wanted::Argmax],
            [top(40, 0.7), top(40, 1.0)],
            [Wanted::Row, top(u32::MAX, 1.0)],
        ] {
            let wanted: Vec<Wanted> = (0..rows).map(|row| wishes[row % 2]).collect();
            let wishes: Vec<Wish<'_>> = wanted.iter().map(|&wanted| wanted.into()).collect();
            backend.begin_select(&buffer, cols, &wishes).unwrap();
            let mut selection = backend.select(&buffer, rows, cols).unwrap();
            for (row, logits) in logits.chunks(cols).enumerate() {
                let what = format!("row {row} of {cols} logits, {:?}", wanted[row]);
                compare(&what, selection.row(row), wanted[row], logits);
                assert_eq!(bits(selection.whole_row(row).unwrap()), bits(logits), "{what}: the whole row");
            }
        }
        let wishes = [[Wanted::Argmax; 2], [top(u32::MAX, 0.8), top(7, 1.0)], [Wanted::Argmax, top(256, 1.5)]];
        // The simulator is slow: of the largest vocabulary a mixture is enough.
        for wishes in wishes.into_iter().skip(if cols > 100_000 { 2 } else { 0 }) {
            // The last selection has left its rows altered.
            fill(&mut backend, &table, rows, &mut buffer);
            check_altered(&mut backend, &buffer, &logits, cols, wishes);
        }
        // A row alone may be dealt to several blocks of threads.
        for (row, logits) in logits.chunks(cols).enumerate() {
            let batch = rows_batch(vec![row as u32]);
            backend.begin_step(&batch).unwrap();
            backend.embed(&table, &batch, 1.0, &mut buffer).unwrap();
            backend.begin_select(&buffer, cols, &[Wanted::Argmax.into()]).unwrap();
            let selection = backend.select(&buffer, 1, cols).unwrap();
            compare(&format!("row {row} of {cols} logits, alone"), selection.row(0), Wanted::Argmax, logits);
        }
    }
}

/// Bias, masks and penalties of the best tokens of every row but each third, and of many others.
fn check_altered<B: Backend>(backend: &mut B, buffer: &B::Buffer, logits: &[f32], cols: usize, wishes: [Wanted; 2]) {
    let rows = logits.len() / cols;
    let mut random = Random(7);
    let lists: Vec<(Vec<AlteredToken>, Penalties)> = logits
        .chunks(cols)
        .map(|logits| {
            let best = order(logits).into_iter().map(|(id, _)| id);
            let mut ids: Vec<u32> = best.take(300).chain((0..cols as u32).step_by(1 + cols / 2500)).collect();
            ids.sort_unstable();
            ids.dedup();
            // As a request's list may name them: beyond the vocabulary there is nothing to alter.
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
    let most = MAX_TOP.min(cols) as u32;
    let wish = |row: usize| {
        let (tokens, penalties) = &lists[row];
        let alteration =
            Alteration { tokens, penalties: *penalties, unaltered: if row.is_multiple_of(2) { most } else { 0 } };
        Wish { wanted: wishes[row % 2], alteration: (!row.is_multiple_of(3)).then_some(alteration) }
    };
    let asked: Vec<Wish<'_>> = (0..rows).map(wish).collect();
    backend.begin_select(buffer, cols, &asked).unwrap();
    let mut selection = backend.select(buffer, rows, cols).unwrap();
    for (row, own) in logits.chunks(cols).enumerate() {
        let Wish { wanted, alteration } = asked[row];
        let what = format!("altered row {row} of {cols} logits, {wanted:?}");
        if let Some(unaltered) = selection.unaltered(row) {
            let temperature = if let Wanted::Top { temperature, .. } = wanted { temperature } else { 1.0 };
            compare(&what, unaltered, Wanted::Top { k: most, temperature }, own);
        }
        match (selection.row(row), alteration) {
            (Selected::Row(whole), _) => assert_eq!(bits(whole), bits(own), "{what}: the model's own row"),
            (selected, Some(_)) => {
                let (tokens, penalties) = &lists[row];
                compare(&what, selected, wanted, &altered(own, tokens, penalties));
                assert_eq!(selection.unaltered(row).is_some(), row.is_multiple_of(2), "{what}");
            }
            (selected, None) => compare(&what, selected, wanted, own),
        }
        assert_eq!(bits(selection.whole_row(row).unwrap()), bits(own), "{what}: the whole row");
    }
}

/// The row with bias, masks and penalties. Every operation in double precision and then rounded: for these four that is
/// how a single-precision one rounds.
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

/// A row that several blocks of threads may share.
pub(crate) fn check_split<L: Loader>(loader: impl Fn(usize) -> L) {
    let mut loader = loader(1);
    let logits = Random(1).values(33_000);
    let table = matrix(&mut loader, &logits, logits.len());
    let mut buffer = loader.alloc_buffer(1, logits.len()).unwrap();
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, 1, &mut buffer);
    backend.begin_select(&buffer, logits.len(), &[Wanted::Argmax.into()]).unwrap();
    let selection = backend.select(&buffer, 1, logits.len()).unwrap();
    compare("a row of several blocks", selection.row(0), Wanted::Argmax, &logits);
}

/// A NaN counts as such, whatever its bits: arithmetic may give another than it got.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }.to_bits()).collect()
}

fn compare(what: &str, got: Selected<'_>, wanted: Wanted, logits: &[f32]) {
    let broken = logits.iter().any(|x| x.is_nan());
    let log_of = |got: f32, expected: f64| match broken {
        true => assert!(got.is_nan(), "{what}: the logarithm of a sum with NaN is {got}"),
        false => {
            assert!((f64::from(got) - expected).abs() < 1e-5 * expected.abs().max(1.0), "{what}: {got}, {expected}")
        }
    };
    match (got, wanted) {
        // Any backend may give the whole row.
        (Selected::Row(row), _) => assert_eq!(bits(row), bits(logits), "{what}"),
        (Selected::Argmax { token, .. }, Wanted::Argmax) if broken => assert_eq!(token, NO_TOKEN, "{what}"),
        (Selected::Argmax { token, logit, log_sum_exp }, Wanted::Argmax) => {
            let (best, _) = order(logits)[0];
            assert_eq!((token, logit), (best, logits[best as usize]), "{what}");
            log_of(log_sum_exp, f64::from(logit) + log_total(logits, 1.0));
        }
        (Selected::Top { log_sum_exp, log_total: total, .. }, Wanted::Top { .. }) if broken => {
            assert!(log_sum_exp.is_nan() && total.is_nan(), "{what}: {log_sum_exp}, {total}");
        }
        (Selected::Top { ids, logits: values, log_sum_exp, log_total: total }, Wanted::Top { k, temperature }) => {
            let got: Vec<_> = ids.iter().copied().zip(values.iter().copied()).collect();
            let expected = order(logits);
            assert_eq!(got, expected[..k as usize], "{what}");
            log_of(log_sum_exp, f64::from(expected[0].1) + log_total(logits, 1.0));
            log_of(total, log_total(logits, temperature));
        }
        (got, _) => panic!("{what}: {got:?}"),
    }
}

/// Tokens with their logits: descending, and the ids of equal ones ascending.
fn order(logits: &[f32]) -> Vec<(u32, f32)> {
    let mut all: Vec<_> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

/// Logarithm of the sum of all `exp((logit - largest) / temperature)`.
fn log_total(logits: &[f32], temperature: f32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits.iter().map(|&x| ((f64::from(x) - largest) / f64::from(temperature)).exp()).sum::<f64>().ln()
}
