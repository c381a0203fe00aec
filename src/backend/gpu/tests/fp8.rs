//! Products of many rows as 8-bit floats (`compute_dtype="fp8"`), by the stand-in's matrix library. What rows are
//! rounded to is found here by search among all numbers that e4m3 has, in f64.

use super::devices::{self, AMD_TARGETS, CPU_TARGETS};
use super::vendor::{alone, helper, open, open_on};
use crate::backend::conformance::{Random, fill, vector, within};
use crate::backend::gpu::{Buffer, Device, DeviceBuffer, GpuBackend, HostBuffer, Matrix, Stream};
use crate::backend::{Activation, Backend, Fusions, Linear, LinearPart, Loader, Norm, NormGatedLinear, Ops, Upload};
use crate::config::{ComputeDtype, GpuOptions};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

const ROWS: usize = 21;
const COLS: usize = 300;
/// Outputs of a stack of two types.
const OUT: [usize; 2] = [64, 48];
/// Padded columns.
const STRIDE: usize = 512;

/// Every number that e4m3 has on one side of zero, by its code.
fn codes() -> Vec<f64> {
    let value = |code: u32| match (code >> 3, f64::from(code & 7)) {
        (0, mantissa) => mantissa * 2f64.powi(-9),
        (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2f64.powi(exponent as i32 - 7),
    };
    (0..0x7f).map(value).collect()
}

/// The scale of a row and its codes: the least power of two with which nothing is beyond 448, and the nearest number,
/// of two that are as near the even one.
fn rounded(row: &[f64]) -> (f64, Vec<u8>) {
    let all = codes();
    assert_eq!((all.len(), all[0x7e], all[8]), (127, 448.0, 2f64.powi(-6)));
    let largest = row.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let mut scale = 2f64.powi(-126);
    while largest / scale > 448.0 {
        scale *= 2.0;
    }
    let code = |x: &f64| {
        let distance = |code: &usize| (all[*code] - (x / scale).abs()).abs();
        let nearer = |a: usize, b: usize| match distance(&a).total_cmp(&distance(&b)) {
            std::cmp::Ordering::Equal => {
                if a.is_multiple_of(2) {
                    a
                } else {
                    b
                }
            }
            order => {
                if order.is_lt() {
                    a
                } else {
                    b
                }
            }
        };
        let nearest = (0..all.len()).reduce(nearer).unwrap() as u8;
        if nearest > 0 && *x < 0.0 { nearest | 0x80 } else { nearest }
    };
    (scale, row.iter().map(code).collect())
}

/// The values that a rounded row stands for.
fn values(row: &[f64]) -> Vec<f64> {
    let (all, (scale, codes)) = (self::codes(), rounded(row));
    let value = |code: &u8| scale * all[usize::from(code & 0x7f)] * if code & 0x80 == 0 { 1.0 } else { -1.0 };
    codes.iter().map(value).collect()
}

/// Rows of very different sizes, one of zeros, and one whose numbers lie between two of e4m3's, as f16 or bf16.
fn rows_of(seed: u64, count: usize, ty: GgmlType) -> (Vec<f64>, Vec<u8>) {
    let mut random = Random(seed).values(count * COLS);
    for (i, row) in random.chunks_mut(COLS).enumerate() {
        match i {
            1 => row.fill(0.0),
            2 => row.iter_mut().enumerate().for_each(|(c, x)| *x = (16 + c % 241) as f32 / 32.0 * [1.0, -1.0][c % 2]),
            _ => row.iter_mut().for_each(|x| *x *= 2f32.powi(i as i32 % 13 - 8)),
        }
    }
    let exact = |x: f32| match ty {
        GgmlType::BF16 => (half::bf16::from_f32(x).to_f64(), half::bf16::from_f32(x).to_le_bytes()),
        _ => (half::f16::from_f32(x).to_f64(), half::f16::from_f32(x).to_le_bytes()),
    };
    (random.iter().map(|&x| exact(x).0).collect(), random.iter().flat_map(|&x| exact(x).1).collect())
}

struct Rig {
    backend: GpuBackend,
    matrix: Matrix,
    x: Buffer,
    out: Buffer,
}

const TYPES: [GgmlType; 2] = [GgmlType::F16, GgmlType::BF16];

fn weights() -> [Vec<u8>; 2] {
    [0, 1].map(|i| rows_of(2 + i as u64, OUT[i], TYPES[i]).1)
}

impl Rig {
    fn load(device: &Device, options: &GpuOptions, spare: u64) -> Result<Self> {
        Self::load_with(device, options, spare, weights())
    }

    fn load_with(device: &Device, options: &GpuOptions, spare: u64, weights: [Vec<u8>; 2]) -> Result<Self> {
        let (_, table) = rows_of(1, ROWS, GgmlType::F16);
        let view = |rows, ggml_type, data| TensorView { name: "weights", ggml_type, rows, cols: COLS, data };
        let stack = [0, 1].map(|i| LinearPart { weight: view(OUT[i], TYPES[i], &weights[i]), bias: None });
        let mut loader = devices::loader(&(device.clone(), options.clone()), ROWS);
        loader.reserve_weights(&[Upload::Matrix(stack.to_vec())], spare)?;
        let matrix = loader.upload_matrix(&stack, &mut |_| Ok(()))?;
        // Behind the stack, which nothing else is to take the room of.
        let table = [LinearPart { weight: view(ROWS, GgmlType::F16, &table), bias: None }];
        let table = loader.upload_matrix(&table, &mut |_| Ok(()))?;
        let (mut x, out) = (loader.alloc_buffer(ROWS, COLS)?, loader.alloc_buffer(ROWS, OUT[0] + OUT[1])?);
        let mut backend = loader.finish()?;
        fill(&mut backend, &table, ROWS, &mut x)?;
        Ok(Self { backend, matrix, x, out })
    }

    fn product(&mut self, add: bool) -> &[f32] {
        let Self { backend, matrix, x, out } = self;
        within(backend, ROWS, |step| step.linear(Linear { x, matrix, rows: ROWS, out, add })).unwrap();
        backend.to_host(out, ROWS, OUT[0] + OUT[1]).unwrap()
    }

    /// Checks the product of numbers that are rounded by `round`, new and added to itself. It may be off by `most` of
    /// what its terms are without their signs.
    fn check(&mut self, round: fn(&[f64]) -> Vec<f64>, most: f64) {
        let x = rows_of(1, ROWS, GgmlType::F16).0;
        let weights = [0, 1].map(|i| rows_of(2 + i as u64, OUT[i], TYPES[i]).0).concat();
        let weights: Vec<_> = weights.chunks(COLS).map(round).collect();
        let terms = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).collect::<Vec<_>>();
        let products = x.chunks(COLS).map(round).flat_map(|x| weights.iter().map(|w| terms(&x, w)).collect::<Vec<_>>());
        let products: Vec<_> = products.collect();
        for (add, factor) in [(false, 1.0), (true, 2.0)] {
            for (i, (&got, terms)) in self.product(add).iter().zip(&products).enumerate() {
                let expected = factor * terms.iter().sum::<f64>();
                let most = most * terms.iter().map(|term| term.abs()).sum::<f64>();
                assert!((f64::from(got) - expected).abs() <= most, "element {i} is {got}, not {expected}");
            }
        }
    }
}

