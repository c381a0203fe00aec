//! The device memory of contents.

use super::GpuBackend;
use crate::DeviceSlice;
use crate::Result;
use crate::backend::Part;
use crate::backend::contents::outside;

/// Returns the device memory of parts: K and V, or the windows and matrices of states.
pub(super) fn memory_of<'p>(parts: &'p [Part<'_, GpuBackend>]) -> Result<Vec<DeviceSlice<'p>>> {
    let memory = parts.iter().map(of_part).collect::<Result<Vec<_>>>()?;
    Ok(memory.into_iter().flatten().filter(|memory| memory.bytes() > 0).collect())
}

fn of_part<'p>(part: &'p Part<'_, GpuBackend>) -> Result<Vec<DeviceSlice<'p>>> {
    let of_index = |memory: DeviceSlice<'p>, index: u32, bytes: u64| {
        let start = u64::from(index).checked_mul(bytes).ok_or_else(outside)?;
        memory.part(start, bytes)
    };
    Ok(match part {
        Part::Block(layer, block) => {
            if *block as usize >= layer.spec.num_blocks {
                return Err(outside());
            }
            let bytes = layer.spec.block_bytes().ok_or_else(outside)?;
            match layer.spec.latent {
                // Latent rows are K and V at once.
                Some(_) => vec![of_index(layer.v.slice(), *block, bytes)?],
                None => {
                    vec![of_index(layer.k.slice(), *block, bytes / 2)?, of_index(layer.v.slice(), *block, bytes / 2)?]
                }
            }
        }
        Part::Slot(layer, slot) => {
            if *slot as usize >= layer.spec.num_slots {
                return Err(outside());
            }
            let [windows, matrices] = [layer.spec.window_len(), layer.spec.matrices_len()].map(|len| 4 * len as u64);
            vec![of_index(layer.windows.slice(), *slot, windows)?, of_index(layer.matrices.slice(), *slot, matrices)?]
        }
    })
}
