//! Conversion of numbers, texts and arrays between Python and Rust.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::kv_cache::BlockInfo;
use crate::{Error, Result};

/// Reads an integer argument, which may be any object with `__index__`. An integer out of range is an error that names
/// `what`.
///
/// # Errors
/// `TypeError` for an object that is no integer, `Error::InvalidRequest` for an integer out of range.
pub(in crate::python) fn integer<'py, T>(what: &'static str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + Limits,
{
    value.extract::<T>().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            return Error::invalid(what, value, expected(T::MIN_VALUE, T::MAX_VALUE)).into();
        }
        wrong_type(what, value, "an integer")
    })
}

/// Returns the range in words. A limit of 64 bits says nothing to a person, so a value below it is only too small.
fn expected(min: i128, max: i128) -> String {
    if min == 0 && max == i128::from(u64::MAX) { "0 or more".into() } else { format!("an integer from {min} to {max}") }
}

pub(in crate::python) fn wrong_type(what: &'static str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    PyTypeError::new_err(format!("{what}: got {}, expected {expected}", value.get_type()))
}

/// The range of an integer type, for messages.
pub(in crate::python) trait Limits {
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

/// Returns the same as `integer`, or `None` for `None`.
pub(in crate::python) fn optional_integer<'py, T>(
    what: &'static str,
    value: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + Limits,
{
    value.map(|value| integer(what, value)).transpose()
}

/// Reads a text argument. A lone surrogate, which JSON can spell and UTF-8 cannot, is the client's mistake and not a
/// wrong type. So a server answers it with a refusal.
pub(in crate::python) fn text(what: &'static str, value: &Bound<'_, PyString>) -> Result<String> {
    let text = value.to_str().map_err(|error| Error::invalid(what, error, "text that UTF-8 can hold"))?;
    Ok(text.to_owned())
}

/// Reads a text from any object.
pub(in crate::python) fn name_of(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = value.cast::<PyString>().map_err(|_| wrong_type(what, value, "a text"))?;
    Ok(text(what, name)?)
}

/// Reads True or False.
pub(in crate::python) fn switch(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract::<bool>().map_err(|_| wrong_type(what, value, "True or False"))
}

/// Converts seconds to a duration.
pub(in crate::python) fn seconds(what: &'static str, value: f64) -> Result<std::time::Duration> {
    std::time::Duration::try_from_secs_f64(value)
        .map_err(|_| Error::invalid(what, value, "a finite number of seconds, not negative"))
}

/// Reads any number that Python can convert to a float.
pub(in crate::python) fn real(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract::<f64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            return Error::invalid(what, "an integer beyond all floats", "a number that a float can hold").into();
        }
        wrong_type(what, value, "a number")
    })
}

/// Reads token ids: a one-dimensional numpy array of integers, or any iterable of integers.
pub(in crate::python) fn token_ids(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    token_ids_up_to(what, value, usize::MAX, "")
}

/// Token ids that are read from an iterable between two checks for signals.
const IDS_PER_LOOK: usize = 1 << 14;

/// Reads token ids like `token_ids`. An iterable of unknown length may be endless, so at most `limit` + 1 ids are read
/// from it. `setting` names the source of the limit.
pub(in crate::python) fn token_ids_up_to(
    what: &'static str,
    value: &Bound<'_, PyAny>,
    limit: usize,
    setting: &str,
) -> PyResult<Vec<u32>> {
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
    let limit = value.len().map_or(limit, |len| len.max(limit));
    let mut ids = Vec::new();
    for item in items {
        if ids.len() == limit {
            let expected = format!("at most {setting}, which is {limit}");
            return Err(Error::invalid(what, format!("more than {limit}"), expected).into());
        }
        ids.try_reserve(1).map_err(|_| Error::OutOfMemory {
            what: format!("{what}: a list of {} token ids", ids.len() + 1),
            requested: (ids.len() as u64 + 1) * size_of::<u32>() as u64,
            available: 0,
            advice: "give fewer",
        })?;
        ids.push(integer(what, &item?)?);
        if ids.len().is_multiple_of(IDS_PER_LOOK) {
            value.py().check_signals()?;
        }
    }
    Ok(ids)
}

fn narrowed(what: &'static str, ids: impl Iterator<Item = i64>) -> Result<Vec<u32>> {
    let narrow = |id: i64| {
        let expected = if id < 0 { "a token id, which is not negative" } else { "a token id of the vocabulary" };
        u32::try_from(id).map_err(|_| Error::invalid(what, id, expected))
    };
    ids.map(narrow).collect()
}

/// Returns the values as an array `[rows, columns]`, without a copy.
pub(in crate::python) fn matrix(py: Python<'_>, values: Vec<f32>, rows: usize) -> PyResult<Bound<'_, PyArray2<f32>>> {
    let columns = values.len().checked_div(rows).unwrap_or(0);
    PyArray1::from_vec(py, values).reshape([rows, columns])
}

/// The `BlockColumns` of `rocmforge/stats.py`: an array per field of a block map.
#[derive(IntoPyObject)]
pub(in crate::python) struct BlockColumns<'py> {
    state: Bound<'py, PyArray1<u8>>,
    owners: Bound<'py, PyArray1<u32>>,
    hashed: Bound<'py, PyArray1<bool>>,
    idle_seconds: Bound<'py, PyArray1<f64>>,
}

impl<'py> BlockColumns<'py> {
    pub(in crate::python) fn new(py: Python<'py>, blocks: &[BlockInfo]) -> Self {
        Self {
            state: PyArray1::from_iter(py, blocks.iter().map(|block| block.state as u8)),
            owners: PyArray1::from_iter(py, blocks.iter().map(|block| block.owners)),
            hashed: PyArray1::from_iter(py, blocks.iter().map(|block| block.hashed)),
            idle_seconds: PyArray1::from_iter(py, blocks.iter().map(|block| block.idle_micros as f64 / 1e6)),
        }
    }
}
