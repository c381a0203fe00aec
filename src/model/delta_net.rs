//! The keys of gated delta nets.

use super::keys::Keys;
use super::spec::{DeltaNetSpec, Projections};
use crate::Result;
use crate::backend::{DeltaNetShape, HeadOrder};

impl Keys<'_> {
    /// The gated delta net of layers whose projections lie `projections`.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(super) fn delta_net(&self, order: HeadOrder, projections: Projections) -> Result<DeltaNetSpec> {
        let (key_heads, value_heads) = (self.size("ssm.group_count")?, self.size("ssm.time_step_rank")?);
        let (key_size, inner) = (self.size("ssm.state_size")?, self.size("ssm.inner_size")?);
        let taps = self.taps("ssm.conv_kernel")?;
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

    /// Whether each layer carries a state: as a list says, else all but every n-th layer.
    pub(super) fn recurrent_layers(&self) -> Result<Vec<bool>> {
        let layers = self.layers()?;
        if let Some(kinds) = self.opt_flags("attention.recurrent_layers")? {
            return Ok(kinds.to_vec());
        }
        let interval = self.size("full_attention_interval")?;
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect())
    }
}
