//! Lists the kernels for each tensor type and op on a device, as `doctor` prints them. Each is looked up in the loaded
//! code.

pub(crate) mod describe;
pub mod measure;

use super::capture::graphs;
use super::compile::plan::Per;
use super::compile::{MatrixUnit, Origin, target_for};
use super::launch::catalog::{
    GEMV, MATMUL, MATMUL_EXPERTS, MATMUL_GATED, MATMUL_GATED_EXPERTS, Row, Subject, TABLE, Variant,
};
use super::system::System;
use super::tuning::Tuning;
use super::vendor::{self, blas::VendorBlas};
use super::{Device, EXPERT_RUNS, KernelId, KernelType, Kernels, MATMUL_ROWS, Stream, Unit};
use crate::config::{GpuOptions, Platform};
use crate::{Error, Result};

/// The kernels of one op, for weights of one type, for a stack of two types, or for activations.
pub struct KernelRow {
    /// `None` unless the weights have one type.
    pub weights: Option<KernelType>,
    pub op: String,
    pub kernels: Vec<String>,
    pub unit: Unit,
    /// The matrix unit that the code uses, if the op has kernels for matrix units.
    pub matrix_unit: Option<MatrixUnit>,
    pub origin: Result<Origin>,
}

/// Loads all units of the device and lists their kernels. `progress(done, total)` counts units, and returns false to
/// stop.
///
/// # Errors
/// `Error::Interrupted` if it was stopped. A kernel that cannot be loaded is an error in its row.
pub fn kernel_rows(
    device: &Device,
    options: &GpuOptions,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Vec<KernelRow>> {
    let kernels = Kernels::new(device, options)?;
    let platform = kernels.platform();
    let units = Unit::all();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut done = 0;
    for some in units.chunks(threads) {
        if let Err(error) = kernels.prepare(some) {
            // Looking up the kernel below meets this error again and reports it.
            tracing::warn!(%error, "loading kernels");
        }
        done += some.len();
        if !progress(done, units.len()) {
            return Err(Error::Interrupted);
        }
    }
    let tuning = device.tuning(options);
    let of_types = KernelType::ALL.iter().flat_map(|&ty| of_type(ty, &tuning, platform));
    let pairs = if tuning.matmul.most_pair_rows > 0 { &KernelType::PAIRS[..] } else { &[] };
    let of_pairs = pairs.iter().flat_map(|&pair| of_pair(pair, platform));
    let all = of_types.chain(of_pairs).chain(of_activations(platform));
    Ok(all.map(|(weights, op, ids)| look_up(&kernels, weights, op, &ids)).collect())
}

/// The type of an op's weights, the op's name, and the kernels that it launches.
type Wanted = (Option<KernelType>, String, Vec<KernelId>);

/// Yields the table's rows that `doctor` lists, for kernels that are compiled per one of these.
fn listed(per: &'static [Per]) -> impl Iterator<Item = (&'static Row, &'static str)> {
    TABLE.iter().filter(|row| per.contains(&row.per)).filter_map(|row| Some((row, row.op?)))
}

/// Returns the kernels of a row that are compiled for `subject`.
fn ids_of(row: &Row, subject: Subject, platform: Platform) -> Vec<KernelId> {
    let variants = row.variants(platform).into_iter().filter(|variant| variant.subject() == subject);
    variants.map(|variant| row.id(variant)).collect()
}

/// Returns the rows for a type's ops.
pub(super) fn of_type(ty: KernelType, tuning: &Tuning, platform: Platform) -> impl Iterator<Item = Wanted> {
    let most = MATMUL_ROWS.into_iter().max().unwrap_or(1);
    listed(&[Per::Type]).map(move |(row, op)| {
        // The kernel of a product depends on its rows and on the mode.
        let ids = if row.is(GEMV) {
            product(ty, 1..=1, tuning, |variant| MATMUL.id(variant))
        } else if row.is(MATMUL) {
            product(ty, 2..=most, tuning, |variant| MATMUL.id(variant))
        } else if row.is(MATMUL_GATED) {
            product(ty, 2..=most, tuning, |variant| MATMUL_GATED.id(variant))
        } else if row.is(MATMUL_EXPERTS) {
            expert_products(ty, tuning, |variant| MATMUL_EXPERTS.id(variant))
        } else if row.is(MATMUL_GATED_EXPERTS) {
            expert_products(ty, tuning, |variant| MATMUL_GATED_EXPERTS.id(variant))
        } else {
            ids_of(row, Subject::Type(ty), platform)
        };
        (Some(ty), op.to_owned(), ids)
    })
}

/// Returns the kernels that launch products of these numbers of rows, each once. `kernel` returns that of the matrix
/// units. The choice depends only on the rows.
fn product(
    ty: KernelType,
    rows: std::ops::RangeInclusive<u32>,
    tuning: &Tuning,
    kernel: impl Fn(Variant) -> KernelId,
) -> Vec<KernelId> {
    let mut ids = Vec::new();
    for rows in rows {
        let format = tuning.activation_format(ty.matmul_format(), rows as usize, None);
        let id = match format.is_f32() {
            true => GEMV.id(ty),
            false => kernel(Variant::with_rows(ty, tuning.matmul(rows, 1, 1, 1).n)),
        };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Returns the kernels that launch experts' products of many rows. Few rows use the kernel of a single row.
fn expert_products(ty: KernelType, tuning: &Tuning, kernel: impl Fn(Variant) -> KernelId) -> Vec<KernelId> {
    let runs = EXPERT_RUNS.into_iter().filter(|&run| tuning.expert_run(run as usize, 1, 1) == Some(run));
    match ty.matmul_format() {
        Some(_) => runs.map(|run| kernel(Variant::with_rows(ty, run))).collect(),
        None => vec![GEMV.id(ty)],
    }
}

/// Returns the rows for a stack of two types that is multiplied in one launch.
fn of_pair(pair: [KernelType; 2], platform: Platform) -> impl Iterator<Item = Wanted> {
    let [first, second] = pair.map(KernelType::name);
    listed(&[Per::Pair]).map(move |(row, op)| {
        (None, format!("{op}, {first} with {second}"), ids_of(row, Subject::Pair(pair), platform))
    })
}

fn of_activations(platform: Platform) -> Vec<Wanted> {
    let mut ops: Vec<(&Row, Wanted)> = Vec::new();
    for (row, op) in listed(&[Per::Once, Per::Cache, Per::LatentCache, Per::Head, Per::VectorHead, Per::MatrixHead]) {
        let ids = row.variants(platform).into_iter().map(|variant| row.id(variant));
        match ops.last_mut() {
            Some((last, (_, of_last, known))) if last.file == row.file && of_last == op => known.extend(ids),
            _ => ops.push((row, (None, op.to_owned(), ids.collect()))),
        }
    }
    ops.into_iter().map(|(_, wanted)| wanted).collect()
}

/// Looks up the kernels of an op, all in one unit.
fn look_up(kernels: &Kernels, weights: Option<KernelType>, op: String, ids: &[KernelId]) -> KernelRow {
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
        matrix_unit: kernels.matrix_unit(unit).filter(|_| unit.on_matrix_units()),
        origin,
    }
}

/// Returns facts about the system that decide if AMD's library finds a GPU, one per line.
pub fn system_lines(options: &GpuOptions) -> Vec<String> {
    System::look(options).lines(|arch| target_for(arch).is_some())
}

/// Says if decode steps are captured on the device, tested like at load, or why not.
pub fn graph_capture(device: &Device, options: &GpuOptions) -> String {
    let usable = || graphs::usable(&Kernels::new(device, options)?, &Stream::new(device)?, options);
    // Captured graphs that cannot be tested are not used.
    describe::decode_steps(&usable().unwrap_or_else(|error| Err(error.to_string())))
}

/// Describes the vendor's matrix library and its use, or says why it is not used.
pub fn matrix_library(device: &Device, options: &GpuOptions) -> String {
    let rows = match vendor::wanted(options, device.properties(), &device.tuning(options)) {
        Ok(rows) => rows,
        Err(reason) => return format!("not used: {reason}"),
    };
    match VendorBlas::locate(device, options) {
        Ok(library) => format!(
            "{}, if its results are right for the shapes of the model. It serves products of at least {} rows with 16-bit \
             weights. Other types: at least {} rows if memory can keep them dequantized, otherwise at least {}",
            library.canonicalize().unwrap_or(library).display(),
            rows.rows_16_bit,
            rows.rows_kept,
            rows.rows_dequantised,
        ),
        Err(problem) => format!("none, so products of any number of rows use the kernels above: {problem}"),
    }
}
