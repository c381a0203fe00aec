//! Additions and subtractions with a carry in or out, one bit a lane.

use super::{Decoded, Decoder, Step, step};
use crate::wave::{GROUP, sgpr};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let (operation, carries_in) = match d.name.as_str() {
        "add_co_u32" => (Operation::Add, false),
        "sub_co_u32" => (Operation::Subtract, false),
        "subrev_co_u32" => (Operation::SubtractReversed, false),
        // GFX9 before the `_co`.
        "add_u32" if d.operand_count() >= 4 => (Operation::Add, false),
        "sub_u32" if d.operand_count() >= 4 => (Operation::Subtract, false),
        "subrev_u32" if d.operand_count() >= 4 => (Operation::SubtractReversed, false),
        "add_co_ci_u32" | "addc_co_u32" | "addc_u32" => (Operation::Add, true),
        "sub_co_ci_u32" | "subb_co_u32" | "subb_u32" => (Operation::Subtract, true),
        "subrev_co_ci_u32" | "subbrev_co_u32" | "subbrev_u32" => (Operation::SubtractReversed, true),
        _ => return Ok(None),
    };
    carry(d, operation, carries_in).map(Some)
}

#[derive(Clone, Copy)]
enum Operation {
    Add,
    Subtract,
    SubtractReversed,
}

fn carry(d: &Decoder<'_>, operation: Operation, carries_in: bool) -> Decoded<Step> {
    d.expect_sources(if carries_in { 4 } else { 3 })?;
    let (dest, carry_out) = (d.dest::<u32>(0)?, d.sgpr(1)?);
    let (a, b) = (d.source::<u32>(2)?, d.source::<u32>(3)?);
    let carry_in = if carries_in { d.sgpr(4)? } else { sgpr::NULL };
    Ok(step(move |wave| {
        let carries = if carries_in { wave.mask(carry_in) } else { 0 };
        let mut result = 0;
        for group in 0..wave.groups() {
            let mut sums = a.group::<u32>(wave, group);
            let other = b.group::<u32>(wave, group);
            for lane in 0..GROUP {
                let (x, y) = match operation {
                    Operation::SubtractReversed => (other[lane], sums[lane]),
                    _ => (sums[lane], other[lane]),
                };
                let carry = carries >> (GROUP * group + lane) & 1 != 0;
                let (sum, overflow) = match operation {
                    Operation::Add => x.carrying_add(y, carry),
                    _ => x.borrowing_sub(y, carry),
                };
                sums[lane] = sum;
                result |= u64::from(overflow) << (GROUP * group + lane);
            }
            dest.put(wave, group, sums);
        }
        wave.set_mask(carry_out, result & wave.exec);
    }))
}
