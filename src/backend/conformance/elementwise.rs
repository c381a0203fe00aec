//! Norms, gated activation, gather, embedding scale, angles.

use super::{Random, assert_close, fill, matrix, rows_batch, vector};
use crate::backend::{Activation, Backend, Loader, RopeKind, RopeSpec};
use crate::batch::Batch;

/// `(rows, cols)`; rows of 5001 and 12,301 are longer than what a block of threads holds at once.
const SHAPES: [(usize, usize); 11] =
    [(1, 1), (3, 1), (1, 3), (5, 17), (7, 63), (2, 127), (67, 80), (1, 576), (130, 1000), (2, 5001), (1, 12_301)];

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> L) {
    for (seed, (rows, cols)) in SHAPES.into_iter().enumerate() {
        norms(loader(rows), rows, cols, seed as u64);
        gated(loader(rows), rows, cols, seed as u64);
        gather(loader(rows), rows, cols, seed as u64);
    }
    angles(loader(8));
}

fn rms_norm_reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / row.len() as f64;
            let rms = (mean + f64::from(eps)).sqrt();
            row.iter().zip(weight).map(move |(&x, &w)| f64::from(x) / rms * f64::from(w))
        })
        .collect()
}

fn norms<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64) {
    let mut random = Random(seed);
    let (x, w) = (random.values(rows * cols), random.values(cols));
    let eps = 1e-5;
    let table = matrix(&mut loader, &x, cols);
    let weight = vector(&mut loader, &w);
    let [mut input, mut out] = [(); 2].map(|()| loader.alloc_buffer(rows, cols).unwrap());
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, rows, &mut input);
    let what = format!("rms_norm of {rows} rows of {cols}");

    backend.rms_norm(&input, &weight, eps, rows, &mut out).unwrap();
    let expected = rms_norm_reference(&x, &w, eps);
    assert_close(&what, backend.to_host(&out, rows, cols).unwrap(), &expected, 1e-6, 1e-30);
}

fn gated<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64) {
    let x: Vec<f32> = Random(seed).values(rows * 2 * cols).iter().map(|x| 20.0 * x).collect();
    let table = matrix(&mut loader, &x, 2 * cols);
    let mut input = loader.alloc_buffer(rows, 2 * cols).unwrap();
    let mut out = loader.alloc_buffer(rows, cols).unwrap();
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, rows, &mut input);
    backend.gated_activation(&input, Activation::Silu, rows, cols, &mut out).unwrap();
    let expected: Vec<f64> = x
        .chunks(2 * cols)
        .flat_map(|row| {
            let (gate, up) = row.split_at(cols);
            gate.iter().zip(up).map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u))
        })
        .collect();
    let what = format!("gated activation of {rows} rows of {cols}");
    assert_close(&what, backend.to_host(&out, rows, cols).unwrap(), &expected, 1e-6, 1e-30);
}

fn gather<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64) {
    let mut random = Random(seed);
    let x = random.values(rows * cols);
    let indices: Vec<u32> = (0..rows).map(|_| (random.next() % rows as u64) as u32).collect();
    let batch = Batch { logits_indices: indices.clone(), ..rows_batch(indices.clone()) };
    let table = matrix(&mut loader, &x, cols);
    let [mut input, mut out] = [(); 2].map(|()| loader.alloc_buffer(rows, cols).unwrap());
    let mut backend = loader.finish().unwrap();
    let expected = |scale: f32| -> Vec<f32> {
        indices.iter().flat_map(|&i| x[i as usize * cols..][..cols].iter().map(move |x| x * scale)).collect()
    };

    fill(&mut backend, &table, rows, &mut input);
    backend.begin_step(&batch).unwrap();
    backend.gather_rows(&input, &batch, cols, &mut out).unwrap();
    assert_eq!(backend.to_host(&out, rows, cols).unwrap(), expected(1.0), "gather {rows} rows of {cols}");

    backend.embed(&table, &batch, 3.5, &mut out).unwrap();
    assert_eq!(backend.to_host(&out, rows, cols).unwrap(), expected(3.5), "embed {rows} rows of {cols}");
    let unknown = rows_batch(vec![rows as u32]);
    backend.begin_step(&unknown).unwrap();
    assert!(backend.embed(&table, &unknown, 1.0, &mut out).is_err());
}

/// The angle is f32 (position times frequency, rounded), its cos and sin are right to the last place.
fn angles<L: Loader>(mut loader: L) {
    let positions = [0, 1, 2, 17, 4095, 131_071];
    let inv_freq: Vec<f32> = (0..5).map(|i| 10_000f32.powf(-(i as f32) / 5.0)).collect();
    let spec = RopeSpec { kind: RopeKind::Norm, inv_freq: inv_freq.clone(), magnitude: 1.25 };
    let mut out = loader.alloc_buffer(positions.len(), 2 * inv_freq.len()).unwrap();
    let mut backend = loader.finish().unwrap();
    let batch = Batch { positions: positions.to_vec(), context_lens: vec![131_072], ..rows_batch(vec![0; 6]) };
    backend.begin_step(&batch).unwrap();
    backend.rope_angles(&spec, &batch, &mut out).unwrap();
    let mut expected = Vec::new();
    for position in positions {
        let angles: Vec<f64> = inv_freq.iter().map(|f| f64::from(position as f32 * f)).collect();
        expected.extend(angles.iter().map(|a| a.cos() * 1.25));
        expected.extend(angles.iter().map(|a| a.sin() * 1.25));
    }
    let got = backend.to_host(&out, positions.len(), 2 * inv_freq.len()).unwrap();
    assert_close("angles", got, &expected, 2e-7, 1e-30);
}
