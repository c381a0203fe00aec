//! Products of many rows as 8-bit floats (`compute_dtype="fp8"`), by the stand-in's matrix library. The expected
//! rounding is found here in f64, by search among all numbers of e4m3.

use super::vendor::{helper, open, open_on};
use crate::backend::{
    Activation, Backend, Fusions, GateRows, Linear, LinearPart, Loader, Norm, NormGatedLinear, Ops, Upload,
};
use crate::config::{ComputeDtype, GpuOptions};
use crate::conformance::{Random, fill, vector, within};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS};
use crate::testing::library::alone;
use crate::{Buffer, Device, DeviceBuffer, GpuBackend, HostBuffer, Matrix, Stream};
use crate::{Error, Result};

const ROWS: usize = 21;
const COLS: usize = 300;
/// Outputs of a stack of two types.
const OUT: [usize; 2] = [64, 48];
/// Padded columns.
const STRIDE: usize = 512;

/// Returns every non-negative number of e4m3, indexed by its code.
fn codes() -> Vec<f64> {
    let value = |code: u32| match (code >> 3, f64::from(code & 7)) {
        (0, mantissa) => mantissa * 2f64.powi(-9),
        (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2f64.powi(exponent as i32 - 7),
    };
    (0..0x7f).map(value).collect()
}

/// Returns the scale of a row and its codes. The scale is the smallest power of two that keeps all numbers within 448.
/// Each code is that of the nearest number, with ties to even.
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

/// Returns the values that a rounded row represents.
fn values(row: &[f64]) -> Vec<f64> {
    let (all, (scale, codes)) = (self::codes(), rounded(row));
    let value = |code: &u8| scale * all[usize::from(code & 0x7f)] * if code & 0x80 == 0 { 1.0 } else { -1.0 };
    codes.iter().map(value).collect()
}

/// Returns rows of very different magnitudes, one of zeros, and one with numbers halfway between e4m3's, as f16 or
/// bf16.
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
        Self::load_of(device, options, spare, weights, &rows_of(1, ROWS, GgmlType::F16).1)
    }

    /// `table`: the rows to multiply, as f16.
    fn load_of(device: &Device, options: &GpuOptions, spare: u64, weights: [Vec<u8>; 2], table: &[u8]) -> Result<Self> {
        let view =
            |rows, ggml_type, data| TensorView { name: "weights", ggml_type, rows, cols: COLS, data, scales: &[] };
        let stack = [0, 1].map(|i| LinearPart { weight: view(OUT[i], TYPES[i], &weights[i]), bias: None });
        let mut loader = devices::loader(&(device.clone(), options.clone()), ROWS);
        loader.reserve_weights(&[Upload::Matrix(stack.to_vec())], spare)?;
        let matrix = loader.upload_matrix(&stack, &mut |_| Ok(()))?;
        // The table comes after the stack, whose room it must not take.
        let table = [LinearPart { weight: view(ROWS, GgmlType::F16, table), bias: None }];
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

    /// Checks the product of numbers that are rounded by `round`, both new and added to itself. The error may be `most`
    /// times the sum of the terms' magnitudes.
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

/// Weights and activations are rounded to the nearest e4m3 numbers, and products are those of the rounded numbers. That
/// holds for OCP's e4m3, and on a device whose codes mean half as much.
pub(super) fn check(target: &str) {
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

/// NaN and infinity are not lost: all products of their row are NaN.
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

/// F3: a row with NaN or infinity changes no other row, in 8-bit floats, in the library's 16 bits, and in our own
/// kernels.
#[test]
fn a_row_of_no_numbers_leaves_others_alone() {
    const BAD: usize = 4;
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let modes = [
        with_fp8(options.clone()),
        options.clone(),
        GpuOptions { vendor_blas: Some(false), ..options.clone() },
        GpuOptions { vendor_blas: Some(false), batch_invariant: true, ..options },
    ];
    for (i, options) in modes.iter().enumerate() {
        let table = rows_of(1, ROWS, GgmlType::F16).1;
        let product =
            |table: &[u8]| Rig::load_of(&device, options, 1 << 40, weights(), table).unwrap().product(false).to_vec();
        let expected = product(&table);
        assert!(expected.iter().all(|x| x.is_finite()));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut table = table.clone();
            table[2 * (BAD * COLS + 9)..][..2].copy_from_slice(&half::f16::from_f32(bad).to_le_bytes());
            let got = product(&table);
            for (row, (got, expected)) in got.chunks(OUT[0] + OUT[1]).zip(expected.chunks(OUT[0] + OUT[1])).enumerate()
            {
                match row == BAD {
                    // An infinity may become the largest 16-bit float of the library's operands.
                    true => assert!(bad.is_infinite() || got.iter().all(|x| x.is_nan()), "NaN is lost in mode {i}"),
                    false => assert_eq!(got, expected, "{bad} in row {BAD} changes row {row} in mode {i}"),
                }
            }
        }
    }
    assert_eq!(device.allocated_bytes(), 0);
}

/// A request for 8-bit floats is served, or fails at load with the reason.
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

/// If the library refuses a product after its test, our own kernels compute it from the original weights.
#[test]
fn a_product_that_is_refused_later_loses_nothing() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let mut rig = Rig::load(&device, &with_fp8(options), 1 << 40).unwrap();
    devices::misbehave("all-refused");
    // Activations are rounded to 16 bits, and to bf16 with BF16 weights.
    rig.check(<[f64]>::to_vec, 2f64.powi(-8));
    devices::misbehave("");
    assert!(rig.backend.describe().contains("the matrix library refused"), "{}", rig.backend.describe());
    drop(rig);
    assert_eq!(device.allocated_bytes(), 0);
}

