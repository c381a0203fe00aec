//! What a step brings back of its logits: the largest, the best few, their log-sum-exp, or the row.

use super::{Random, fill, matrix, rows_batch};
use crate::backend::{Backend, Loader};
use crate::selection::{MAX_TOP, NO_TOKEN, Selected, Wanted};

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
            backend.begin_select(&buffer, cols, &wanted).unwrap();
            let mut selection = backend.select(&buffer, rows, cols).unwrap();
            for (row, logits) in logits.chunks(cols).enumerate() {
                let what = format!("row {row} of {cols} logits, {:?}", wanted[row]);
                compare(&what, selection.row(row), wanted[row], logits);
                assert_eq!(bits(selection.whole_row(row).unwrap()), bits(logits), "{what}: the whole row");
            }
        }
        // A row alone may be dealt to several blocks of threads.
        for (row, logits) in logits.chunks(cols).enumerate() {
            let batch = rows_batch(vec![row as u32]);
            backend.begin_step(&batch).unwrap();
            backend.embed(&table, &batch, 1.0, &mut buffer).unwrap();
            backend.begin_select(&buffer, cols, &[Wanted::Argmax]).unwrap();
            let selection = backend.select(&buffer, 1, cols).unwrap();
            compare(&format!("row {row} of {cols} logits, alone"), selection.row(0), Wanted::Argmax, logits);
        }
    }
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
