//! The GPU's side of `rocmforge doctor --test`, beside serving: loaders for the cases of every backend.

use super::{Device, GpuLoader};
use crate::Result;
use crate::backend::StepLimits;
use crate::config::GpuOptions;

/// A loader for cases with steps of up to `rows` tokens. Their tables are not all weights, so nothing is tested at
/// load.
///
/// # Errors
/// The errors of `GpuLoader::new`.
pub fn case_loader(device: &Device, options: &GpuOptions, rows: usize) -> Result<GpuLoader> {
    GpuLoader::new(device.clone(), &GpuOptions { self_test: false, ..options.clone() }, case_limits(rows))
}

/// The limits of the steps of such a loader. They have no more sequences than cases do, since there is room for the
/// altered tokens of each.
pub fn case_limits(rows: usize) -> StepLimits {
    let seqs = rows.clamp(16, 64);
    let (table_blocks, state_writes) = (4096usize.div_ceil(seqs), 2 * seqs + rows);
    StepLimits { tokens: rows, seqs, logits_rows: rows, groups: 2, table_blocks, state_writes }
}
