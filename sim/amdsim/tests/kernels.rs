//! Whole kernels against references in f64, on every target and in both orders of execution.
#![allow(clippy::unwrap_used)]

mod common;

use amdsim::{CodeObject, Order};
use common::{Arena, Args, Case, Random, everywhere, relative_error, to_halves};

fn case<'a>(object: &'a CodeObject, kernel: &'a str, grid: [u32; 3], args: Args, order: Order) -> Case<'a> {
    Case { object, kernel, grid, block: 256, args, order }
}

#[test]
fn rmsnorm() {
    let mut random = Random(1);
    // An odd length: the last iteration of the loop has idle lanes.
    let (rows, n, eps) = (3, 517, 1e-5f32);
    let (x, w) = (random.floats(rows * n), random.floats(n));
    let norm = |row: &[f32]| (row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64 + 1e-5).sqrt();
    let normalise = |row: &[f32]| -> Vec<f64> {
        let norm = norm(row);
        row.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w) / norm).collect()
    };
    let reference: Vec<f64> = x.chunks(n).flat_map(normalise).collect();
    everywhere("rows", |object, order| {
        let mut memory = Arena::default();
        let y = memory.zeros::<f32>(x.len());
        let args = Args::default().with(y).with(memory.upload(&x)).with(memory.upload(&w)).with(n as i32).with(eps);
        case(object, "rmsnorm", [rows as u32, 1, 1], args, order).run(&mut memory).unwrap();
        let error = relative_error(&memory.download::<f32>(y), &reference);
        assert!(error < 1e-6, "{}: {error}", object.target());
    });
}

/// A block of 32 int8 values in the kernels' layout: scale, scale times sum, values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Q8 {
    d: f32,
    q: [i8; 32],
}

impl Q8 {
    const WORDS: usize = 10;

    fn quantize(values: &[f32]) -> Self {
        let d = values.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 127.0;
        let q = |value: &f32| if d > 0.0 { (value / d).round_ties_even() as i8 } else { 0 };
        Self { d, q: std::array::from_fn(|i| q(&values[i])) }
    }

    fn sum(&self) -> i32 {
        self.q.iter().map(|q| i32::from(*q)).sum()
    }

    fn words(&self) -> Vec<u32> {
        let head = [self.d.to_bits(), (self.d * self.sum() as f32).to_bits()];
        let pack = |bytes: &[i8]| u32::from_le_bytes(std::array::from_fn(|i| bytes[i] as u8));
        head.into_iter().chain(self.q.chunks(4).map(pack)).collect()
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.q.map(|q| f64::from(self.d) * f64::from(q)).into_iter()
    }
}

#[test]
fn quantize() {
    let mut x = Random(2).floats(1024 + 64);
    x[..32].fill(0.0);
    let expected: Vec<u32> = x.chunks(32).flat_map(|block| Q8::quantize(block).words()).collect();
    everywhere("rows", |object, order| {
        let mut memory = Arena::default();
        let out = memory.zeros::<u32>(expected.len());
        let args = Args::default().with(out).with(memory.upload(&x)).with(x.len() as i32);
        case(object, "quantize", [x.len().div_ceil(256) as u32, 1, 1], args, order).run(&mut memory).unwrap();
        // Division and rounding are exact, so every bit is known.
        assert_eq!(memory.download::<u32>(out), expected, "{}", object.target());
    });
}

#[test]
fn argmax() {
    let mut x = Random(3).floats(3001);
    x[2999] = 7.0;
    x[3000] = 7.0;
    everywhere("rows", |object, order| {
        let mut memory = Arena::default();
        let best = memory.zeros::<u64>(1);
        let args = Args::default().with(best).with(memory.upload(&x)).with(x.len() as i32);
        case(object, "argmax", [4, 1, 1], args, order).run(&mut memory).unwrap();
        assert_eq!(!memory.download::<u64>(best)[0] as u32, 2999, "{}", object.target());
    });
}

