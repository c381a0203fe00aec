//! The kernels that serve each tensor type and op on a device, every one of them looked up in the code that was loaded:
//! what `doctor` prints.

use super::compile::{MatrixUnit, Origin};
use super::stacks::device_type;
use super::vendor::{self, blas::VendorBlas};
use super::{
    Device, EXPERT_RUNS, HEAD_SIZES, KernelId, KernelType, Kernels, MATMUL_PAIR_ROWS, MATMUL_ROWS, Stream, Unit, tuning,
};
use super::{describe, graphs};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::quant::{GgmlType, can_dequantize};
use crate::{Error, Result};

/// The files whose kernels compute on matrix units.
const MATRIX_FILES: [&str; 3] = ["matmul.hip", "matmul_experts.hip", "attention_prefill.hip"];

/// What serves one op, of weights of one type, of a stack of two types, or of activations.
pub struct KernelRow {
    /// The type in the file, and that on the device: types without kernels of their own are dequantised at load.
    /// Only where the weights are of one type.
    pub weights: Option<(GgmlType, KernelType)>,
    pub op: String,
    pub kernels: Vec<String>,
    pub unit: Unit,
    /// Where the op is one for matrix units.
    pub matrix_unit: Option<MatrixUnit>,
    pub origin: Result<Origin>,
}

