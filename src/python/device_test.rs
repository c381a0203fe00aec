//! Functions behind `rocmforge doctor --test`: each tests or measures one matter on one device, which goes by a name
//! that `LLM` takes. `watch(what)` is told of what is about to run.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::host::engine_args;
use super::logging::{flush, prepare};
use crate::Result;
use crate::backend::conformance::{Extent, Group};
use crate::config::EngineArgs;
use crate::engine::device_test;

type Watcher = Option<Py<PyAny>>;

/// The cases of every op and tensor type: a dictionary for each group of them.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None))]
pub(super) fn device_cases<'py>(
    py: Python<'py>,
    device: &str,
    quick: bool,
    watch: Watcher,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let groups = watched(py, device, watch, |args, watch| device_test::cases(args, extent(quick), watch))?;
    groups.iter().map(|group| group_dict(py, group)).collect()
}

/// Results that several blocks of threads share, each `repetitions` times.
#[pyfunction]
#[pyo3(signature = (device, *, repetitions, quick=false, watch=None))]
pub(super) fn device_repeats<'py>(
    py: Python<'py>,
    device: &str,
    repetitions: usize,
    quick: bool,
    watch: Watcher,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let repeats = |args: &EngineArgs, watch: device_test::Watch<'_>| {
        device_test::repeats(args, extent(quick), repetitions, watch)
    };
    let groups = watched(py, device, watch, repeats)?;
    groups.iter().map(|group| group_dict(py, group)).collect()
}

/// The vendor's matrix library: its file and what it makes of shapes of common models, or why it is not used.
#[pyfunction]
#[pyo3(signature = (device, *, quick=false, watch=None))]
pub(super) fn device_matrix_library<'py>(
    py: Python<'py>,
    device: &str,
    quick: bool,
    watch: Watcher,
) -> PyResult<Bound<'py, PyDict>> {
    let survey = watched(py, device, watch, |args, watch| device_test::matrix_library(args, extent(quick), watch))?;
    let dict = PyDict::new(py);
    dict.set_item("not_used", survey.as_ref().err())?;
    dict.set_item("file", survey.as_ref().ok().map(|survey| survey.file.display().to_string()))?;
    let tried = survey.iter().flat_map(|survey| &survey.tried).map(|tried| {
        let dict = PyDict::new(py);
        dict.set_item("shape", tried.name)?;
        dict.set_item("products", tried.products)?;
        dict.set_item("problem", &tried.problem)?;
        Ok(dict)
    });
    dict.set_item("tried", tried.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}

/// Bytes per second of copies and reads of a GPU.
#[pyfunction]
#[pyo3(signature = (device, *, num_bytes, host_bytes))]
pub(super) fn device_bandwidth<'py>(
    py: Python<'py>,
    device: &str,
    num_bytes: u64,
    host_bytes: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let found = watched(py, device, None, |args, _| device_test::bandwidth(args, num_bytes, host_bytes))?;
    let dict = PyDict::new(py);
    dict.set_item("device_bytes", found.device_bytes)?;
    dict.set_item("host_bytes", found.host_bytes)?;
    dict.set_item("to_device", found.to_device)?;
    dict.set_item("to_host", found.to_host)?;
    dict.set_item("on_device", found.on_device)?;
    dict.set_item("read", found.read)?;
    Ok(dict)
}

/// Seconds that launches of empty kernels take, one by one and in graphs.
#[pyfunction]
#[pyo3(signature = (device, *, count))]
pub(super) fn device_launches<'py>(py: Python<'py>, device: &str, count: usize) -> PyResult<Bound<'py, PyDict>> {
    let found = watched(py, device, None, |args, _| device_test::launches(args, count))?;
    let dict = PyDict::new(py);
    dict.set_item("launches", found.launches)?;
    dict.set_item("eager", found.eager)?;
    dict.set_item("call", found.call)?;
    dict.set_item("graph_node", found.graph_node)?;
    dict.set_item("graph", found.graph)?;
    Ok(dict)
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

fn group_dict<'py>(py: Python<'py>, group: &Group) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &group.name)?;
    dict.set_item("cases", group.cases)?;
    dict.set_item("numbers", group.numbers)?;
    dict.set_item("worst", group.worst)?;
    dict.set_item("wrong", group.wrong)?;
    dict.set_item("problems", &group.texts)?;
    Ok(dict)
}
