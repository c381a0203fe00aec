//! Instances of the public dataclasses of Python. A struct in Rust names the fields of one of them, and the class
//! refuses names that it does not have.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

/// The fields of a dataclass.
pub(super) trait Fields {
    /// The dataclass itself, imported when it is first asked for.
    fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>>;
}

/// Says whose fields a struct has: `fields_of!(StatsFields<'_>, "rocmforge.stats", "Stats")`.
macro_rules! fields_of {
    ($fields:ty, $module:literal, $name:literal) => {
        impl crate::python::dataclass::Fields for $fields {
            fn class(py: pyo3::Python<'_>) -> pyo3::PyResult<&pyo3::Bound<'_, pyo3::types::PyType>> {
                static CLASS: pyo3::sync::PyOnceLock<pyo3::Py<pyo3::types::PyType>> = pyo3::sync::PyOnceLock::new();
                CLASS.import(py, $module, $name)
            }
        }
    };
}
pub(super) use fields_of;

/// Fields that become an instance of their dataclass.
pub(super) struct Instance<T>(pub(super) T);

impl<'py, T> IntoPyObject<'py> for Instance<T>
where
    T: Fields + IntoPyObject<'py, Target = PyDict, Output = Bound<'py, PyDict>, Error = PyErr>,
{
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        T::class(py)?.call((), Some(&self.0.into_pyobject(py)?))
    }
}
