//! Reads untrusted bytes. Every length is compared with the remaining bytes before anything is read or allocated.

use std::fmt::Display;
use std::path::Path;

use crate::{Error, Result};

/// A position in the bytes of a file. In its methods, `location` names the key, tensor or part of the file that is
/// being read, and is only formatted for an error. `field` names one of its fields.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(path: &'a Path, data: &'a [u8]) -> Self {
        Self { path, data, at: 0 }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns the whole file.
    pub(super) fn data(&self) -> &'a [u8] {
        self.data
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn file_len(&self) -> usize {
        self.data.len()
    }

    pub(super) fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    pub(super) fn error(&self, location: impl Display, problem: impl Display) -> Error {
        Error::ModelFile { path: self.path.to_owned(), location: location.to_string(), problem: problem.to_string() }
    }

    pub(super) fn take(&mut self, len: u64, location: &dyn Display, field: &str) -> Result<&'a [u8]> {
        let rest = &self.data[self.at..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.error(
                location,
                format!("{field} needs {len} bytes at byte {}, the file has {} more", self.at, rest.len()),
            )),
        }
    }

    pub(super) fn bytes<const N: usize>(&mut self, location: &dyn Display, field: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, location, field)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, location: &dyn Display, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(location, field)?))
    }

    pub(super) fn u64(&mut self, location: &dyn Display, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(location, field)?))
    }

    /// Reads a u64 length and that many bytes of UTF-8.
    pub(super) fn str(&mut self, location: &dyn Display, field: &str) -> Result<&'a str> {
        let len = self.u64(location, field)?;
        let bytes = self.take(len, location, field)?;
        std::str::from_utf8(bytes).map_err(|e| {
            let shown = bytes.get(..64).unwrap_or(bytes).escape_ascii();
            self.error(location, format!("{field} is not UTF-8 from its byte {}: {shown}", e.valid_up_to()))
        })
    }

    /// Checks a u64 count of things that take at least `min_bytes` each. A count that the file cannot hold is rejected,
    /// so that room for the things may be reserved.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: usize,
        location: &dyn Display,
        things: &str,
    ) -> Result<usize> {
        let most = self.remaining() / min_bytes;
        usize::try_from(count).ok().filter(|&count| count <= most).ok_or_else(|| {
            let left = self.remaining();
            let problem = format!(
                "{count} {things} announced, but the {left} bytes that follow hold at most {most}; \
                 the file was cut short (an incomplete download?) or is damaged"
            );
            self.error(location, problem)
        })
    }

    /// Reads `count` numbers of `N` bytes each.
    pub(super) fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        location: &dyn Display,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let count = self.check_count(count, N, location, "array elements")?;
        let data = self.take((count * N) as u64, location, "the array")?;
        Ok(data.as_chunks::<N>().0.iter().map(|&bytes| decode(bytes)).collect())
    }
}
