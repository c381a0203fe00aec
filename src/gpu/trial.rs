//! The GPU's part of `rocmforge doctor --test`: loaders for the cases of every backend.

use super::capture::replay_check;
use super::{Device, GpuLoader, Kernels, Stream};
use crate::Result;
use crate::backend::StepLimits;
use crate::config::{GpuOptions, Tuned, TunedNumber};

/// Replays a captured graph like at a load, even if graphs are off by default. The inner error is the fault that was
/// found.
///
/// # Errors
/// The errors of the device.
pub fn repeat_graph(device: &Device, options: &GpuOptions) -> Result<std::result::Result<(), String>> {
    replay_check::check_graphs(&Kernels::new(device, options)?, &Stream::new(device)?)
}

/// Returns the launch parameters in use on the device.
pub fn tuned_numbers(device: &Device, options: &GpuOptions) -> Vec<Tuned> {
    let tuning = device.tuning(options);
    TunedNumber::ALL.into_iter().filter_map(|number| Some((number, tuning.number(number)?))).collect()
}

/// Creates a loader for cases with steps of up to `rows` tokens. The cases' tables are not all weights, so the
/// self-test is off.
///
/// # Errors
/// The errors of `GpuLoader::new`.
pub fn case_loader(device: &Device, options: &GpuOptions, rows: usize) -> Result<GpuLoader> {
    GpuLoader::new(device.clone(), &GpuOptions { self_test: false, ..options.clone() }, case_limits(rows))
}

/// Returns the step limits of such a loader. There are only as many sequences as the cases need, since each takes room
/// for its altered tokens.
pub fn case_limits(rows: usize) -> StepLimits {
    let seqs = rows.clamp(16, 64);
    let (table_blocks, state_writes) = (4096usize.div_ceil(seqs), 2 * seqs + rows);
    StepLimits { tokens: rows, seqs, logits_rows: rows, groups: 2, table_blocks, state_writes }
}