/// Loads everything that there is for the device, and lists it. `progress(done, total)` counts units; it says whether
/// to go on.
///
/// # Errors
/// `Error::Interrupted` if not. What cannot be loaded is an error in its row.
pub fn kernel_rows(
    device: &Device,
    options: &GpuOptions,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Vec<KernelRow>> {
    let kernels = Kernels::new(device, options)?;
    let units = Unit::all();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done = 0;
    for some in units.chunks(threads) {
        if let Err(error) = kernels.prepare(some) {
            // It is met again, and told, where the kernel is looked up.
            tracing::warn!(%error, "loading kernels");
        }
        done += some.len();
        if !progress(done, units.len()) {
            return Err(Error::Interrupted);
        }
    }
    let typed = GgmlType::ALL.iter().filter(|&&ty| can_dequantize(ty)).flat_map(|&ty| of_type(ty, options));
    let all = typed.chain(of_pairs(options)).chain(of_activations());
    Ok(all.map(|(weights, op, ids)| look_up(&kernels, weights, op, &ids)).collect())
}

type Wanted = (Option<(GgmlType, KernelType)>, String, Vec<KernelId>);

fn of_type(file_type: GgmlType, options: &GpuOptions) -> Vec<Wanted> {
    let ty = device_type(file_type);
    let most = MATMUL_ROWS.into_iter().max().unwrap_or(1);
    let ops = [
        ("embedding rows", vec![KernelId::embed(ty)]),
        ("product of 1 row", product(ty, 1..=1, options)),
        ("product of more rows", product(ty, 2..=most, options)),
        ("dequantise", vec![KernelId::dequantize(ty)]),
        ("products of experts' rows", expert_products(ty, options)),
    ];
    ops.into_iter().map(|(op, ids)| (Some((file_type, ty)), op.to_owned(), ids)).collect()
}

/// The kernels that products of so many rows are launched with, each once. Which one it is depends on the rows alone.
fn product(ty: KernelType, rows: std::ops::RangeInclusive<u32>, options: &GpuOptions) -> Vec<KernelId> {
    let invariant = options.batch_invariant;
    let mut ids = Vec::new();
    for rows in rows {
        let format = tuning::activation_format(ty.matmul_format(), rows as usize, invariant, None);
        let id = match (format.is_f32(), invariant) {
            (true, _) => KernelId::gemv(ty),
            (false, true) => KernelId::matmul(ty, tuning::invariant_matmul(rows, 1).n),
            (false, false) => KernelId::matmul(ty, tuning::matmul(rows, 1, 1, 1).n),
        };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Stacks of two types, in one launch.
fn of_pairs(options: &GpuOptions) -> Vec<Wanted> {
    let pairs = if options.batch_invariant { &[][..] } else { &KernelType::PAIRS[..] };
    let ops = pairs.iter().flat_map(|&pair| {
        let [first, second] = pair.map(KernelType::name);
        [
            (format!("product of 1 row, {first} with {second}"), vec![KernelId::gemv_pair(pair)]),
            (
                format!("product of few rows, {first} with {second}"),
                MATMUL_PAIR_ROWS.map(|rows| KernelId::matmul_pair(pair, rows)).to_vec(),
            ),
        ]
    });
    ops.map(|(op, ids)| (None, op, ids)).collect()
}

/// The kernels that products of many rows by experts are launched with; few rows go where a single row goes.
fn expert_products(ty: KernelType, options: &GpuOptions) -> Vec<KernelId> {
    let runs = EXPERT_RUNS.into_iter().filter(|&run| {
        let pairs = run as usize;
        tuning::expert_run(pairs, 1, options.batch_invariant) == Some(run)
    });
    match ty.matmul_format() {
        Some(_) => runs.map(|run| KernelId::matmul_experts(ty, run)).collect(),
        None => vec![KernelId::gemv(ty)],
    }
}

fn of_activations() -> Vec<Wanted> {
    let caches = [KvCacheDtype::F16, KvCacheDtype::F32];
    let attention = |kernel: fn(KvCacheDtype, u32) -> KernelId| -> Vec<KernelId> {
        caches.into_iter().flat_map(|cache| HEAD_SIZES.map(|size| kernel(cache, size))).collect()
    };
    let ops = [
        ("numbers of a step", vec![KernelId::copy_step()]),
        ("test of recorded steps", vec![KernelId::link_steps()]),
        ("RMSNorm", vec![KernelId::prepare()]),
        ("RoPE angles", vec![KernelId::rope_angles()]),
        ("RoPE and store in the KV cache", caches.map(KernelId::rope_store).to_vec()),
        ("attention, decode", [KernelId::attention_decode, KernelId::attention_decode_head].map(attention).concat()),
        ("attention, prefill", attention(KernelId::attention_prefill)),
        ("gated activation", vec![KernelId::gated_activation()]),
        ("gather rows", vec![KernelId::gather_rows()]),
        ("experts of a row", vec![KernelId::choose_experts()]),
        ("rows by expert", vec![KernelId::place_experts()]),
        ("sum over experts", vec![KernelId::add_experts()]),
        ("copy KV blocks", vec![KernelId::copy_blocks()]),
        ("bias and penalties", vec![KernelId::alter_logits()]),
        ("argmax", vec![KernelId::argmax()]),
        ("top-k", vec![KernelId::top_k()]),
        ("measurements of the device", vec![KernelId::probe_nothing(), KernelId::probe_read()]),
    ];
    ops.into_iter().map(|(op, ids)| (None, op.to_owned(), ids)).collect()
}

/// All kernels of an op are of one unit.
fn look_up(kernels: &Kernels, weights: Option<(GgmlType, KernelType)>, op: String, ids: &[KernelId]) -> KernelRow {
    let unit = ids.first().map_or(Unit::plain(""), |id| id.unit);
    let found = ids.iter().try_for_each(|id| kernels.function(id).map(drop));
    let origin = found.and_then(|()| {
        kernels.origin(unit).ok_or_else(|| Error::internal(format!("{} was loaded and is not there", unit.name())))
    });
    KernelRow {
        weights,
        op,
        kernels: ids.iter().map(|id| id.name.clone()).collect(),
        unit,
        matrix_unit: kernels.matrix_unit(unit).filter(|_| MATRIX_FILES.contains(&unit.file)),
        origin,
    }
}

/// Whether decode steps are recorded on the device, which is tested as at a load, or why they are not.
pub fn recorded_steps(device: &Device, options: &GpuOptions) -> String {
    let usable = || graphs::usable(&Kernels::new(device, options)?, &Stream::new(device)?, options);
    // What cannot be tested cannot be used.
    describe::decode_steps(&usable().unwrap_or_else(|error| Err(error.to_string())))
}

/// The vendor's matrix library and what it is used for, or why it is not.
pub fn matrix_library(device: &Device, options: &GpuOptions) -> String {
    if let Err(reason) = vendor::wanted(options, device.properties()) {
        return format!("not used: {reason}");
    }
    match VendorBlas::locate(device, options) {
        Ok(library) => format!(
            "{}, if it is right with the shapes of the model: products of {} rows and more with 16-bit weights; with others of {} and more where memory allows to keep \
             them dequantised, else of {} and more",
            library.canonicalize().unwrap_or(library).display(),
            tuning::library_rows(true, true),
            tuning::library_rows(false, true),
            tuning::library_rows(false, false),
        ),
        Err(problem) => format!("none, so products of any number of rows use the kernels above: {problem}"),
    }
}
