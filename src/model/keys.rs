//! Reads an architecture's keys, `<architecture>.<key>`, from a file's metadata.

pub(crate) mod common;
mod delta_net;
pub(crate) mod encoder;
mod experts;
mod key_names;
mod mamba2;
pub(crate) mod rope;
mod sections;
mod unread_keys;

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use super::layers::of_layer;
use super::spec::ModelSpec;
use super::tensor_names;
use crate::Result;
use crate::gguf::{Array, GgufFile, Metadata, Value};
use key_names::other_names;

/// Upper bounds far above any real model. They prevent overflows in products of dimensions.
const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;

/// The layout of full attention over the layers in files without a list: one layer of each period.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowPattern {
    period: usize,
    full_is_first: bool,
}

impl WindowPattern {
    pub(super) const fn full_is_last_of(period: usize) -> Self {
        Self { period, full_is_first: false }
    }

    pub(super) const fn full_is_first_of(period: usize) -> Self {
        Self { period, full_is_first: true }
    }
}

/// Reads the keys of a model of one architecture. Errors name the key.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    /// The file that holds the keys.
    pub(super) gguf: &'a GgufFile,
    /// The architecture's name, which is the prefix of its keys.
    pub(super) architecture: &'static str,
    /// Tokens of the longest sequence that will be served, if known.
    pub(super) max_model_len: Option<usize>,
    /// True if the file's MTP block is used to draft (`ModelSpec::drafter`).
    pub(super) wants_drafter: bool,
    /// Full names of the keys that have been read.
    read: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(
        gguf: &'a GgufFile,
        architecture: &'static str,
        max_model_len: Option<usize>,
        wants_drafter: bool,
    ) -> Self {
        let metadata = gguf.metadata();
        Self { metadata, gguf, architecture, max_model_len, wants_drafter, read: RefCell::default() }
    }
}

