//! Names the device, and the kernel for each tensor type and op, at start-up and in `doctor`.

use crate::capture::graphs::{Graphs, Usable};
use crate::capture::steps::{FEW_ROWS, StepKernels};
use crate::tuning::Tuning;
use crate::{DeviceProperties, KernelType, Kernels, Origin, Unit};

/// Returns one line about them, a sentence per topic.
pub(crate) fn describe(
    properties: &DeviceProperties,
    tuning: &Tuning,
    kernels: &Kernels,
    types: &[KernelType],
    long_prompts: &str,
    graphs: &Graphs,
    step_kernels: &StepKernels,
) -> String {
    let types: Vec<_> = types.iter().map(|&ty| of_type(kernels, ty)).collect();
    let origin = kernels.origin(Unit::plain("rows.hip")).map_or_else(String::new, |o| origin(&o));
    format!(
        "{} ({}, {}), {} multiprocessors, tuned as {tuning}; norms, rope, attention, sampling: {origin}; linear: {}; long prompts: {long_prompts}; {}{}{}{}",
        properties.name,
        properties.arch,
        properties.driver,
        properties.multiprocessors,
        types.join(", "),
        decode_steps(graphs.usable()),
        match graphs.left_out() {
            0 => String::new(),
            some => format!(", but the {some} largest op by op: graphs take more memory than is left for them"),
        },
        kernels_of_steps(step_kernels),
        if tuning.is_batch_invariant() { "; batch-invariant" } else { "" },
    )
}

/// Says how decode steps are launched.
pub(crate) fn decode_steps(captured: &Usable) -> String {
    match captured {
        Ok(()) => "decode steps: captured and replayed".to_owned(),
        Err(reason) => format!("decode steps: op by op, slower ({reason})"),
    }
}

/// Says how many kernels a decode step launches: of one sequence, and of a few together.
fn kernels_of_steps(step_kernels: &StepKernels) -> String {
    let one = step_kernels.get(&1).map(|kernels| format!("{kernels} for 1 sequence"));
    let few = step_kernels.range(2..=FEW_ROWS).next_back().map(|(rows, kernels)| format!("{kernels} for {rows}"));
    let both: Vec<_> = [one, few].into_iter().flatten().collect();
    if both.is_empty() { String::new() } else { format!("; kernels of a decode step: {}", both.join(", ")) }
}

fn of_type(kernels: &Kernels, ty: KernelType) -> String {
    let unit = |file| kernels.origin(Unit::typed(file, ty)).map_or_else(String::new, |o| origin(&o));
    let matmul = match ty.matmul_format() {
        Some(_) => format!("matmul {}", unit("matmul.hip")),
        None => "gemv for any rows, slow".to_owned(),
    };
    format!("{} (gemv {}, {matmul})", ty.name(), unit("gemv.hip"))
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Compiled { seconds, .. } => format!("{origin} in {seconds:.1} s"),
        _ => origin.to_string(),
    }
}
