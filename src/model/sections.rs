//! Reads the sections of M-RoPE.

use super::keys::Keys;
use super::spec::{ModelSpec, Sections};
use crate::Result;

impl Keys<'_> {
    /// Returns the sections of the model's RoPE; `None` if the file has none, or only empty ones.
    pub(super) fn sections(&self, model: &ModelSpec, interleaved: bool) -> Result<Option<Sections>> {
        let key = "rope.dimension_sections";
        let Some(values) = self.metadata.opt_ints(&self.full(key))? else { return Ok(None) };
        if values.iter().all(|&count| count == 0) {
            return Ok(None);
        }
        let pairs = model.ropes.iter().map(|rope| rope.inv_freq.len()).max().unwrap_or(0);
        let counts: Option<Vec<usize>> = values.iter().map(|&value| usize::try_from(value).ok()).collect();
        match counts.as_deref() {
            Some([time, row, column, rest @ ..])
                if rest.iter().all(|&rest| rest == 0) && time.saturating_add(*row).saturating_add(*column) == pairs =>
            {
                Ok(Some(Sections { counts: [*time, *row, *column], interleaved }))
            }
            _ => Err(self.error(key, format!("holds {values:?}, expected three numbers that add up to {pairs} pairs"))),
        }
    }
}