impl Keys<'_> {
    /// Returns the full name of the key in this file. Marks all names of the key as read.
    pub(super) fn full(&self, key: &str) -> String {
        let [name, others @ ..] = &self.names(key)[..] else { return String::new() };
        let mut read = self.read.borrow_mut();
        read.insert(name.clone());
        read.extend(others.iter().cloned());
        let is_there = |name: &&String| self.metadata.get(name).is_some();
        others.iter().find(|other| !is_there(&name) && is_there(other)).unwrap_or(name).clone()
    }

    /// Returns the full names of a key: llama.cpp's first, then those of other converters.
    pub(super) fn names(&self, key: &str) -> Vec<String> {
        let names = std::iter::once(key).chain(other_names(self.architecture, key));
        names.map(|name| format!("{}.{name}", self.architecture)).collect()
    }

    /// True if the key with this full name has been read.
    pub(super) fn was_read(&self, name: &str) -> bool {
        self.read.borrow().contains(name)
    }

    pub(super) fn error(&self, key: &str, problem: impl std::fmt::Display) -> crate::Error {
        self.metadata.error(self.full(key), problem)
    }

    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        let value = self.metadata.opt_f32(&self.full(key))?;
        match value {
            Some(v) if !v.is_finite() => Err(self.error(key, format!("is {v}, expected a finite number"))),
            _ => Ok(value),
        }
    }

    pub(super) fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        self.metadata.opt_u32(&self.full(key))
    }

    pub(super) fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.opt_bool(&self.full(key))
    }

    pub(super) fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.metadata.opt_str(&self.full(key))
    }

    /// Returns a dimension of the whole model, an integer above zero.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.opt_size(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let full = self.full(key);
        match self.metadata.get(&full) {
            None => Ok(None),
            Some(_) => self.check_size(key, i64::from(self.metadata.u32(&full)?)).map(Some),
        }
    }

    /// Returns a dimension of one layer: the value for all layers, or the layer's entry of an array.
    pub(super) fn size_of(&self, layer: usize, key: &str) -> Result<usize> {
        self.opt_size_of(layer, key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn opt_size_of(&self, layer: usize, key: &str) -> Result<Option<usize>> {
        if !matches!(self.metadata.get(&self.full(key)), Some(Value::Array(_))) {
            return self.opt_size(key);
        }
        let values = self.metadata.opt_ints(&self.full(key))?.unwrap_or_default();
        let layers = self.layers()?;
        match values.get(layer) {
            Some(&value) if values.len() == layers => self.check_size(key, value).map(Some),
            _ => Err(self.error(key, format!("has {} entries, expected one per layer ({layers})", values.len()))),
        }
    }

    /// Returns a number of one layer by the key's full name: the value for all layers, or the layer's entry of an
    /// array.
    pub(super) fn opt_number_of(&self, layer: usize, name: &str) -> Result<Option<f32>> {
        let layers = self.layers()?;
        let number = match self.metadata.get(name) {
            None => return Ok(None),
            Some(Value::Array(_)) => match self.metadata.opt_f32s(name)?.unwrap_or_default() {
                numbers if numbers.len() == layers => numbers[layer],
                numbers => {
                    let problem = format!("has {} entries, expected one per layer ({layers})", numbers.len());
                    return Err(self.metadata.error(name, problem));
                }
            },
            Some(_) => self.metadata.f32(name)?,
        };
        match number.is_finite() {
            true => Ok(Some(number)),
            false => Err(self.metadata.error(name, format!("holds {number}, expected finite numbers"))),
        }
    }

    /// Returns a count per layer, which may be 0. The file has an array, or one value for all layers.
    pub(super) fn counts(&self, key: &str) -> Result<Vec<usize>> {
        let (full, layers) = (self.full(key), self.layers()?);
        let values = match self.metadata.get(&full) {
            None => return Err(self.missing(key)),
            Some(Value::Array(_)) => self.metadata.opt_ints(&full)?.unwrap_or_default(),
            Some(_) => vec![i64::from(self.metadata.u32(&full)?); layers],
        };
        if values.len() != layers {
            return Err(self.error(key, format!("has {} entries, expected one per layer ({layers})", values.len())));
        }
        let count = |&value: &i64| if value == 0 { Ok(0) } else { self.check_size(key, value) };
        values.iter().map(count).collect()
    }

    /// Returns a flag per layer, if the file has them, as bools or as 0 and 1. The entries of the MTP blocks may be
    /// left out.
    pub(super) fn opt_flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let (full, layers) = (self.full(key), self.layers()?);
        let flags = match self.metadata.get(&full) {
            None => return Ok(None),
            Some(Value::Array(Array::Bool(flags))) => flags.clone(),
            Some(Value::Array(_)) => {
                let flag = |value: i64| match value {
                    0 | 1 => Ok(value == 1),
                    _ => Err(self.error(key, format!("holds {value}, expected bools, or 0 and 1"))),
                };
                let values = self.metadata.opt_ints(&full)?.unwrap_or_default();
                values.into_iter().map(flag).collect::<Result<_>>()?
            }
            Some(_) => self.metadata.opt_bools(&full)?.unwrap_or_default().to_vec(),
        };
        match [layers, layers - self.nextn_layers()?].contains(&flags.len()) {
            true => Ok(Some(flags)),
            false => Err(self.error(key, format!("has {} entries, expected one per layer ({layers})", flags.len()))),
        }
    }

    /// Returns a flag per layer, true for sliding window layers. They come from a list, or are all layers but one in a
    /// period.
    pub(super) fn windowed_layers(&self, default: WindowPattern) -> Result<Vec<bool>> {
        let key = "attention.sliding_window_pattern";
        if let Some(Value::Array(_)) = self.metadata.get(&self.full(key)) {
            return Ok(self.opt_flags(key)?.unwrap_or_default());
        }
        let period = self.opt_size(key)?.unwrap_or(default.period);
        let full = if default.full_is_first { 0 } else { period - 1 };
        Ok((0..self.layers()?).map(|layer| layer % period != full).collect())
    }

    /// Returns a flag per layer, true for sliding window layers, in architectures whose files always have a list.
    pub(super) fn listed_windows(&self) -> Result<Vec<bool>> {
        let key = "attention.sliding_window_pattern";
        self.opt_flags(key)?.ok_or_else(|| self.error(key, "is missing, expected a list of bools"))
    }

    /// Returns the layers of a model without its MTP blocks, which `block_count` includes.
    pub(super) fn layers_of(&self, model: &ModelSpec) -> Result<Range<usize>> {
        Ok(0..self.layers()? - model.nextn_layers)
    }

    /// Returns the number of MTP blocks after the layers, which `block_count` includes.
    pub(super) fn nextn_layers(&self) -> Result<usize> {
        let layers = self.layers()?;
        Ok(self.opt_u32("nextn_predict_layers")?.map_or(0, |count| (count as usize).min(layers - 1)))
    }

    /// True if a layer has the tensor of this name.
    pub(super) fn has_tensor(&self, layer: usize, name: &str) -> bool {
        self.gguf.tensor(&tensor_names::in_file(self.architecture, &of_layer(layer, name))).is_some()
    }

    pub(super) fn missing(&self, key: &str) -> crate::Error {
        self.error(key, "is missing; the architecture requires it")
    }

    fn check_size(&self, key: &str, value: i64) -> Result<usize> {
        match usize::try_from(value).ok().filter(|size| (1..=MAX_DIM).contains(size)) {
            Some(size) => Ok(size),
            None => Err(self.error(key, format!("is {value}, expected 1 to {MAX_DIM}"))),
        }
    }

    pub(super) fn layers(&self) -> Result<usize> {
        let layers = self.metadata.u32(&self.full("block_count"))? as usize;
        if layers == 0 || layers > MAX_LAYERS {
            return Err(self.error("block_count", format!("is {layers}, expected 1 to {MAX_LAYERS}")));
        }
        Ok(layers)
    }
}
