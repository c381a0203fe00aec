//! One file's header: magic, version, counts, metadata, tensor directory (GGUF specification, versions 2 and 3).

use std::path::Path;

use super::cursor::Cursor;
use super::directory::{self, TensorInfo};
use super::format;
use super::metadata::Metadata;
use super::value::Value;
use crate::Result;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// Everything that precedes the data of one file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    /// The caller checks that names are unique, since a split model has several directories.
    pub(super) tensors: Vec<TensorInfo>,
}

/// Reads and validates the header of a file with the bytes `data`; `shard` is its number within a split model.
pub(super) fn parse(path: &Path, data: &[u8], shard: usize) -> Result<Header> {
    let mut cursor = Cursor::new(path, data);
    check_magic(&mut cursor)?;
    let version = parse_version(&mut cursor)?;
    let num_tensors = cursor.u64(&"header", "the tensor count")?;
    let num_keys = cursor.u64(&"header", "the key count")?;
    let metadata = Metadata::parse(&mut cursor, num_keys)?;
    let alignment = alignment(&metadata)?;
    let tensors = directory::parse(&mut cursor, num_tensors, alignment, shard)?;
    Ok(Header { version, metadata, tensors })
}

fn check_magic(cursor: &mut Cursor) -> Result<()> {
    if cursor.remaining() == 0 {
        return Err(cursor.error("header", "the file is empty, expected a GGUF file"));
    }
    let magic: [u8; 4] = cursor.bytes(&"header", "the magic \"GGUF\"")?;
    if magic == MAGIC {
        return Ok(());
    }
    let mut reversed = magic;
    reversed.reverse();
    let problem = if reversed == MAGIC {
        "the magic is reversed (\"FUGG\"): the bytes of the file were swapped, or it is big-endian".to_owned()
    } else {
        let what = format::named(cursor.data()).unwrap_or_default();
        format!("not a GGUF file: it starts with \"{}\", expected \"GGUF\"{what}", magic.escape_ascii())
    };
    Err(cursor.error("header", problem))
}

fn parse_version(cursor: &mut Cursor) -> Result<u32> {
    let version = cursor.u32(&"header", "the version")?;
    let problem = match version {
        2 | 3 => return Ok(version),
        1 => "version 1 is obsolete, expected 2 or 3; convert the model again".to_owned(),
        v if (1..=3).contains(&v.swap_bytes()) => {
            "a big-endian file; only little-endian ones are supported: convert the model again".to_owned()
        }
        v => format!("version {v} is not known, expected 2 or 3"),
    };
    Err(cursor.error("header", problem))
}

fn alignment(metadata: &Metadata) -> Result<u32> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(alignment)) if alignment.is_power_of_two() => Ok(*alignment),
        Some(other) => {
            Err(metadata.error(ALIGNMENT_KEY, format!("holds {other}, expected a u32 that is a power of two")))
        }
    }
}