fn bytes_of(device: &Device, buffer: &DeviceBuffer) -> Vec<u8> {
    let stream = Stream::new(device).unwrap();
    let mut host = HostBuffer::new(device, buffer.bytes() as usize).unwrap();
    // SAFETY: the stream is waited for before the bytes are looked at.
    unsafe { stream.copy_to_host(host.as_mut_slice(), buffer.slice()).unwrap() };
    stream.synchronize().unwrap();
    host.as_slice().to_vec()
}

fn with_fp8(options: GpuOptions) -> GpuOptions {
    GpuOptions { compute_dtype: ComputeDtype::Fp8, ..options }
}

/// Weights and activations are the numbers of e4m3 that are nearest, and products are those of the rounded numbers: on
/// a device with OCP's e4m3, and on one whose codes mean half as much.
fn check(target: &str) {
    let _alone = alone();
    let Some((device, options, _cache)) = open_on(target, helper("")) else { return };
    let mut rig = Rig::load(&device, &with_fp8(options), 1 << 40).unwrap();
    let before = devices::products();
    rig.check(values, 1e-5);
    assert_eq!(devices::products() - before, 4);
    for (i, segment) in rig.matrix.segments.iter().enumerate() {
        let dense = segment.dense.as_ref().unwrap();
        let (codes, scales) = (bytes_of(&device, &dense.rows), bytes_of(&device, dense.scales.as_ref().unwrap()));
        for (r, row) in rows_of(2 + i as u64, OUT[i], TYPES[i]).0.chunks(COLS).enumerate() {
            let (scale, expected) = rounded(row);
            let got = f32::from_le_bytes(scales[4 * r..][..4].try_into().unwrap());
            assert_eq!(f64::from(got), scale, "scale of row {r} of segment {i}");
            let padded = [&expected[..], &[0; STRIDE - COLS]].concat();
            assert_eq!(&codes[STRIDE * r..][..STRIDE], padded, "row {r} of segment {i}");
        }
    }
    let described = rig.backend.describe();
    assert!(described.contains("long prompts: ") && described.contains("libhipsim.so in fp8"), "{described}");
    drop(rig);
    assert_eq!(device.allocated_bytes(), 0);
}

