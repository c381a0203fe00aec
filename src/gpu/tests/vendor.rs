//! The vendor's matrix library, represented by its stand-in: it is used if its results are right. After any problem, at
//! load or later, our own kernels give right results, and the problem is reported.

use std::ffi::OsString;
use std::path::Path;

use crate::Error;
use crate::backend::{Activation, Backend, Fusions, Linear, LinearPart, Loader, Norm, NormGatedLinear, Ops, Upload};
use crate::config::GpuOptions;
use crate::conformance::{Random, fill, vector, within};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS};
use crate::testing::library::{self, alone};
use crate::vendor::blas::{Element, Operands, Product, VendorBlas};
use crate::{Buffer, Device, DevicePtr, GpuBackend, Matrix, Stream, Vector, survey_library};

const ROWS: usize = 21;
const COLS: usize = 300;
/// Outputs of gate and of up: together whole tiles of columns, as 16-bit products require.
const FFN: usize = 128;
const EPS: f32 = 1e-5;

/// Does the job if `helper` started this test in a separate process; otherwise it does nothing.
#[test]
fn helper_process() {
    library::answer();
}

/// Returns the command that starts this program in a separate process, where the library misbehaves in this way.
pub(crate) fn helper(fault: &str) -> Option<Vec<OsString>> {
    library::helper(module_path!(), fault)
}

/// Opens a device with a separate cache of verdicts; compiled kernels are shared by all tests.
pub(crate) fn open(helper: Option<Vec<OsString>>) -> Option<(Device, GpuOptions, tempfile::TempDir)> {
    open_on(CPU_TARGETS[0], helper)
}

/// Like `open`, on one of the CPU's or AMD's targets.
pub(super) fn open_on(target: &str, helper: Option<Vec<OsString>>) -> Option<(Device, GpuOptions, tempfile::TempDir)> {
    let cache = tempfile::tempdir().unwrap();
    // Compiles missing kernels into the cache of all tests.
    let compile = |device: &Device, options: &GpuOptions| drop(Rig::load(device, options));
    let (device, options) = library::open_on(target, helper, cache.path(), compile)?;
    Some((device, options, cache))
}

