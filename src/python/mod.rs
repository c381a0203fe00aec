//! The Python bindings, and with `core/python.rs` the only place that names pyo3. Classes are frozen, and methods are
//! thin: extract, detach, call, wrap. `python/rocmforge` builds the public interface on top of them.

mod arrays;
mod body;
mod cancel;
mod device_test;
mod doctor;
mod engine;
mod events;
mod handle;
mod host;
mod image;
mod inspect;
mod interpreter;
mod isolation;
mod json;
mod logging;
mod merged;
mod output;
mod params;
mod pooling;
mod requests;
mod settings;
mod snapshots;
mod structured;
mod tokenizer;
mod update;

/// `gil_used = false`: every class is frozen, and its shared state is behind locks or channels.
#[pyo3::pymodule(gil_used = false)]
mod _rocmforge {
    #[pymodule_export]
    use super::body::PyJsonBody;
    #[pymodule_export]
    use super::cancel::PyCancelScope;
    #[pymodule_export]
    use super::device_test::{
        device_bandwidth, device_cases, device_launches, device_matrix_library, device_repeated_graph, device_repeats,
        device_tuning,
    };
    #[pymodule_export]
    use super::doctor::{chosen_device, doctor, embedded_targets};
    #[pymodule_export]
    use super::engine::PyEngine;
    #[pymodule_export]
    use super::host::run_helper;
    #[pymodule_export]
    use super::image::PyImage;
    #[pymodule_export]
    use super::inspect::{check_gguf, device_support, inspect_gguf};
    #[pymodule_export]
    use super::isolation::{PyRemoteInbox, PyRemoteOutputs, PyRingInbox, PyRingReader};
    #[pymodule_export]
    use super::logging::{py_log_level, set_log_level};
    #[pymodule_export]
    use super::params::PySamplingParams;
    #[pymodule_export]
    use super::pooling::PyPoolingParams;
    #[pymodule_export]
    use super::requests::{PyAccepted, PyInbox};
    #[pymodule_export]
    use super::settings::{default_settings, uses_gpu};
    #[pymodule_export]
    use super::structured::{PyStructuredOutputs, grammar_in_lark};
    #[pymodule_export]
    use super::tokenizer::{PyChatPrompt, PyTokenizer};
    #[pymodule_export]
    use super::update::{PyCompletionUpdate, PyRequestUpdate, PyUpdateMetrics};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::refuse_sub_interpreters(module.py())?;
        super::logging::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
