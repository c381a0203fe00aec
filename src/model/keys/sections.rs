//! Reads the sections of M-RoPE.

use super::Keys;
use crate::Result;
use crate::spec::{ModelSpec, Sections};

const KEY: &str = "rope.dimension_sections";

impl Keys<'_> {
    /// Returns the numbers of the file's sections; `None` if it has none, or only empty ones.
    fn section_counts(&self) -> Result<Option<Vec<i64>>> {
        let counts = self.metadata.opt_ints(&self.full(KEY))?;
        Ok(counts.filter(|counts| counts.iter().any(|&count| count != 0)))
    }

    /// True if the file has sections that are not empty.
    pub(crate) fn has_sections(&self) -> Result<bool> {
        Ok(self.section_counts()?.is_some())
    }

    /// Returns the sections of the model's RoPE; `None` if the file has none, or only empty ones.
    pub(crate) fn sections(&self, model: &ModelSpec, interleaved: bool) -> Result<Option<Sections>> {
        let Some(values) = self.section_counts()? else { return Ok(None) };
        let pairs = model.ropes.iter().map(|rope| rope.inv_freq.len()).max().unwrap_or(0);
        let counts: Option<Vec<usize>> = values.iter().map(|&value| usize::try_from(value).ok()).collect();
        match counts.as_deref() {
            Some([time, row, column, rest @ ..])
                if rest.iter().all(|&rest| rest == 0) && time.saturating_add(*row).saturating_add(*column) == pairs =>
            {
                Ok(Some(Sections { counts: [*time, *row, *column], interleaved }))
            }
            _ => Err(self.error(KEY, format!("holds {values:?}, expected three numbers that add up to {pairs} pairs"))),
        }
    }
}