/// Returns values that f16 represents exactly, and their bytes.
fn halves(seed: u64, count: usize) -> (Vec<f64>, Vec<u8>) {
    let values: Vec<_> = Random(seed).values(count).into_iter().map(half::f16::from_f32).collect();
    (values.iter().map(|x| x.to_f64()).collect(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
}

fn view<'a>(name: &'static str, rows: usize, data: &'a [u8]) -> TensorView<'a> {
    TensorView { name, ggml_type: GgmlType::F16, rows, cols: COLS, data, scales: &[] }
}

struct Rig {
    backend: GpuBackend,
    /// 50 outputs with a bias.
    matrix: Matrix,
    gate_up: Matrix,
    norm: Vector,
    x: Buffer,
    normed: Buffer,
    products: Buffer,
    out: Buffer,
}

const OUT: usize = 50;

/// Bytes of `matrix` and `gate_up` for the library: 16-bit numbers, 64 and twice 128 outputs of 512 inputs.
const KEPT: u64 = 2 * (64 + 2 * 128) * 512;

impl Rig {
    fn load(device: &Device, options: &GpuOptions) -> Self {
        Self::load_within(device, options, 1 << 40)
    }

    /// Loads with this many bytes for the library and the weights that are kept for it.
    fn load_within(device: &Device, options: &GpuOptions, spare: u64) -> Self {
        let (_, table) = halves(1, ROWS * COLS);
        let (_, weights) = halves(2, OUT * COLS);
        let (_, gate) = halves(3, FFN * COLS);
        let (_, up) = halves(4, FFN * COLS);
        let bias: Vec<u8> = Random(5).values(OUT).iter().flat_map(|x| x.to_le_bytes()).collect();
        let bias = TensorView { name: "bias", ggml_type: GgmlType::F32, rows: 1, cols: OUT, data: &bias, scales: &[] };
        let matrix = || vec![LinearPart { weight: view("matrix", OUT, &weights), bias: Some(bias) }];
        let gate_up = || {
            [("gate", &gate), ("up", &up)].map(|(name, data)| LinearPart { weight: view(name, FFN, data), bias: None })
        };
        let mut loader = devices::loader(&(device.clone(), options.clone()), ROWS);
        loader.reserve_weights(&[Upload::Matrix(matrix()), Upload::Matrix(gate_up().to_vec())], spare).unwrap();
        let table = loader
            .upload_matrix(&[LinearPart { weight: view("table", ROWS, &table), bias: None }], &mut |_| Ok(()))
            .unwrap();
        let (matrix, gate_up) = (
            loader.upload_matrix(&matrix(), &mut |_| Ok(())).unwrap(),
            loader.upload_matrix(&gate_up(), &mut |_| Ok(())).unwrap(),
        );
        let norm = vector(&mut loader, &vec![1.0; COLS]).unwrap();
        let mut buffer = |cols| loader.alloc_buffer(ROWS, cols).unwrap();
        let (mut x, normed, products, out) = (buffer(COLS), buffer(COLS), buffer(2 * FFN), buffer(FFN));
        let mut backend = loader.finish().unwrap();
        fill(&mut backend, &table, ROWS, &mut x).unwrap();
        Self { backend, matrix, gate_up, norm, x, normed, products, out }
    }

    /// Checks products against f64: new, added and gated.
    fn check(&mut self) {
        let (x, weights) = (halves(1, ROWS * COLS).0, halves(2, OUT * COLS).0);
        let bias: Vec<f64> = Random(5).values(OUT).into_iter().map(f64::from).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let expected: Vec<f64> = x
            .chunks(COLS)
            .flat_map(|x| weights.chunks(COLS).zip(&bias).map(|(w, b)| dot(w, x) + b).collect::<Vec<_>>())
            .collect();
        let Self { backend, matrix, x: rows, out, .. } = self;
        within(backend, ROWS, |step| step.linear(Linear { x: rows, matrix, rows: ROWS, out, add: false })).unwrap();
        close("linear", backend.to_host(out, ROWS, OUT).unwrap(), &expected, 1e-4);
        within(backend, ROWS, |step| step.linear(Linear { x: rows, matrix, rows: ROWS, out, add: true })).unwrap();
        let twice: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
        close("linear, added", backend.to_host(out, ROWS, OUT).unwrap(), &twice, 1e-4);

        gated(self).unwrap();
        let Self { backend, out, .. } = self;
        let (gate, up) = (halves(3, FFN * COLS).0, halves(4, FFN * COLS).0);
        let expected: Vec<f64> = x
            .chunks(COLS)
            .flat_map(|x| {
                let scale = 1.0 / (dot(x, x) / COLS as f64 + f64::from(EPS)).sqrt();
                let x: Vec<f64> = x.iter().map(|x| x * scale).collect();
                let gated = gate.chunks(COLS).zip(up.chunks(COLS)).map(|(gate, up)| {
                    let (gate, up) = (dot(gate, &x), dot(up, &x));
                    gate / (1.0 + (-gate).exp()) * up
                });
                gated.collect::<Vec<_>>()
            })
            .collect();
        // Rows and products are rounded to f16.
        close("norm_gated_linear", backend.to_host(out, ROWS, FFN).unwrap(), &expected, 0.5);
        // No queued work is left that could fail later.
        self.backend.to_host(&self.out, 1, 1).unwrap();
    }
}

/// Computes the gated product of the normed rows.
fn gated(rig: &mut Rig) -> crate::Result<()> {
    let Rig { backend, gate_up, norm, x, normed, products, out, .. } = rig;
    let norm = Some(Norm::rms(norm, EPS));
    within(backend, ROWS, |step| {
        let activation = Activation::Silu;
        step.norm_gated_linear(NormGatedLinear { x, norm, gate_up, activation, rows: ROWS, normed, products, out })
    })
}

/// Compares values, whose magnitude is about ten.
fn close(what: &str, got: &[f32], expected: &[f64], most: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(got) - expected).abs() <= most, "{what}: element {i} is {got}, not {expected}");
    }
}

