//! VOPD: two instructions in one; both read before either writes.

use crate::decode::{Decoded, Decoder, Step};
use crate::disassembly::Line;
use crate::syntax::{Register, Text};
use crate::target::Target;

/// Decodes `v_dual_mov_b32 v4, 0 :: v_dual_and_b32 v5, 31, v0`.
pub(in crate::decode) fn decode(target: &Target, line: &Line) -> Decoded<Step> {
    let (first, second) = line.text.split_once("::").ok_or("no second half")?;
    let half = |text: &str| Text::parse(&text.trim().replace("v_dual_", "v_"));
    let (first, second) = (half(first), half(second));
    let result = match first.operands.first().and_then(|text| Register::parse(text)) {
        Some(Register::Vgpr { first, count: 1 }) => first,
        _ => return Err("the first half's destination is no VGPR".to_owned()),
    };
    let name = format!("v{result}");
    let conflict = second.operands.iter().any(|text| text.trim_matches(['-', '|']) == name);
    let first = Decoder::new(target, line, first).vector()?;
    let second = Decoder::new(target, line, second).vector()?;
    if !conflict {
        return Ok(Box::new(move |wave, context| {
            first(wave, context)?;
            second(wave, context)
        }));
    }
    Ok(Box::new(move |wave, context| {
        let register = usize::from(result);
        let old = wave.vgprs[register];
        first(wave, context)?;
        let new = std::mem::replace(&mut wave.vgprs[register], old);
        let flow = second(wave, context)?;
        wave.vgprs[register] = new;
        Ok(flow)
    }))
}