#[test]
fn rows_are_rounded_to_the_nearest_and_multiplied() {
    check(CPU_TARGETS[0]);
}

#[test]
fn gfx942_has_codes_of_half_the_value() {
    check(AMD_TARGETS[1]);
}

/// A number that is none, or infinite, is not lost: all of its row's products are none.
#[test]
fn what_is_no_number_stays_none() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let options = with_fp8(options);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut weights = weights();
        weights[1][2 * (5 * COLS + 7)..][..2].copy_from_slice(&half::bf16::from_f32(bad).to_le_bytes());
        let mut rig = Rig::load_with(&device, &options, 1 << 40, weights).unwrap();
        let got = rig.product(false);
        let wrong = got.iter().enumerate().position(|(i, x)| x.is_nan() != (i % (OUT[0] + OUT[1]) == OUT[0] + 5));
        assert_eq!(wrong, None, "{bad}");
    }
    assert_eq!(device.allocated_bytes(), 0);
}

/// Who asks for 8-bit floats gets them or an error that says why not, at the load.
#[test]
fn a_device_that_cannot_says_so() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let refused = |options: GpuOptions, spare| Rig::load(&device, &with_fp8(options), spare).err().unwrap();
    let cases = [
        (GpuOptions { vendor_blas: Some(false), ..options.clone() }, "switched off (vendor_blas=False"),
        (GpuOptions { batch_invariant: true, ..options.clone() }, "results are batch-invariant"),
        (GpuOptions { helper: None, ..options.clone() }, "it was not tried"),
        (GpuOptions { helper: helper("wrong"), ..options.clone() }, "of the result is wrong"),
    ];
    for (options, reason) in cases {
        let error = refused(options, 1 << 40);
        assert!(matches!(error, Error::InvalidRequest { what: "compute_dtype", .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = refused(options, (320 << 20) + 1);
    assert!(matches!(error, Error::OutOfMemory { requested, .. } if requested > 320 << 20), "{error}");
    assert_eq!(device.allocated_bytes(), 0);
}

/// A product that the library refuses after it was tried is computed by our own kernels, of the weights themselves.
#[test]
fn a_product_that_is_refused_later_loses_nothing() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let mut rig = Rig::load(&device, &with_fp8(options), 1 << 40).unwrap();
    devices::misbehave("all-refused");
    // Activations are rounded to 16 bits, beside BF16 weights to bf16.
    rig.check(<[f64]>::to_vec, 2f64.powi(-8));
    devices::misbehave("");
    assert!(rig.backend.describe().contains("the matrix library refused"), "{}", rig.backend.describe());
    drop(rig);
    assert_eq!(device.allocated_bytes(), 0);
}

/// Values of f16, with their bytes: a matrix of so many columns, or rows.
fn halves(seed: u64, count: usize, factor: f32) -> (Vec<f64>, Vec<u8>) {
    let values: Vec<_> = Random(seed).values(count).into_iter().map(|x| half::f16::from_f32(factor * x)).collect();
    (values.iter().map(|x| x.to_f64()).collect(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// A feed-forward from its norm to its last product: the norm and the activation round the rows that they make. With
/// `refused`, the library refuses the product of gate and up, whose rows are 8-bit floats by then.
pub(super) fn check_feed_forward(device: &Device, options: &GpuOptions, [cols, ffn]: [usize; 2], refused: bool) {
    const ROWS: usize = 9;
    const OUT: usize = 16;
    let (x, x_bytes) = halves(1, ROWS * cols, 1.0);
    let (gate, gate_bytes) = halves(2, ffn * cols, 0.1);
    let (up, up_bytes) = halves(3, ffn * cols, 0.1);
    let (down, down_bytes) = halves(4, OUT * ffn, 1.0);
    let part = |name, rows, cols, data| {
        let weight = TensorView { name, ggml_type: GgmlType::F16, rows, cols, data };
        LinearPart { weight, bias: None }
    };
    let gate_up = [part("gate", ffn, cols, &gate_bytes), part("up", ffn, cols, &up_bytes)];
    let down_part = [part("down", OUT, ffn, &down_bytes)];
    let mut loader = devices::loader(&(device.clone(), with_fp8(options.clone())), ROWS);
    let uploads = [Upload::Matrix(gate_up.to_vec()), Upload::Matrix(down_part.to_vec())];
    loader.reserve_weights(&uploads, 1 << 40).unwrap();
    let matrix = loader.upload_matrix(&gate_up, &mut |_| Ok(())).unwrap();
    let last = loader.upload_matrix(&down_part, &mut |_| Ok(())).unwrap();
    let table = loader.upload_matrix(&[part("table", ROWS, cols, &x_bytes)], &mut |_| Ok(())).unwrap();
    let weights: Vec<f32> = (0..cols).map(|c| 0.5 + (c % 7) as f32 / 4.0).collect();
    let norm = vector(&mut loader, &weights).unwrap();
    let mut buffer = |cols| loader.alloc_buffer(ROWS, cols).unwrap();
    let (mut rows, mut normed, mut products) = (buffer(cols), buffer(cols), buffer(2 * ffn));
    let (mut gated, mut out) = (buffer(ffn), buffer(OUT));
    let mut backend = loader.finish().unwrap();
    fill(&mut backend, &table, ROWS, &mut rows).unwrap();
    devices::misbehave(if refused { "all-refused" } else { "" });
    within(&mut backend, ROWS, |step| {
        step.norm_gated_linear(NormGatedLinear {
            x: &rows,
            norm: Some(Norm::rms(&norm, 1e-5)),
            gate_up: &matrix,
            activation: Activation::Silu,
            rows: ROWS,
            normed: &mut normed,
            products: &mut products,
            out: &mut gated,
        })?;
        step.linear(Linear { x: &gated, matrix: &last, rows: ROWS, out: &mut out, add: false })
    })
    .unwrap();
    devices::misbehave("");
    assert_eq!(backend.describe().contains("refused"), refused);
    let got = backend.to_host(&out, ROWS, OUT).unwrap();

    // Behind a refusal weights and the rows of the activation are not rounded.
    let round = if refused { <[f64]>::to_vec } else { values };
    let [gate, up] = [gate, up].map(|matrix| matrix.chunks(cols).map(round).collect::<Vec<_>>());
    let down: Vec<_> = down.chunks(ffn).map(round).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for (row, got) in x.chunks(cols).zip(got.chunks(OUT)) {
        let scale = 1.0 / (dot(row, row) / cols as f64 + 1e-5).sqrt();
        let normed: Vec<f64> = row.iter().zip(&weights).map(|(x, w)| x * scale * f64::from(*w)).collect();
        let normed = values(&normed);
        let gated = gate.iter().zip(&up).map(|(gate, up)| {
            let (gate, up) = (dot(gate, &normed), dot(up, &normed));
            gate / (1.0 + (-gate).exp()) * up
        });
        let gated = round(&gated.collect::<Vec<_>>());
        for (&got, down) in got.iter().zip(&down) {
            // A number between two of e4m3's may go to the other one, a sixteenth away.
            let most = 4e-3 * gated.iter().zip(down).map(|(x, w)| (x * w).abs()).sum::<f64>();
            let expected = dot(&gated, down);
            assert!((f64::from(got) - expected).abs() <= most, "{cols} x {ffn}: {got}, not {expected} +- {most}");
        }
    }
    drop(backend);
    drop((matrix, last, table, norm, rows, normed, products, gated, out));
    assert_eq!(device.allocated_bytes(), 0);
}

/// Rows of one span of the norm and of two, and of more columns than the activation keeps in registers; AMD's code too.
#[test]
fn norms_and_activations_round_what_they_make() {
    let _alone = alone();
    let shapes = [[300, 128], [4352, 48], [48, 16_640]];
    for (target, shapes) in
        [(CPU_TARGETS[0], &shapes[..]), (CPU_TARGETS[3], &shapes[..1]), (AMD_TARGETS[1], &shapes[..2])]
    {
        let Some((device, options, _cache)) = open_on(target, helper("")) else { return };
        shapes.iter().for_each(|&shape| check_feed_forward(&device, &options, shape, false));
    }
}

#[test]
fn rounded_rows_serve_our_own_kernels_after_a_refusal() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    check_feed_forward(&device, &options, [300, 128], true);
}
