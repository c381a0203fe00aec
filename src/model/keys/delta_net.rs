//! The keys of gated delta nets.

use super::Keys;
use crate::Result;
use crate::backend::{DeltaNetShape, HeadOrder};
use crate::spec::{DeltaNetSpec, Projections};

impl Keys<'_> {
    /// Reads the gated delta net of layers with this layout of projections.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(crate) fn delta_net(&self, order: HeadOrder, projections: Projections) -> Result<DeltaNetSpec> {
        let (key_heads, value_heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        let (key_size, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        let taps = self.taps("ssm.conv_kernel")?;
        // Ollama's converter writes this key.
        if let Some(is_tiled) = self.opt_bool("ssm.v_head_reordered")?.filter(|&is| is != (order == HeadOrder::Tiled)) {
            let problem = format!("is {is_tiled}, the order of heads that {} models do not have", self.architecture);
            return Err(self.error("ssm.v_head_reordered", problem));
        }
        if !value_heads.is_multiple_of(key_heads) {
            let problem = format!("is {value_heads}, expected a multiple of ssm.group_count ({key_heads})");
            return Err(self.error("ssm.time_step_rank", problem));
        }
        if key_size > DeltaNetShape::MAX_HEAD_SIZE {
            let problem = format!("is {key_size}; this version supports at most {}", DeltaNetShape::MAX_HEAD_SIZE);
            return Err(self.error("ssm.state_size", problem));
        }
        if Some(inner) != value_heads.checked_mul(key_size) {
            let problem =
                format!("is {inner}, expected ssm.time_step_rank ({value_heads}) times ssm.state_size ({key_size})");
            return Err(self.error("ssm.inner_size", problem));
        }
        let gate_run = match projections {
            Projections::Apart => value_heads,
            Projections::GatesTogether | Projections::HeadsTogether => value_heads / key_heads,
        };
        let value_size = key_size;
        let shape = DeltaNetShape { key_heads, value_heads, key_size, value_size, taps, order, gate_run };
        Ok(DeltaNetSpec { shape, projections })
    }

    /// Returns a flag per layer, true for recurrent layers. Without a list in the file, all but every n-th layer are
    /// recurrent.
    pub(crate) fn recurrent_layers(&self) -> Result<Vec<bool>> {
        let layers = self.layers()?;
        let interval = self.opt_size("full_attention_interval")?;
        if let Some(kinds) = self.opt_flags("attention.recurrent_layers")? {
            return Ok(kinds);
        }
        let interval = interval.map_or_else(|| self.size("full_attention_interval"), Ok)?;
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect())
    }
}