#[test]
fn silu_mul() {
    let mut random = Random(4);
    let g: Vec<f32> = random.floats(1001).iter().map(|value| 12.0 * value).collect();
    let u = random.floats(1001);
    let silu = |g: f32| f64::from(g) / (1.0 + (-f64::from(g)).exp());
    let reference: Vec<f64> = g.iter().zip(&u).map(|(g, u)| silu(*g) * f64::from(*u)).collect();
    everywhere("rows", |object, order| {
        let mut memory = Arena::default();
        let y = memory.zeros::<f32>(1001);
        let args = Args::default().with(y).with(memory.upload(&g)).with(memory.upload(&u)).with(1001i32);
        case(object, "silu_mul", [4, 1, 1], args, order).run(&mut memory).unwrap();
        let error = relative_error(&memory.download::<f32>(y), &reference);
        assert!(error < 1e-6, "{}: {error}", object.target());
    });
}

fn check_gemv(kernel: &str, rows: usize, weights: &[u8], values: &[f64], seed: u64) {
    let cols = values.len() / rows;
    let x = Random(seed).floats(cols);
    let blocks: Vec<Q8> = x.chunks(32).map(Q8::quantize).collect();
    let words: Vec<u32> = blocks.iter().flat_map(Q8::words).collect();
    assert_eq!(words.len(), blocks.len() * Q8::WORDS);
    let x: Vec<f64> = blocks.iter().flat_map(Q8::values).collect();
    let dot = |row: &[f64]| row.iter().zip(&x).map(|(w, x)| w * x).sum();
    let reference: Vec<f64> = values.chunks(cols).map(dot).collect();
    everywhere("gemv", |object, order| {
        let mut memory = Arena::default();
        let y = memory.zeros::<f32>(rows);
        let args = Args::default().with(y).with(memory.upload(weights)).with(memory.upload(&words));
        let args = args.with(rows as i32).with(cols as i32);
        let per_workgroup = 256 / object.wavefront_size();
        case(object, kernel, [(rows as u32).div_ceil(per_workgroup), 1, 1], args, order).run(&mut memory).unwrap();
        let error = relative_error(&memory.download::<f32>(y), &reference);
        assert!(error < 1e-5, "{} {kernel}: {error}", object.target());
    });
}

fn half_bytes(value: f32) -> ([u8; 2], f64) {
    let half = half::f16::from_f32(value);
    (half.to_le_bytes(), half.to_f64())
}

#[test]
fn gemv_q4_0() {
    let (mut random, rows, cols) = (Random(5), 13, 1056);
    let (mut weights, mut values) = (Vec::new(), Vec::new());
    for _ in 0..rows * cols / 32 {
        let (bytes, d) = half_bytes(random.float() * 0.1);
        let q: [u8; 16] = std::array::from_fn(|_| random.bits() as u8);
        weights.extend(bytes.iter().chain(&q));
        let value = |q: u8| d * (f64::from(q) - 8.0);
        values.extend(q.iter().map(|q| value(q & 15)).chain(q.iter().map(|q| value(q >> 4))));
    }
    check_gemv("gemv_q4_0", rows, &weights, &values, 50);
}

#[test]
fn gemv_q4_k() {
    let (mut random, rows, cols) = (Random(6), 9, 2304);
    let (mut weights, mut values) = (Vec::new(), Vec::new());
    for _ in 0..rows * cols / 256 {
        let (scale, d) = half_bytes(random.float() * 0.01);
        let (minimum, m) = half_bytes(random.float() * 0.01);
        let sc: [u8; 12] = std::array::from_fn(|_| random.bits() as u8);
        let q: [u8; 128] = std::array::from_fn(|_| random.bits() as u8);
        weights.extend(scale.iter().chain(&minimum).chain(&sc).chain(&q));
        for i in 0..8 {
            let (s6, m6) = match i {
                0..4 => (sc[i] & 63, sc[i + 4] & 63),
                _ => (sc[i + 4] & 15 | (sc[i - 4] >> 6) << 4, sc[i + 4] >> 4 | (sc[i] >> 6) << 4),
            };
            let value = |q: u8| d * f64::from(s6) * f64::from(q) - m * f64::from(m6);
            values.extend(q[i / 2 * 32..][..32].iter().map(|q| value(q >> (4 * (i & 1)) & 15)));
        }
    }
    check_gemv("gemv_q4_k", rows, &weights, &values, 60);
}

