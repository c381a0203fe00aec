//! The Python bindings: the only place that names pyo3.
