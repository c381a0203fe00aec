//! Instructions in which lanes read each other, or that combine scalar and vector registers.

use super::{Decoded, Decoder, Step, step};
use crate::operand::Source;
use crate::wave::{GROUP, MAX_LANES, Wave};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let step = match d.name.as_str() {
        "mbcnt_lo_u32_b32" => count_below(d, 0),
        "mbcnt_hi_u32_b32" => count_below(d, 32),
        "readfirstlane_b32" => read_first_lane(d),
        "readlane_b32" => read_lane(d),
        "writelane_b32" => write_lane(d),
        "permlane16_b32" => permute_rows(d, 0),
        "permlanex16_b32" => permute_rows(d, 16),
        "permlane64_b32" => exchange_halves(d),
        "permlane16_swap_b32" => swap_rows(d, 16),
        "permlane32_swap_b32" => swap_rows(d, 32),
        _ => return Ok(None),
    };
    step.map(Some)
}

/// Counts the mask bits of lower lanes. `base` is the lane of the mask's bit 0.
fn count_below(d: &Decoder<'_>, base: usize) -> Decoded<Step> {
    d.expect_sources(2)?;
    let (dest, mask, addend) = (d.dest::<u32>(0)?, d.source::<u32>(1)?, d.source::<u32>(2)?);
    Ok(step(move |wave| {
        for group in 0..wave.groups() {
            let masks = mask.group::<u32>(wave, group);
            let mut counts = addend.group::<u32>(wave, group);
            for lane in 0..GROUP {
                let below = (GROUP * group + lane).saturating_sub(base).min(32);
                let lower = ((1u64 << below) - 1) as u32;
                counts[lane] = counts[lane].wrapping_add((masks[lane] & lower).count_ones());
            }
            dest.put(wave, group, counts);
        }
    }))
}

/// Returns a register's content in all lanes.
pub(super) fn all_lanes(source: &Source, wave: &Wave) -> [u32; MAX_LANES] {
    let mut values = [0; MAX_LANES];
    for group in 0..wave.groups() {
        values[GROUP * group..][..GROUP].copy_from_slice(&source.group::<u32>(wave, group));
    }
    values
}

/// Writes a result to the active lanes.
pub(super) fn put_lanes(dest: u16, wave: &mut Wave, values: &[u32; MAX_LANES]) {
    for group in 0..wave.groups() {
        let mut part = [0; GROUP];
        part.copy_from_slice(&values[GROUP * group..][..GROUP]);
        wave.set_group(dest, group, &part);
    }
}

fn read_first_lane(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(1)?;
    let (dest, source) = (d.sgpr(0)?, d.source::<u32>(1)?);
    Ok(step(move |wave| {
        // Lane 0 if none is active.
        let first = wave.active().next().unwrap_or(0);
        let value = all_lanes(&source, wave)[first];
        wave.set_sgpr(dest, value);
    }))
}

fn read_lane(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(2)?;
    let (dest, source, lane) = (d.sgpr(0)?, d.source::<u32>(1)?, d.source::<u32>(2)?);
    Ok(step(move |wave| {
        let lane = lane.scalar::<u32>(wave) as usize & (wave.lanes - 1);
        let value = all_lanes(&source, wave)[lane];
        wave.set_sgpr(dest, value);
    }))
}

fn write_lane(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(2)?;
    let (dest, value, lane) = (d.vgpr(0)?, d.source::<u32>(1)?, d.source::<u32>(2)?);
    Ok(step(move |wave| {
        let lane = lane.scalar::<u32>(wave) as usize & (wave.lanes - 1);
        let value = value.scalar::<u32>(wave);
        wave.set_lane(dest, lane, value);
    }))
}

/// Each lane reads a lane of its row of 16, or of the adjacent row; four bits of two scalars select it.
fn permute_rows(d: &Decoder<'_>, other_row: usize) -> Decoded<Step> {
    d.expect_sources(3)?;
    let (dest, source) = (d.vgpr(0)?, d.source::<u32>(1)?);
    let (low, high) = (d.source::<u32>(2)?, d.source::<u32>(3)?);
    // op_sel:[fetch-inactive, bound-control]. Either all lanes that are read are active, or it must be set.
    let select = d.text.bits("op_sel").unwrap_or_default();
    let fetches_inactive = select.first() == Some(&true);
    let bounded = select.get(1) == Some(&true);
    Ok(step(move |wave| {
        let values = all_lanes(&source, wave);
        let choice = u64::from(low.scalar::<u32>(wave)) | u64::from(high.scalar::<u32>(wave)) << 32;
        let mut written = 0u64;
        let mut results = [0; MAX_LANES];
        for (lane, result) in results.iter_mut().enumerate().take(wave.lanes) {
            let from = (lane & !15 ^ other_row) + (choice >> (4 * (lane & 15)) & 15) as usize;
            let valid = fetches_inactive || wave.exec >> from & 1 != 0;
            *result = if valid { values[from] } else { 0 };
            written |= u64::from(valid || bounded) << lane;
        }
        let exec = wave.exec;
        wave.use_mask(exec & written);
        put_lanes(dest, wave, &results);
        wave.use_mask(exec);
    }))
}

/// Swaps the two halves of a wave64; nothing in a wave32.
fn exchange_halves(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(1)?;
    let (dest, source) = (d.vgpr(0)?, d.source::<u32>(1)?);
    Ok(step(move |wave| {
        let values = all_lanes(&source, wave);
        let other = wave.lanes & 32;
        put_lanes(dest, wave, &std::array::from_fn(|lane| values[lane ^ other]));
    }))
}

/// Swaps the odd rows of the first register with the even rows of the second; a row is `size` lanes.
fn swap_rows(d: &Decoder<'_>, size: usize) -> Decoded<Step> {
    let (first, second) = (d.vgpr(0)?, d.vgpr(1)?);
    Ok(step(move |wave| {
        for lane in (0..wave.lanes).filter(|lane| lane & size == 0) {
            let (even, odd) = (wave.lane(second, lane), wave.lane(first, lane + size));
            wave.set_lane(first, lane + size, even);
            wave.set_lane(second, lane, odd);
        }
    }))
}
