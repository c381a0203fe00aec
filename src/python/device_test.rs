//! Functions behind `rocmforge doctor --test`: each tests or measures one matter on one device, which goes by a name
//! that `LLM` takes. `watch(what)` is told of what is about to run.

use std::path::PathBuf;

use pyo3::prelude::*;

use super::host::engine_args;
use super::logging::{flush, prepare};
use crate::Result;
use crate::backend::conformance::{Extent, Group};
use crate::config::EngineArgs;
use crate::diagnose::device_test;

type Watcher = Option<Py<PyAny>>;

/// A `CaseGroup` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(super) struct CaseGroup {
    name: String,
    cases: u64,
    numbers: u64,
    worst: f64,
    wrong: u64,
    problems: Vec<String>,
}

impl From<Group> for CaseGroup {
    fn from(group: Group) -> Self {
        let Group { name, cases, numbers, worst, wrong, texts } = group;
        Self { name, cases, numbers, worst, wrong, problems: texts }
    }
}

/// The cases of every op and tensor type: a dictionary for each group of them.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None))]
pub(super) fn device_cases(py: Python<'_>, device: &str, quick: bool, watch: Watcher) -> PyResult<Vec<CaseGroup>> {
    let groups = watched(py, device, watch, |args, watch| device_test::cases(args, extent(quick), watch))?;
    Ok(groups.into_iter().map(CaseGroup::from).collect())
}

/// Results that several blocks of threads share, each `repetitions` times.
#[pyfunction]
#[pyo3(signature = (device, *, repetitions, quick=false, watch=None))]
pub(super) fn device_repeats(
    py: Python<'_>,
    device: &str,
    repetitions: usize,
    quick: bool,
    watch: Watcher,
) -> PyResult<Vec<CaseGroup>> {
    let repeats = |args: &EngineArgs, watch: device_test::Watch<'_>| {
        device_test::repeats(args, extent(quick), repetitions, watch)
    };
    let groups = watched(py, device, watch, repeats)?;
    Ok(groups.into_iter().map(CaseGroup::from).collect())
}

/// A `LibraryReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(super) struct LibraryReport {
    not_used: Option<String>,
    file: Option<String>,
    tried: Vec<TriedShape>,
}

/// A `TriedShape` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
struct TriedShape {
    shape: &'static str,
    products: usize,
    problem: Option<String>,
}

/// The vendor's matrix library: its file and what it makes of shapes of common models, or why it is not used.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None))]
pub(super) fn device_matrix_library(
    py: Python<'_>,
    device: &str,
    quick: bool,
    watch: Watcher,
) -> PyResult<LibraryReport> {
    let survey = watched(py, device, watch, |args, watch| device_test::matrix_library(args, extent(quick), watch))?;
    Ok(match survey {
        Err(not_used) => LibraryReport { not_used: Some(not_used), file: None, tried: Vec::new() },
        Ok(survey) => {
            let shapes = survey.tried.into_iter();
            let shapes =
                shapes.map(|tried| TriedShape { shape: tried.name, products: tried.products, problem: tried.problem });
            let file = Some(survey.file.display().to_string());
            LibraryReport { not_used: None, file, tried: shapes.collect() }
        }
    })
}

/// A `BandwidthReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(super) struct BandwidthReport {
    device_bytes: u64,
    host_bytes: u64,
    to_device: f64,
    to_host: f64,
    on_device: f64,
    read: f64,
}

/// Bytes per second of copies and reads of a GPU.
#[pyfunction]
#[pyo3(signature = (device, *, num_bytes, host_bytes))]
pub(super) fn device_bandwidth(
    py: Python<'_>,
    device: &str,
    num_bytes: u64,
    host_bytes: u64,
) -> PyResult<BandwidthReport> {
    let found = watched(py, device, None, |args, _| device_test::bandwidth(args, num_bytes, host_bytes))?;
    Ok(BandwidthReport {
        device_bytes: found.device_bytes,
        host_bytes: found.host_bytes,
        to_device: found.to_device,
        to_host: found.to_host,
        on_device: found.on_device,
        read: found.read,
    })
}

/// A `LaunchReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(super) struct LaunchReport {
    launches: usize,
    eager: f64,
    call: f64,
    graph_node: f64,
    graph: f64,
}

/// Seconds that launches of empty kernels take, one by one and in graphs.
#[pyfunction]
#[pyo3(signature = (device, *, count))]
pub(super) fn device_launches(py: Python<'_>, device: &str, count: usize) -> PyResult<LaunchReport> {
    let found = watched(py, device, None, |args, _| device_test::launches(args, count))?;
    Ok(LaunchReport {
        launches: found.launches,
        eager: found.eager,
        call: found.call,
        graph_node: found.graph_node,
        graph: found.graph,
    })
}

fn extent(is_quick: bool) -> Extent {
    if is_quick { Extent::Quick } else { Extent::Full }
}

/// Runs `work` detached from the interpreter. Ctrl-C, or an exception of `watch`, stops it and is raised.
fn watched<T: Send>(
    py: Python<'_>,
    device: &str,
    watch: Watcher,
    work: impl FnOnce(&EngineArgs, device_test::Watch<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    prepare(py)?;
    let mut args = engine_args(py, PathBuf::new())?;
    args.choose_device("device", device)?;
    let mut raised: Option<PyErr> = None;
    let mut tell = |what: &str| {
        let told = Python::attach(|py| {
            py.check_signals()?;
            watch.as_ref().map_or(Ok(()), |watch| watch.call1(py, (what,)).map(drop))
        });
        raised = told.err();
        raised.is_none()
    };
    let result = py.detach(|| work(&args, &mut tell));
    flush(py);
    match raised {
        Some(error) => Err(error),
        None => Ok(result?),
    }
}
