//! The rows of a step from which on copies of experts take less time than the CPU.

use std::time::Instant;

use super::HostCpu;
use crate::Result;
use crate::cpu::{LENT_ROWS, LentExperts, LentWork};

/// The most rows of a step that the CPU computes if its experts can be copied.
pub(crate) const MOST_ROWS: usize = 1024;

/// Rows of the measured steps: the fewest for which experts are copied, to those of a whole pass.
const MEASURED_ROWS: [usize; 3] = [16, 32, LENT_ROWS];
/// Layers of a kind that are measured. Several, so that a cache does not hold them.
const MEASURED_LAYERS: usize = 3;

impl HostCpu {
    /// Returns the fewest rows of a step for which copies of all experts take less time than the CPU. Call it before
    /// the first step.
    pub(crate) fn copied_rows(&self, seconds_per_byte: f64) -> Result<usize> {
        let mut layers = self.layers.lock().clone();
        layers.retain(|layer| layer.copied_bytes > 0);
        let copies = seconds_per_byte * layers.iter().map(|layer| layer.copied_bytes).sum::<u64>() as f64;
        let mut kinds: Vec<Vec<&LentExperts>> = Vec::new();
        for layer in &layers {
            match kinds.iter_mut().find(|kind| kind[0].spec() == layer.experts.spec()) {
                Some(kind) => kind.push(&layer.experts),
                None => kinds.push(vec![&layer.experts]),
            }
        }
        // The first step wakes the threads.
        self.seconds(&kinds, 1)?;
        threshold(copies, |rows| self.seconds(&kinds, rows))
    }

    /// Returns the seconds of a step of all layers, from some of each kind.
    fn seconds(&self, kinds: &[Vec<&LentExperts>], rows: usize) -> Result<f64> {
        let mut seconds = 0.0;
        for layers in kinds {
            let spec = *layers[0].spec();
            let pairs = rows * spec.used;
            let (x, weights) = (vec![1.0; rows * spec.hidden_size], vec![1.0; pairs]);
            // Experts without order, as a router chooses them.
            let number = |pair: usize| (pair as u32).wrapping_mul(0x9e37_79b9) >> 7;
            let numbers: Vec<u32> = (0..pairs).map(|pair| number(pair) % spec.num as u32).collect();
            let (mut out, mut work) = (x.clone(), LentWork::new(self.isa, &spec, rows)?);
            let measured = &layers[..layers.len().min(MEASURED_LAYERS)];
            let start = Instant::now();
            for experts in measured {
                experts.mix(&x, &numbers, &weights, &mut out, &mut work, &self.pool);
            }
            seconds += start.elapsed().as_secs_f64() / measured.len() as f64 * layers.len() as f64;
        }
        Ok(seconds)
    }
}

/// Returns the fewest rows whose step takes longer than the copies. Long steps are whole passes of the CPU.
fn threshold(copies: f64, mut seconds_of: impl FnMut(usize) -> Result<f64>) -> Result<usize> {
    let mut seconds = 0.0;
    for rows in MEASURED_ROWS {
        seconds = seconds_of(rows)?;
        if seconds > copies {
            return Ok(rows);
        }
    }
    let passes = (copies / seconds.max(f64::MIN_POSITIVE)) as usize;
    Ok(passes.saturating_mul(LENT_ROWS).saturating_add(1).min(MOST_ROWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass of 64 rows reads what one of 32 rows does, so three passes take less time than copies of 3.2 times.
    #[test]
    fn long_steps_are_counted_in_passes() {
        let rows = |copies: f64| threshold(copies, |rows| Ok(if rows < 32 { 0.6 } else { 1.0 })).unwrap();
        assert_eq!([0.5, 0.9, 1.5, 3.2, 1e9].map(rows), [16, 32, 65, 193, MOST_ROWS]);
        assert_eq!(threshold(0.0, |_| Ok(0.0)).unwrap(), 1);
    }
}
