//! `PoolingParams` as Python sees them, and the parameters of either kind of request.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use super::arrays::text;
use super::params::PySamplingParams;
use crate::config::{OutputKind, PoolingParams, RequestParams};

/// Settings of a request for a vector. Immutable; checked when made.
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

/// The parameters of a request for tokens, or of one for a vector.
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

/// Whether all of a request's outputs are to come at once.
pub(super) fn keeps_all(params: &RequestParams, final_only: bool) -> bool {
    let wanted = matches!(params, RequestParams::Sampling(params) if params.output_kind == OutputKind::FinalOnly);
    final_only || wanted
}
