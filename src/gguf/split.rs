//! Models split over several files, `<prefix>-00001-of-0000N.gguf`, with the names and keys of llama.cpp's
//! `gguf-split`. The first file has all the metadata, which the others may repeat. Every file has `split.no` (from 0),
//! `split.count` and `split.tensors.count`.

use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use crate::Result;

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// The part of a file name that identifies a part of a split model.
struct PartName<'a> {
    prefix: &'a str,
    /// The number of the part, from 1.
    number: u32,
    count: u32,
}

impl<'a> PartName<'a> {
    fn parse(path: &'a Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let five_digits = |s: &str| {
            let valid = s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
            valid.then(|| s.parse().ok()).flatten()
        };
        Some(Self { prefix, number: five_digits(number)?, count: five_digits(count)? })
    }
}

/// How a model is split, according to its first file.
#[derive(Debug)]
pub(super) struct Split {
    count: u32,
    num_tensors: u32,
    /// Paths of the files after the first, in order.
    pub(super) other_paths: Vec<PathBuf>,
}

impl Split {
    /// Reads the split from the `metadata` of the opened file; `None` for a model in one file.
    pub(super) fn of(metadata: &Metadata) -> Result<Option<Self>> {
        let path = metadata.path();
        let part = PartName::parse(path);
        let count = metadata.opt_u32(COUNT_KEY)?.unwrap_or(1);
        let count_in_name = part.as_ref().map_or(1, |part| part.count);
        if count != count_in_name {
            let problem = format!(
                "the file says that the model has {count} parts, its name {count_in_name}; \
                 the parts must keep their names <prefix>-00001-of-0000N.gguf"
            );
            return Err(metadata.error(COUNT_KEY, problem));
        }
        let Some(part) = part.filter(|_| count > 1) else { return Ok(None) };
        let name_of = |number: u32| path.with_file_name(format!("{}-{number:05}-of-{count:05}.gguf", part.prefix));
        if part.number != 1 {
            let problem = format!("this is part {} of {count}; open part 1: {}", part.number, name_of(1).display());
            return Err(metadata.error(NO_KEY, problem));
        }
        let other_paths = (2..=count).map(name_of).collect();
        let split = Self { count, num_tensors: metadata.u32(TENSORS_KEY)?, other_paths };
        split.check_part(metadata, 0)?;
        Ok(Some(split))
    }

    /// Checks that a file is part `no` (from 0) of this model.
    pub(super) fn check_part(&self, metadata: &Metadata, no: u32) -> Result<()> {
        let expected = [(NO_KEY, no), (COUNT_KEY, self.count), (TENSORS_KEY, self.num_tensors)];
        for (key, expected) in expected {
            let got = metadata.u32(key)?;
            if got != expected {
                return Err(metadata.error(key, format!("is {got} in this part, expected {expected}")));
            }
        }
        Ok(())
    }

    /// Checks that the parts together have as many tensors as each of them claims.
    pub(super) fn check_num_tensors(&self, metadata: &Metadata, found: usize) -> Result<()> {
        if found == self.num_tensors as usize {
            return Ok(());
        }
        let problem = format!("the parts hold {found} tensors, expected {}", self.num_tensors);
        Err(metadata.error(TENSORS_KEY, problem))
    }
}

/// Checks that a later part has no key that the first one lacks, since such a key would be ignored. Names and notes
/// (`general.*`) may differ, and so may the keys of each file about itself.
pub(super) fn check_keys(first: &Metadata, part: &Metadata) -> Result<()> {
    let is_of_model =
        |key: &str| key == "general.architecture" || !["general.", "split."].iter().any(|of| key.starts_with(of));
    for (key, value) in part.iter().filter(|(key, _)| is_of_model(key)) {
        match first.get(key) {
            Some(expected) if expected == value => {}
            Some(expected) => {
                let problem =
                    format!("holds {value} in this part, {expected} in the first one: a part of another model?");
                return Err(part.error(key, problem));
            }
            None => return Err(part.error(key, "is not in the first part: a part of another model?")),
        }
    }
    Ok(())
}
