//! Reading of an architecture's keys, `<architecture>.<key>`, from a file's metadata.

use crate::Result;
use crate::gguf::{Metadata, Value};

/// Upper bounds that no real model is near; they keep products of dimensions far from overflow.
const MAX_LAYERS: usize = 4096;
const MAX_DIM: usize = 1 << 24;

/// Errors name the key.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    /// The architecture.
    pub(super) prefix: &'static str,
}

impl Keys<'_> {
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
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

    /// A dimension: an integer above zero.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.opt_size(key)?.ok_or_else(|| self.error(key, "is missing; the architecture requires it"))
    }

    /// As `size`; a per-layer array counts as its value when all layers agree.
    pub(super) fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let full = self.full(key);
        let value = match self.metadata.get(&full) {
            None => return Ok(None),
            Some(Value::Array(_)) => self.uniform(key)?,
            Some(_) => self.metadata.u32(&full)? as usize,
        };
        if value == 0 || value > MAX_DIM {
            return Err(self.error(key, format!("is {value}, expected 1 to {MAX_DIM}")));
        }
        Ok(Some(value))
    }

    fn uniform(&self, key: &str) -> Result<usize> {
        let values = self.metadata.opt_ints(&self.full(key))?.unwrap_or_default();
        let layers = self.layers()?;
        let first = values.first().copied().unwrap_or(0);
        if values.len() != layers {
            return Err(self.error(key, format!("has {} entries, expected one per layer ({layers})", values.len())));
        }
        if values.iter().any(|&v| v != first) {
            return Err(self.error(key, "differs between layers, which this version does not support"));
        }
        usize::try_from(first).map_err(|_| self.error(key, format!("is {first}, expected a positive number")))
    }

    pub(super) fn layers(&self) -> Result<usize> {
        let layers = self.metadata.u32(&self.full("block_count"))? as usize;
        if layers == 0 || layers > MAX_LAYERS {
            return Err(self.error("block_count", format!("is {layers}, expected 1 to {MAX_LAYERS}")));
        }
        Ok(layers)
    }
}