/// Returns `count` values of f16, with their bytes.
fn halves(seed: u64, count: usize, factor: f32) -> (Vec<f64>, Vec<u8>) {
    let values: Vec<_> = Random(seed).values(count).into_iter().map(|x| half::f16::from_f32(factor * x)).collect();
    (values.iter().map(|x| x.to_f64()).collect(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// A variation of a feed-forward.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum But {
    Nothing,
    /// The library refuses the product of gate and up, after its rows have become 8-bit floats.
    Refused,
    /// Each row of the activation is multiplied by a gate.
    Gated,
}

/// Checks a feed-forward from its norm to its last product. The norm and the activation round their output rows.
pub(super) fn check_feed_forward(device: &Device, options: &GpuOptions, [cols, ffn]: [usize; 2], but: But) {
    let refused = but == But::Refused;
    const ROWS: usize = 9;
    const OUT: usize = 16;
    let (x, x_bytes) = halves(1, ROWS * cols, 1.0);
    let (gate, gate_bytes) = halves(2, ffn * cols, 0.1);
    let (up, up_bytes) = halves(3, ffn * cols, 0.1);
    let (down, down_bytes) = halves(4, OUT * ffn, 1.0);
    let part = |name, rows, cols, data| {
        let weight = TensorView { name, ggml_type: GgmlType::F16, rows, cols, data, scales: &[] };
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
    let of_rows: Vec<f32> = Random(5).values(cols);
    let row_gate = vector(&mut loader, &of_rows).unwrap();
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
        if but == But::Gated {
            let norm = Some(Norm::rms(&norm, 1e-5));
            step.gate_rows(GateRows { x: &rows, norm, weight: &row_gate, rows: ROWS, cols: ffn, out: &mut gated })?;
        }
        step.linear(Linear { x: &gated, matrix: &last, rows: ROWS, out: &mut out, add: false })
    })
    .unwrap();
    devices::misbehave("");
    assert_eq!(backend.describe().contains("refused"), refused);
    let got = backend.to_host(&out, ROWS, OUT).unwrap();

    // After a refusal the weights and the rows of the activation are not rounded.
    let round = if refused { <[f64]>::to_vec } else { values };
    let [gate, up] = [gate, up].map(|matrix| matrix.chunks(cols).map(round).collect::<Vec<_>>());
    let down: Vec<_> = down.chunks(ffn).map(round).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for (row, got) in x.chunks(cols).zip(got.chunks(OUT)) {
        let scale = 1.0 / (dot(row, row) / cols as f64 + 1e-5).sqrt();
        let normed: Vec<f64> = row.iter().zip(&weights).map(|(x, w)| x * scale * f64::from(*w)).collect();
        let of_row = of_rows.iter().zip(&normed).map(|(weight, x)| f64::from(*weight) * x).sum::<f64>();
        let factor = if but == But::Gated { 1.0 / (1.0 + (-of_row).exp()) } else { 1.0 };
        let normed = values(&normed);
        let gated = gate.iter().zip(&up).map(|(gate, up)| {
            let (gate, up) = (dot(gate, &normed), dot(up, &normed));
            gate / (1.0 + (-gate).exp()) * up
        });
        // The gate's factor changes the scale, so the rounded numbers do not change.
        let gated: Vec<f64> = round(&gated.collect::<Vec<_>>()).iter().map(|x| factor * x).collect();
        for (&got, down) in got.iter().zip(&down) {
            // A number halfway between e4m3's may be rounded either way, by a sixteenth.
            let most = 4e-3 * gated.iter().zip(down).map(|(x, w)| (x * w).abs()).sum::<f64>();
            let expected = dot(&gated, down);
            assert!((f64::from(got) - expected).abs() <= most, "{cols} x {ffn}: {got}, not {expected} +- {most}");
        }
    }
    drop(backend);
    drop((matrix, last, table, norm, row_gate, rows, normed, products, gated, out));
    assert_eq!(device.allocated_bytes(), 0);
}

/// Tests rows of one span of the norm and of two, and of more columns than the activation keeps in registers.
#[test]
fn norms_and_activations_round_what_they_make() {
    check_norms_and_activations(CPU_TARGETS[0], &[[300, 128], [4352, 48], [48, 16_640]]);
    check_norms_and_activations(CPU_TARGETS[3], &[[300, 128]]);
}

pub(super) fn check_norms_and_activations(target: &str, shapes: &[[usize; 2]]) {
    let _alone = alone();
    let Some((device, options, _cache)) = open_on(target, helper("")) else { return };
    shapes.iter().for_each(|&shape| check_feed_forward(&device, &options, shape, But::Nothing));
}

#[test]
fn rounded_rows_serve_our_own_kernels_after_a_refusal() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    check_feed_forward(&device, &options, [300, 128], But::Refused);
}

/// F3: the gate of a shared expert multiplies rows that are already 8-bit floats.
#[test]
fn rows_of_8_bit_floats_are_gated() {
    check_gated_rows(CPU_TARGETS[0]);
    check_gated_rows(CPU_TARGETS[3]);
}

pub(super) fn check_gated_rows(target: &str) {
    let _alone = alone();
    let Some((device, options, _cache)) = open_on(target, helper("")) else { return };
    [[300, 128], [48, 1040]].iter().for_each(|&shape| check_feed_forward(&device, &options, shape, But::Gated));
}
