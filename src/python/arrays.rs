//! Numbers, texts and arrays between Python and Rust.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::kv_cache::BlockInfo;
use crate::{Error, Result};

/// An integer argument, any object with `__index__`; out of range is an error that names `what`.
///
/// # Errors
/// `TypeError` for what is no integer, `Error::InvalidRequest` for what does not fit.
pub(super) fn integer<'py, T>(what: &'static str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + Limits,
{
    value.extract::<T>().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            return Error::invalid(what, value, format!("an integer from {} to {}", T::MIN_VALUE, T::MAX_VALUE)).into();
        }
        wrong_type(what, value, "an integer")
    })
}

pub(super) fn wrong_type(what: &'static str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    PyTypeError::new_err(format!("{what}: got {}, expected {expected}", value.get_type()))
}

/// The range of an integer type, for messages.
pub(super) trait Limits {
    const MIN_VALUE: i128;
    const MAX_VALUE: i128;
}

macro_rules! limits {
    ($($t:ty),*) => {$(
        impl Limits for $t {
            const MIN_VALUE: i128 = <$t>::MIN as i128;
            const MAX_VALUE: i128 = <$t>::MAX as i128;
        }
    )*};
}
limits!(usize, u64, u32, i32);

/// As `integer`, with `None` kept.
pub(super) fn optional_integer<'py, T>(what: &'static str, value: Option<&Bound<'py, PyAny>>) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + Limits,
{
    value.map(|value| integer(what, value)).transpose()
}

/// A text argument. What UTF-8 cannot hold is the client's mistake, not a wrong type: JSON can spell a lone surrogate,
/// and a server shall answer with a refusal.
pub(super) fn text(what: &'static str, value: &Bound<'_, PyString>) -> Result<String> {
    let text = value.to_str().map_err(|error| Error::invalid(what, error, "text that UTF-8 can hold"))?;
    Ok(text.to_owned())
}

/// Seconds, as a duration.
pub(super) fn seconds(what: &'static str, value: f64) -> Result<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(value)
        .map_err(|_| Error::invalid(what, value, "a finite number of seconds, not negative"))
}

/// Token ids: a one-dimensional numpy array of integers, or any sequence of them.
pub(super) fn token_ids(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, u32>>() {
        return Ok(array.as_array().to_vec());
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i64>>() {
        return Ok(narrowed(what, array.as_array().iter().copied())?);
    }
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i32>>() {
        return Ok(narrowed(what, array.as_array().iter().map(|&id| i64::from(id)))?);
    }
    // Iterating over bytes gives integers, but nobody means those.
    if value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyString>()
    {
        return Err(wrong_type(what, value, "token ids"));
    }
    let items = value.try_iter().map_err(|_| wrong_type(what, value, "token ids"))?;
    items.map(|item| integer(what, &item?)).collect()
}

fn narrowed(what: &'static str, ids: impl Iterator<Item = i64>) -> Result<Vec<u32>> {
    ids.map(|id| u32::try_from(id).map_err(|_| Error::invalid(what, id, "a token id, which is not negative"))).collect()
}

/// `[rows, columns]`, without a copy.
pub(super) fn matrix(py: Python<'_>, values: Vec<f32>, rows: usize) -> PyResult<Bound<'_, PyArray2<f32>>> {
    let columns = values.len().checked_div(rows).unwrap_or(0);
    PyArray1::from_vec(py, values).reshape([rows, columns])
}

/// One array per field of a block map: state, owners, hashed, idle seconds.
pub(super) type BlockColumns<'py> =
    (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<bool>>, Bound<'py, PyArray1<f64>>);

pub(super) fn block_columns<'py>(py: Python<'py>, blocks: &[BlockInfo]) -> BlockColumns<'py> {
    (
        PyArray1::from_iter(py, blocks.iter().map(|block| block.state as u8)),
        PyArray1::from_iter(py, blocks.iter().map(|block| block.owners)),
        PyArray1::from_iter(py, blocks.iter().map(|block| block.hashed)),
        PyArray1::from_iter(py, blocks.iter().map(|block| block.idle_micros as f64 / 1e6)),
    )
}
