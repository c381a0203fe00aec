//! `PoolingParams` in Python, and the parameters of both kinds of requests.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use super::params::PySamplingParams;
use super::values::arrays::text;
use crate::config::{OutputKind, PoolingParams, RequestParams};

/// Settings of an embedding request. Immutable; checked when created.
#[pyclass(frozen, name = "PoolingParams", module = "rocmforge._rocmforge")]
pub(super) struct PyPoolingParams(PoolingParams);

#[pymethods]
impl PyPoolingParams {
    #[new]
    fn new(pooling: &Bound<'_, PyString>, normalize: bool) -> PyResult<Self> {
        Ok(Self(PoolingParams::named(&text("pooling", pooling)?, normalize)?))
    }

    #[getter]
    fn pooling(&self) -> &'static str {
        self.0.pooling_name()
    }

    #[getter]
    fn normalize(&self) -> bool {
        self.0.normalize
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let params = slf.get().0;
        let values = (params.pooling_name(), params.normalize).into_pyobject(slf.py())?;
        Ok((slf.get_type(), values))
    }
}

/// The parameters of a request for tokens, or of a request for an embedding.
#[derive(FromPyObject)]
pub(super) enum PyParams<'py> {
    Sampling(Bound<'py, PySamplingParams>),
    Pooling(Bound<'py, PyPoolingParams>),
}

impl PyParams<'_> {
    pub(super) fn get(&self) -> RequestParams {
        match self {
            Self::Sampling(params) => params.get().0.clone().into(),
            Self::Pooling(params) => RequestParams::Pooling(params.get().0),
        }
    }
}

/// True if all outputs of a request are delivered at once.
pub(super) fn keeps_all(params: &RequestParams, final_only: bool) -> bool {
    let wanted = matches!(params, RequestParams::Sampling(params) if params.output_kind == OutputKind::FinalOnly);
    final_only || wanted
}
