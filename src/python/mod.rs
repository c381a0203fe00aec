//! The Python bindings, and with `core/python.rs` the only place that names pyo3. Classes are frozen, and methods are
//! thin: extract, detach, call, wrap. `python/rocmforge` builds the public interface on top of them.

mod cancel;
mod engine;
mod events;
mod handle;
mod host;
mod interpreter;
mod isolation;
mod logging;
mod outputs;
mod params;
mod pooling;
mod reports;
mod requests;
mod settings;
mod structured;
mod tokenizer;
mod values;

/// `gil_used = false`: every class is frozen, and its shared state is behind locks or channels.
#[pyo3::pymodule(gil_used = false)]
mod _rocmforge {
    #[pymodule_export]
    use super::cancel::PyCancelScope;
    #[pymodule_export]
    use super::engine::PyEngine;
    #[pymodule_export]
    use super::host::run_helper;
    #[pymodule_export]
    use super::isolation::{PyRemoteInbox, PyRemoteOutputs, PyRingInbox, PyRingReader};
    #[pymodule_export]
    use super::logging::{py_log_level, set_log_level};
    #[pymodule_export]
    use super::outputs::update::{PyCompletionUpdate, PyRequestUpdate, PyUpdateMetrics};
    #[pymodule_export]
    use super::params::PySamplingParams;
    #[pymodule_export]
    use super::pooling::PyPoolingParams;
    #[pymodule_export]
    use super::reports::device_test::{
        device_bandwidth, device_cases, device_launches, device_matrix_library, device_repeated_graph, device_repeats,
        device_tuning,
    };
    #[pymodule_export]
    use super::reports::doctor::{chosen_device, doctor, embedded_targets};
    #[pymodule_export]
    use super::reports::inspect::{check_gguf, device_support, inspect_gguf};
    #[pymodule_export]
    use super::requests::{PyAccepted, PyInbox};
    #[pymodule_export]
    use super::settings::{default_settings, uses_gpu};
    #[pymodule_export]
    use super::structured::{PyStructuredOutputs, grammar_in_lark};
    #[pymodule_export]
    use super::tokenizer::{PyChatPrompt, PyTokenizer};
    #[pymodule_export]
    use super::values::body::PyJsonBody;
    #[pymodule_export]
    use super::values::image::PyImage;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::refuse_sub_interpreters(module.py())?;
        super::logging::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
