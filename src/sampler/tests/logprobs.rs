use super::{LARGE_VOCAB, logits};
use crate::Sampler;

/// The slow way: float64 and a full sort.
fn reference(row: &[f32]) -> (Vec<f64>, Vec<usize>) {
    let max = row.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(f64::from(x)));
    let total: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    (row.iter().map(|&x| f64::from(x) - max - total.ln()).collect(), order)
}

#[test]
fn logprobs_and_ranks_equal_the_reference() {
    for (vocab_size, top) in [(50, 0), (50, 5), (3, 20), (LARGE_VOCAB, 20)] {
        let row = logits(vocab_size, 21);
        let (logprob, order) = reference(&row);
        for place in [0, 1, 2, vocab_size / 2, vocab_size - 1] {
            let token = order[place.min(vocab_size - 1)];
            let got = Sampler::new(vocab_size).logprobs(&row, token as u32, top).unwrap();
            assert_eq!(got.len(), 1 + top.min(vocab_size));
            assert_eq!(got[0].token_id as usize, token);
            assert_eq!(order[got[0].rank as usize - 1], token);
            for (i, entry) in got[1..].iter().enumerate() {
                assert_eq!(entry.token_id as usize, order[i]);
                assert_eq!(entry.rank as usize, i + 1);
            }
            for entry in &got {
                let expected = logprob[entry.token_id as usize];
                assert!((f64::from(entry.logprob) - expected).abs() <= 1e-6 * expected.abs().max(1.0));
            }
        }
    }
}

#[test]
fn a_certain_token_has_logprob_zero() {
    let mut row = vec![f32::NEG_INFINITY; 10];
    row[4] = 3.0;
    let got = Sampler::new(10).logprobs(&row, 4, 1).unwrap();
    assert_eq!((got[0].logprob, got[0].rank, got[1].token_id), (0.0, 1, 4));
    assert_eq!(Sampler::new(10).logprobs(&row, 5, 0).unwrap()[0].logprob, f32::NEG_INFINITY);
}

#[test]
fn a_token_outside_the_vocabulary_is_an_error() {
    assert!(Sampler::new(10).logprobs(&[0.0; 10], 10, 1).is_err());
}
