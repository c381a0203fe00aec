//! Metadata values and their encoding (GGUF specification, `gguf_metadata_value_t`).

use std::fmt;

use super::cursor::Cursor;
use crate::Result;

/// A metadata value. Arrays of arrays are rejected when parsed.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Array(Array),
}

/// A typed array of metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// The smallest string: the bytes of its length.
const MIN_STRING_BYTES: usize = 8;

impl Value {
    /// Reads the type and the value of `key`.
    pub(super) fn parse(cursor: &mut Cursor, key: &str) -> Result<Self> {
        macro_rules! number {
            ($variant:ident, $ty:ty) => {
                Self::$variant(<$ty>::from_le_bytes(cursor.bytes(&key, "the value")?))
            };
        }
        let value = match cursor.u32(&key, "the type of the value")? {
            0 => number!(U8, u8),
            1 => number!(I8, i8),
            2 => number!(U16, u16),
            3 => number!(I16, i16),
            4 => number!(U32, u32),
            5 => number!(I32, i32),
            6 => number!(F32, f32),
            7 => {
                let [byte] = cursor.bytes(&key, "the value")?;
                Self::Bool(parse_bool(byte).ok_or_else(|| cursor.error(key, format!("a bool stored as {byte}")))?)
            }
            8 => Self::String(cursor.str(&key, "the value")?.to_owned()),
            9 => Self::Array(Array::parse(cursor, key)?),
            10 => number!(U64, u64),
            11 => number!(I64, i64),
            12 => number!(F64, f64),
            other => return Err(cursor.error(key, format!("value type {other} does not exist, expected 0 to 12"))),
        };
        Ok(value)
    }

    /// Returns any integer, widened; `None` for another type.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            Self::F32(_) | Self::Bool(_) | Self::String(_) | Self::F64(_) | Self::Array(_) => None,
        }
    }
}

impl Array {
    fn parse(cursor: &mut Cursor, key: &str) -> Result<Self> {
        let kind = cursor.u32(&key, "the type of the array's elements")?;
        let count = cursor.u64(&key, "the array's count")?;
        macro_rules! numbers {
            ($variant:ident, $ty:ty) => {
                Self::$variant(cursor.numbers(count, &key, <$ty>::from_le_bytes)?)
            };
        }
        let array = match kind {
            0 => numbers!(U8, u8),
            1 => numbers!(I8, i8),
            2 => numbers!(U16, u16),
            3 => numbers!(I16, i16),
            4 => numbers!(U32, u32),
            5 => numbers!(I32, i32),
            6 => numbers!(F32, f32),
            7 => {
                let bytes = cursor.take(count, &key, "the array")?;
                let bools = bytes.iter().map(|&byte| parse_bool(byte)).collect::<Option<_>>();
                Self::Bool(bools.ok_or_else(|| cursor.error(key, "holds a bool stored as neither 0 nor 1"))?)
            }
            8 => {
                let count = cursor.check_count(count, MIN_STRING_BYTES, &key, "strings")?;
                let mut strings = Vec::with_capacity(count);
                for i in 0..count {
                    strings.push(cursor.str(&format_args!("{key}[{i}]"), "the string")?.to_owned());
                }
                Self::String(strings)
            }
            9 => return Err(cursor.error(key, "an array of arrays, which no model file needs, is not supported")),
            10 => numbers!(U64, u64),
            11 => numbers!(I64, i64),
            12 => numbers!(F64, f64),
            other => return Err(cursor.error(key, format!("element type {other} does not exist, expected 0 to 12"))),
        };
        Ok(array)
    }

    /// Returns the name of the element type and the number of elements.
    fn summary(&self) -> (&'static str, usize) {
        match self {
            Self::U8(v) => ("u8", v.len()),
            Self::I8(v) => ("i8", v.len()),
            Self::U16(v) => ("u16", v.len()),
            Self::I16(v) => ("i16", v.len()),
            Self::U32(v) => ("u32", v.len()),
            Self::I32(v) => ("i32", v.len()),
            Self::F32(v) => ("f32", v.len()),
            Self::Bool(v) => ("bool", v.len()),
            Self::String(v) => ("string", v.len()),
            Self::U64(v) => ("u64", v.len()),
            Self::I64(v) => ("i64", v.len()),
            Self::F64(v) => ("f64", v.len()),
        }
    }
}

fn parse_bool(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Writes a value for an error message: its type and its shortened contents.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS: usize = 40;
        match self {
            Self::U8(v) => write!(f, "u8 {v}"),
            Self::I8(v) => write!(f, "i8 {v}"),
            Self::U16(v) => write!(f, "u16 {v}"),
            Self::I16(v) => write!(f, "i16 {v}"),
            Self::U32(v) => write!(f, "u32 {v}"),
            Self::I32(v) => write!(f, "i32 {v}"),
            Self::F32(v) => write!(f, "f32 {v}"),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::String(v) => match v.char_indices().nth(SHOWN_CHARS) {
                Some((cut, _)) => write!(f, "string {:?}…", &v[..cut]),
                None => write!(f, "string {v:?}"),
            },
            Self::U64(v) => write!(f, "u64 {v}"),
            Self::I64(v) => write!(f, "i64 {v}"),
            Self::F64(v) => write!(f, "f64 {v}"),
            Self::Array(array) => {
                let (element, len) = array.summary();
                write!(f, "array of {len} {element}")
            }
        }
    }
}
