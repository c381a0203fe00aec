//! Functions behind `rocmforge doctor --test`. Each runs one test or measurement on one device, given by a name that
//! `LLM` accepts. `watch(what)` is called with the part that is about to run, `done(group)` with each result so far.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::Result;
use crate::config::{EngineArgs, Tuned};
use crate::conformance::{Extent, Group};
use crate::diagnose::device_test;
use crate::python::host::engine_args;
use crate::python::logging::{flush, prepare};

type Watcher = Option<Py<PyAny>>;
type Receiver = Option<Py<PyAny>>;

/// A `CaseGroup` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct CaseGroup {
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

/// Runs the cases of every op and tensor type. Returns a dictionary for each group of cases.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None, done=None))]
pub(in crate::python) fn device_cases(
    py: Python<'_>,
    device: &str,
    quick: bool,
    watch: Watcher,
    done: Receiver,
) -> PyResult<Vec<CaseGroup>> {
    let cases = |args: &EngineArgs, watch: device_test::Watch<'_>, done: device_test::Done<'_>| {
        device_test::cases(args, extent(quick), watch, done)
    };
    reported(py, device, watch, done, cases)
}

/// Repeats computations that several thread blocks share, `repetitions` times each.
#[pyfunction]
#[pyo3(signature = (device, *, repetitions, quick=false, watch=None, done=None))]
pub(in crate::python) fn device_repeats(
    py: Python<'_>,
    device: &str,
    repetitions: usize,
    quick: bool,
    watch: Watcher,
    done: Receiver,
) -> PyResult<Vec<CaseGroup>> {
    let repeats = |args: &EngineArgs, watch: device_test::Watch<'_>, done: device_test::Done<'_>| {
        device_test::repeats(args, extent(quick), repetitions, watch, done)
    };
    reported(py, device, watch, done, repeats)
}

/// A `LibraryReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct LibraryReport {
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

/// Reports the file of the vendor's matrix library and its results on shapes of common models, or why it is not used.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None))]
pub(in crate::python) fn device_matrix_library(
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

/// Repeats a captured graph, even on devices without graph capture by default. Returns the problem, if any.
#[pyfunction]
pub(in crate::python) fn device_repeated_graph(py: Python<'_>, device: &str) -> PyResult<Option<String>> {
    watched(py, device, None, |args, _| device_test::repeat_graph(args)).map(std::result::Result::err)
}

/// A `TunedNumber` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
struct TunedNumber {
    name: &'static str,
    value: u32,
    candidates: Vec<u32>,
}

/// A `TuningReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct TuningReport {
    device: String,
    tuned_as: String,
    numbers: Vec<TunedNumber>,
}

/// Returns the launch parameters of a GPU's kernels, and alternative values to try.
#[pyfunction]
pub(in crate::python) fn device_tuning(py: Python<'_>, device: &str) -> PyResult<TuningReport> {
    let device_test::Tuning { device, tuned_as, numbers } =
        watched(py, device, None, |args, _| device_test::tuning(args))?;
    let number =
        |(number, value): Tuned| TunedNumber { name: number.name(), value, candidates: number.candidates().to_vec() };
    Ok(TuningReport { device, tuned_as, numbers: numbers.into_iter().map(number).collect() })
}

/// A `BandwidthReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct BandwidthReport {
    device_bytes: u64,
    host_bytes: u64,
    to_device: f64,
    to_host: f64,
    on_device: f64,
    read: f64,
}

/// Returns the bytes per second of copies and reads on a GPU.
#[pyfunction]
#[pyo3(signature = (device, *, num_bytes, host_bytes))]
pub(in crate::python) fn device_bandwidth(
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
pub(in crate::python) struct LaunchReport {
    launches: usize,
    eager: f64,
    call: f64,
    graph_node: f64,
    graph: f64,
}

/// Returns the seconds for launches of empty kernels, one by one and in graphs.
#[pyfunction]
#[pyo3(signature = (device, *, count))]
pub(in crate::python) fn device_launches(py: Python<'_>, device: &str, count: usize) -> PyResult<LaunchReport> {
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

/// Runs cases as `watched` does, and calls `done` with each group after its last case.
fn reported(
    py: Python<'_>,
    device: &str,
    watch: Watcher,
    done: Receiver,
    work: impl FnOnce(&EngineArgs, device_test::Watch<'_>, device_test::Done<'_>) -> Result<Vec<Group>> + Send,
) -> PyResult<Vec<CaseGroup>> {
    let mut raised: Option<PyErr> = None;
    let mut tell = |group: &Group| {
        let Some(done) = &done else { return };
        let told = Python::attach(|py| done.call1(py, (CaseGroup::from(group.clone()),)).map(drop));
        raised = raised.take().or(told.err());
    };
    let groups = watched(py, device, watch, |args, watch| work(args, watch, &mut tell))?;
    match raised {
        Some(error) => Err(error),
        None => Ok(groups.into_iter().map(CaseGroup::from).collect()),
    }
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
