//! The key-value metadata of a file, and its typed getters.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::cursor::Cursor;
use super::value::{Array, Value};
use crate::{Error, Result};

/// The specification's limit on a key.
const MAX_KEY_BYTES: usize = u16::MAX as usize;
/// The smallest entry: length of the key, one byte of it, type of the value, one byte of it.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;

/// Key-value metadata in file order. Typed getters return an `Error::ModelFile` that names the key, its value and the
/// expected type. Integer getters accept any integer type whose value fits.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    /// Returns the metadata of a file at `path` with these entries.
    ///
    /// # Errors
    /// `Error::ModelFile` if two entries have the same key, even with equal values.
    pub fn new(path: &Path, entries: Vec<(String, Value)>) -> Result<Self> {
        let mut by_key = HashMap::with_capacity(entries.len());
        for (i, (key, _)) in entries.iter().enumerate() {
            match by_key.entry(key.clone()) {
                Entry::Vacant(vacant) => vacant.insert(i),
                Entry::Occupied(_) => return Err(error(path, key, "the key is there twice")),
            };
        }
        Ok(Self { path: path.to_owned(), entries, by_key })
    }

    /// Reads `count` entries.
    pub(super) fn parse(cursor: &mut Cursor, count: u64) -> Result<Self> {
        let count = cursor.check_count(count, MIN_ENTRY_BYTES, &"header", "keys")?;
        let mut entries: Vec<(String, Value)> = Vec::with_capacity(count);
        for i in 0..count {
            let number = format!("key number {i}");
            let key = cursor.str(&number, "the key")?;
            if key.is_empty() {
                return Err(cursor.error(number, "the key is empty"));
            }
            if key.len() > MAX_KEY_BYTES {
                return Err(cursor.error(number, format!("the key has {} bytes, more than {MAX_KEY_BYTES}", key.len())));
            }
            entries.push((key.to_owned(), Value::parse(cursor, key)?));
        }
        Self::new(cursor.path(), entries)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&i| &self.entries[i].1)
    }

    /// Getters of required keys: a missing key is an error that names it.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.opt_u32(key)?.ok_or_else(|| self.missing(key, "an unsigned integer"))
    }

    pub fn f32(&self, key: &str) -> Result<f32> {
        self.opt_f32(key)?.ok_or_else(|| self.missing(key, "a float"))
    }

    pub fn str(&self, key: &str) -> Result<&str> {
        self.opt_str(key)?.ok_or_else(|| self.missing(key, "a string"))
    }

    pub fn strings(&self, key: &str) -> Result<&[String]> {
        self.opt_strings(key)?.ok_or_else(|| self.missing(key, "an array of strings"))
    }

    /// Getters of optional keys: `None` if absent, and still an error for a wrong type.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer from 0 to 4294967295", |v| v.as_integer()?.try_into().ok())
    }

    /// Accepts an f32, or an f64 rounded to f32; an error if it is out of range.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a float that fits an f32", |v| match v {
            Value::F32(v) => Some(*v),
            Value::F64(v) => Some(*v as f32).filter(|rounded| rounded.is_finite() == v.is_finite()),
            _ => None,
        })
    }

    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| if let Value::Bool(v) = v { Some(*v) } else { None })
    }

    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| if let Value::String(v) = v { Some(v.as_str()) } else { None })
    }

    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    pub fn opt_f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of f32", |v| match v {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    pub fn opt_bools(&self, key: &str) -> Result<Option<&[bool]>> {
        self.typed(key, "an array of bools", |v| match v {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// Accepts any integer array, widened.
    pub fn opt_ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        fn widen<T: Copy + Into<i64>>(values: &[T]) -> Option<Vec<i64>> {
            Some(values.iter().map(|&v| v.into()).collect())
        }
        self.typed(key, "an array of integers that fit 64 signed bits", |v| match v {
            Value::Array(Array::U8(v)) => widen(v),
            Value::Array(Array::I8(v)) => widen(v),
            Value::Array(Array::U16(v)) => widen(v),
            Value::Array(Array::I16(v)) => widen(v),
            Value::Array(Array::U32(v)) => widen(v),
            Value::Array(Array::I32(v)) => widen(v),
            Value::Array(Array::I64(v)) => widen(v),
            Value::Array(Array::U64(v)) => v.iter().map(|&v| v.try_into().ok()).collect(),
            _ => None,
        })
    }

    /// Returns an error about `location` (a key or tensor name) of this file.
    pub fn error(&self, location: impl Display, problem: impl Display) -> Error {
        error(&self.path, location, problem)
    }

    fn missing(&self, key: &str, expected: &str) -> Error {
        self.error(key, format!("the key is missing, expected {expected}"))
    }

    fn typed<'a, T>(&'a self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        get(value).map(Some).ok_or_else(|| self.error(key, format!("holds {value}, expected {expected}")))
    }
}

fn error(path: &Path, location: impl Display, problem: impl Display) -> Error {
    Error::ModelFile { path: path.to_owned(), location: location.to_string(), problem: problem.to_string() }
}