/// The library is used if every shape was right in a separate process, even if its first algorithm is refused when it
/// runs.
#[test]
fn a_library_that_is_right_serves() {
    let _alone = alone();
    for fault in ["", "first-refused"] {
        let Some((device, options, _cache)) = open(helper(fault)) else { return };
        devices::misbehave(fault);
        let mut rig = Rig::load(&device, &options);
        let before = devices::products();
        rig.check();
        let described = rig.backend.describe();
        assert!(described.contains("libhipsim.so") && !described.contains("long prompts: matmul"), "{described}");
        assert_eq!(devices::products() - before, 3, "{fault}");
        drop(rig);
        devices::misbehave("");
        assert_eq!(device.allocated_bytes(), 0);
    }
}

/// Each known failure of hipBLASLt, met at load, only harms the process that tests the library. Our own kernels serve,
/// the reason is reported, and the verdict is remembered.
#[test]
fn a_library_that_fails_when_it_is_tried_is_left_alone() {
    let _alone = alone();
    let faults = [
        ("create", "Create failed with status 1"),
        ("heuristic", "MatmulAlgoGetHeuristic failed with status 3"),
        ("no-algorithm", "no algorithm for"),
        ("all-refused", "Matmul failed with status 6"),
        ("wrong", "of the result is wrong"),
        ("segfault", "was killed by signal 11"),
        ("abort", "was killed by signal 6"),
    ];
    for (fault, reason) in faults {
        let Some((device, options, _cache)) = open(helper(fault)) else { return };
        let before = devices::products();
        // The second time the verdict is known without a process.
        let remembered = GpuOptions { helper: None, ..options.clone() };
        for options in [&options, &remembered] {
            let mut rig = Rig::load(&device, options);
            rig.check();
            let described = rig.backend.describe();
            assert!(described.contains("long prompts: matmul (") && described.contains(reason), "{fault}: {described}");
        }
        assert_eq!(devices::products(), before, "{fault}");
        assert_eq!(device.allocated_bytes(), 0);
    }
}

/// A product that the library refuses after its test fails no request. Our own kernels compute the missing outputs, and
/// then all further products.
#[test]
fn a_product_that_is_refused_later_is_computed_by_our_kernels() {
    let _alone = alone();
    let faults = [
        ("heuristic", "status 3"),
        ("no-algorithm", "no algorithm for"),
        ("all-refused", "Matmul failed with status 6"),
    ];
    for (fault, reason) in faults {
        let Some((device, options, _cache)) = open(helper("")) else { return };
        let mut rig = Rig::load(&device, &options);
        let before = devices::products();
        devices::misbehave(fault);
        rig.check();
        devices::misbehave("");
        // The library would be right again, but it is not used.
        rig.check();
        assert_eq!(devices::products(), before, "{fault}");
        let described = rig.backend.describe();
        assert!(described.contains("long prompts: matmul (") && described.contains(reason), "{fault}: {described}");
        drop(rig);
        assert_eq!(device.allocated_bytes(), 0);
    }
}

/// If the library refuses a product, our own kernels convert the rows that were prepared for it.
#[test]
fn rows_prepared_for_the_library_are_converted_when_it_refuses() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let mut rig = Rig::load(&device, &options);
    devices::misbehave("all-refused");
    gated(&mut rig).unwrap();
    devices::misbehave("");
    assert!(rig.backend.describe().contains("long prompts: matmul ("));
    rig.check();
}