#[test]
fn attention() {
    const HD: usize = 128;
    const PAGE: usize = 16;
    let (heads, kv_heads, pages, lens) = (4, 2, 8, [37i32, 70]);
    let mut random = Random(7);
    let q = random.floats(lens.len() * heads * HD);
    let cache = random.floats(2 * lens.len() * pages * kv_heads * PAGE * HD);
    let cache = to_halves(&cache);
    let (k, v) = cache.split_at(cache.len() / 2);
    // Every second page, from the end.
    let count = (lens.len() * pages) as i32;
    let table: Vec<i32> = (0..count).map(|i| (count - 1 - i) * 7 % count).collect();
    let scale = (HD as f32).powf(-0.5);
    let at = |sequence: usize, head: usize, token: usize| {
        let page = table[sequence * pages + token / PAGE] as usize;
        ((page * kv_heads + head / (heads / kv_heads)) * PAGE + token % PAGE) * HD
    };
    let value = |half: u16| half::f16::from_bits(half).to_f64();
    let mut reference = Vec::new();
    for (sequence, len) in lens.iter().enumerate() {
        for head in 0..heads {
            let q = &q[(sequence * heads + head) * HD..][..HD];
            let score = |token| {
                let k = &k[at(sequence, head, token)..][..HD];
                q.iter().zip(k).map(|(q, k)| f64::from(*q) * value(*k)).sum::<f64>() * f64::from(scale)
            };
            let weights: Vec<f64> = (0..*len as usize).map(|token| score(token).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mix = |i| weights.iter().enumerate().map(|(t, w)| w * value(v[at(sequence, head, t) + i])).sum::<f64>();
            reference.extend((0..HD).map(|i| mix(i) / sum));
        }
    }
    everywhere("attention", |object, order| {
        let mut memory = Arena::default();
        let out = memory.zeros::<f32>(q.len());
        let args = Args::default().with(out).with(memory.upload(&q)).with(memory.upload(k)).with(memory.upload(v));
        let args = args.with(memory.upload(&table)).with(memory.upload(&lens));
        let args = args.with(heads as i32).with(kv_heads as i32).with(pages as i32).with(scale);
        case(object, "attention", [heads as u32, lens.len() as u32, 1], args, order).run(&mut memory).unwrap();
        let error = relative_error(&memory.download::<f32>(out), &reference);
        // The kernel rounds the query to halves.
        assert!(error < 2e-3, "{}: {error}", object.target());
    });
}

#[test]
fn gemm() {
    let (m, n, k) = (128, 64, 96);
    let mut random = Random(8);
    let (a, b) = (to_halves(&random.floats(m * k)), to_halves(&random.floats(n * k)));
    let value = |half: &u16| half::f16::from_bits(*half).to_f64();
    let dot = |a: &[u16], b: &[u16]| a.iter().zip(b).map(|(a, b)| value(a) * value(b)).sum::<f64>();
    let reference: Vec<f64> = a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| dot(a, b))).collect();
    everywhere("gemm", |object, order| {
        let mut memory = Arena::default();
        let c = memory.zeros::<f32>(m * n);
        let args = Args::default().with(c).with(memory.upload(&a)).with(memory.upload(&b));
        let args = args.with(m as i32).with(n as i32).with(k as i32);
        let block = 4 * object.wavefront_size();
        let grid = [n as u32 / 64, m as u32 / 64, 1];
        Case { object, kernel: "gemm", grid, block, args, order }.run(&mut memory).unwrap();
        let error = relative_error(&memory.download::<f32>(c), &reference);
        assert!(error < 1e-6, "{}: {error}", object.target());
    });
}
