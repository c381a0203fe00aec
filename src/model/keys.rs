//! Reading of an architecture's keys, `<architecture>.<key>`, from a file's metadata.

use crate::Result;
use crate::gguf::{GgufFile, Metadata, Value};

/// Upper bounds that no real model is near; they keep products of dimensions far from overflow.
const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;

/// Reads the keys of a model of one architecture. Errors name the key.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    /// The file that holds the keys.
    pub(super) gguf: &'a GgufFile,
    /// The architecture's name, which is the prefix of its keys.
    pub(super) architecture: &'static str,
    /// Tokens of the longest sequence that will be served, where that is known.
    pub(super) max_model_len: Option<usize>,
    /// Whether the file's block for further tokens is to guess some (`ModelSpec::drafter`).
    pub(super) wants_drafter: bool,
}

impl Keys<'_> {
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
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

    /// A dimension of the whole model: an integer above zero.
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

    /// A dimension of one layer: that of all layers, or the layer's entry where the file has an array.
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

    /// A number of each layer that is 0 where the layer has none of what it counts: an array, or one for all.
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

    /// Whether something holds of each layer, where the file says so.
    pub(super) fn opt_flags(&self, key: &str) -> Result<Option<&[bool]>> {
        self.metadata.opt_bools(&self.full(key))?.map(|flags| self.one_per_layer(key, flags)).transpose()
    }

    /// Whether something holds of each layer.
    pub(super) fn flags(&self, key: &str) -> Result<&[bool]> {
        self.one_per_layer(key, self.metadata.bools(&self.full(key))?)
    }

    fn one_per_layer<'v>(&self, key: &str, values: &'v [bool]) -> Result<&'v [bool]> {
        let layers = self.layers()?;
        match values.len() == layers {
            true => Ok(values),
            false => Err(self.error(key, format!("has {} entries, expected one per layer ({layers})", values.len()))),
        }
    }

    /// Blocks behind the layers of the model, which `block_count` counts as well.
    pub(super) fn nextn_layers(&self) -> Result<usize> {
        let layers = self.layers()?;
        Ok(self.opt_u32("nextn_predict_layers")?.map_or(0, |count| (count as usize).min(layers - 1)))
    }

    fn missing(&self, key: &str) -> crate::Error {
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