/// The library only makes prompts faster, so it may take only spare memory.
#[test]
fn a_library_that_does_not_fit_is_left_out() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    let without = GpuOptions { vendor_blas: Some(false), ..options.clone() };
    let without = Rig::load(&device, &without).backend.memory().scratch;
    // The sum of 256 MiB for dequantised weights, and the library's workspace.
    let needed = 320 << 20;
    let cases = [
        (0, 0, "335 MB, 0 bytes are available"),
        (needed - 1, 0, "335544320 bytes, 335544319 are available"),
        (needed, needed, ""),
        (needed + (2 << 20), needed + KEPT, ""),
    ];
    for (spare, taken, shortage) in cases {
        let mut rig = Rig::load_within(&device, &options, spare);
        rig.check();
        assert_eq!(rig.backend.memory().scratch - without, taken, "{spare}");
        let described = rig.backend.describe();
        let problem = format!("the matrix library is not used: beside weights and KV cache it needs {shortage}");
        assert_eq!(described.contains(&problem), taken == 0, "{described}");
        assert_eq!(described.contains("long prompts: matmul"), taken == 0, "{described}");
    }
    assert_eq!(device.allocated_bytes(), 0);
}

/// Without a separate process there is no verdict, and none is remembered.
#[test]
fn a_library_that_cannot_be_tried_is_left_alone() {
    let _alone = alone();
    let nowhere = Some(vec![OsString::from("/nowhere/at/all")]);
    for (helper, reason) in [(None, "no program to try it in"), (nowhere, "/nowhere/at/all: No such file")] {
        let Some((device, options, _cache)) = open(helper) else { return };
        let mut rig = Rig::load(&device, &options);
        rig.check();
        let described = rig.backend.describe();
        assert!(described.contains("it was not tried") && described.contains(reason), "{described}");
        let tried = GpuOptions { helper: self::helper(""), ..options };
        assert!(!Rig::load(&device, &tried).backend.describe().contains("long prompts: matmul"));
    }
}

/// The library reads a bias in its output's type, and ours are f32, so a bias with 16-bit outputs is refused.
#[test]
fn a_bias_beside_16_bit_outputs_is_a_bug_of_ours() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(None) else { return };
    let mut blas = VendorBlas::open_file(&device, Path::new(options.library.as_ref().unwrap())).unwrap();
    let (input, output) = (Element::F16, Element::F16);
    let product = Product { rows: 16, out_rows: 16, cols: 256, out_stride: 16, input, output, add: false, bias: true };
    let at = DevicePtr::NULL;
    let operands = Operands { weights: at, x: at, bias: at, out: at, scales: [at; 2], workspace: at };
    let stream = Stream::new(&device).unwrap();
    // SAFETY: it is refused before any operand is looked at.
    let refused = unsafe { blas.multiply(&stream, product, operands) };
    assert!(matches!(refused, Err(Error::Internal { .. })), "{refused:?}");
}

/// The survey of `doctor --test`: each shape has its own verdict, independent of remembered ones, and an unused library
/// is reported with the reason.
#[test]
fn a_survey_tries_every_shape_by_itself() {
    let _alone = alone();
    for (fault, reason) in [("", None), ("wrong", Some("of the result is wrong")), ("abort", Some("signal 6"))] {
        let Some((device, options, _cache)) = open(helper(fault)) else { return };
        let mut seen = Vec::new();
        let mut watch = |what: &str| {
            seen.push(what.to_owned());
            true
        };
        let survey = survey_library(&device, &options, true, &mut watch).unwrap().unwrap();
        assert!(survey.file.ends_with("libhipsim.so"), "{}", survey.file.display());
        assert_eq!(seen, survey.tried.iter().map(|tried| tried.name).collect::<Vec<_>>());
        assert_eq!(seen.len(), 2);
        for tried in &survey.tried {
            assert!(tried.products > 0);
            match (&tried.problem, reason) {
                (None, None) => {}
                (Some(problem), Some(reason)) => assert!(problem.contains(reason), "{problem}"),
                (problem, _) => panic!("{fault}: {problem:?}"),
            }
        }
        let refused = survey_library(&device, &options, true, &mut |_| false);
        assert!(matches!(refused, Err(Error::Interrupted)));
        let forbidden = GpuOptions { vendor_blas: Some(false), ..options };
        let not_used = survey_library(&device, &forbidden, true, &mut |_| true).unwrap();
        assert_eq!(not_used.err().as_deref(), Some("switched off (vendor_blas=False or ROCMFORGE_VENDOR_BLAS=0)"));
        assert_eq!(device.allocated_bytes(), 0);
    }
}
