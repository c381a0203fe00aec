//! `JsonBody`: the body of a request, which holds up other threads of Python for a moment only, whatever its size.

use std::mem;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::json::{self, Limits, LoneSurrogates, Scalar, Sink, Text};
use crate::{Error, Result};

/// Values that are made between two pauses, about a quarter of a millisecond.
const VALUES_PER_PAUSE: usize = 2048;
/// Bytes of text that take as long as a value.
const BYTES_PER_VALUE: usize = 256;
/// Longer strings are decoded without the GIL.
const LONG: usize = 16 << 10;

/// The bytes of a body, until they are read.
#[pyclass(frozen, name = "JsonBody", module = "rocmforge._rocmforge")]
pub(in crate::python) struct PyJsonBody(Mutex<Vec<u8>>);

#[pymethods]
impl PyJsonBody {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Adds bytes at the end.
    fn push(&self, piece: &Bound<'_, PyBytes>) -> Result<()> {
        let (mut content, piece) = (self.0.lock(), piece.as_bytes());
        content.try_reserve(piece.len()).map_err(|_| Error::OutOfMemory {
            what: "the body of a request".into(),
            requested: (content.len() + piece.len()) as u64,
            available: 0,
            advice: "send less",
        })?;
        content.extend_from_slice(piece);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the value of the body, and drops its bytes. Nothing is built before all limits are checked.
    ///
    /// # Errors
    /// `InvalidRequestError` for a body that is not JSON, or that has more than a limit.
    #[pyo3(signature = (*, max_values, max_fields, max_containers, max_escapes))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        max_values: usize,
        max_fields: usize,
        max_containers: usize,
        max_escapes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let limits =
            Limits { values: max_values, fields: max_fields, containers: max_containers, escapes: max_escapes };
        let content = mem::take(&mut *self.0.lock());
        let text = py.detach(|| json::check(content, limits))?;
        let value = json::read(&text, &mut Builder { py, work: 0 });
        // Freeing megabytes takes time.
        py.detach(|| drop(text));
        value
    }
}

/// Makes Python's values, and lets other threads run in between.
struct Builder<'py> {
    py: Python<'py>,
    work: usize,
}

impl<'py> Builder<'py> {
    fn pause(&mut self, work: usize) {
        self.work += work;
        if self.work >= VALUES_PER_PAUSE {
            self.work = 0;
            self.py.detach(|| ());
        }
    }

    fn string(&mut self, text: Text<'_>) -> PyResult<Bound<'py, PyString>> {
        self.pause(1 + text.num_bytes() / BYTES_PER_VALUE);
        let decoded = if text.num_bytes() > LONG { self.py.detach(|| text.decode()) } else { text.decode() };
        match decoded {
            Ok(text) => Ok(PyString::new(self.py, &text)),
            Err(LoneSurrogates(bytes)) => {
                PyString::from_encoded_object(&PyBytes::new(self.py, &bytes), Some(c"utf-8"), Some(c"surrogatepass"))
            }
        }
    }
}

impl<'py> Sink for Builder<'py> {
    type Value = Bound<'py, PyAny>;
    type Error = PyErr;

    fn scalar(&mut self, scalar: Scalar<'_>) -> PyResult<Self::Value> {
        self.pause(1);
        Ok(match scalar {
            Scalar::Null => self.py.None().into_bound(self.py),
            Scalar::Bool(value) => PyBool::new(self.py, value).to_owned().into_any(),
            Scalar::Integer(digits) => match digits.parse::<i64>() {
                Ok(value) => PyInt::new(self.py, value).into_any(),
                Err(_) => self.py.get_type::<PyInt>().call1((digits,))?,
            },
            Scalar::Real(value) => PyFloat::new(self.py, value).into_any(),
            Scalar::Text(text) => self.string(text)?.into_any(),
        })
    }

    fn list(&mut self) -> PyResult<Self::Value> {
        Ok(PyList::empty(self.py).into_any())
    }

    fn push(&mut self, list: &Self::Value, item: Self::Value) -> PyResult<()> {
        list.cast::<PyList>()?.append(item)
    }

    fn object(&mut self) -> PyResult<Self::Value> {
        Ok(PyDict::new(self.py).into_any())
    }

    fn insert(&mut self, object: &Self::Value, name: Text<'_>, item: Self::Value) -> PyResult<()> {
        let name = self.string(name)?;
        object.cast::<PyDict>()?.set_item(name, item)
    }
}
