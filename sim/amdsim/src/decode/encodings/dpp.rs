//! DPP: the first source is read from other lanes.
//!
//! The instruction is decoded as if it read a temporary register. A shell around it fills this register, and disables
//! the lanes that must not be written.

use crate::decode::{Decoded, Decoder, Step};
use crate::syntax::Register;
use crate::wave::{GROUP, MAX_LANES, vgpr};

const TEMP: u16 = vgpr::TEMP;

/// Wraps an instruction with the work before and after it.
pub(in crate::decode) type Shell = Box<dyn FnOnce(Step) -> Step>;

pub(in crate::decode) struct Dpp {
    source: u16,
    /// The lane that each lane reads.
    lanes: [usize; MAX_LANES],
    /// The lanes whose source lane exists.
    valid: u64,
    /// The lanes that `row_mask` and `bank_mask` enable.
    enabled: u64,
    /// Lanes without a valid source read 0; otherwise they are not written.
    bounded: bool,
    fetches_inactive: bool,
}

const CONTROLS: [&str; 16] = [
    "quad_perm",
    "row_shl",
    "row_shr",
    "row_ror",
    "row_mirror",
    "row_half_mirror",
    "row_share",
    "row_newbcast",
    "row_xmask",
    "row_bcast",
    "wave_shl",
    "wave_shr",
    "wave_rol",
    "wave_ror",
    "dpp8",
    "row_broadcast",
];

impl Dpp {
    /// Removes the DPP part from an instruction and returns it, if there is one.
    pub(in crate::decode) fn take(d: &mut Decoder<'_>) -> Decoded<Option<Self>> {
        let Some((control, value)) = CONTROLS.iter().find_map(|c| Some((*c, d.text.modifier(c)?.to_owned()))) else {
            return Ok(None);
        };
        let mut lanes = [0; MAX_LANES];
        let mut valid = 0;
        for (lane, from) in lanes.iter_mut().enumerate() {
            let source = source_lane(control, &value, lane as i64, d.target.lanes as i64)?;
            *from = source.unwrap_or(0);
            valid |= u64::from(source.is_some()) << lane;
        }
        let mask = |name: &str| match d.text.modifier(name) {
            Some(text) => crate::syntax::integer(text).ok_or_else(|| format!("{name}:{text}")),
            None => Ok(0xf),
        };
        let (rows, banks) = (mask("row_mask")?, mask("bank_mask")?);
        let on = |lane: usize| rows >> (lane / 16) & banks >> (lane % 16 / 4) & 1 != 0;
        let enabled = (0..MAX_LANES).filter(|lane| on(*lane)).fold(0, |mask, lane| mask | 1 << lane);
        if d.name.starts_with("cmpx") {
            return Err("DPP on a comparison that writes EXEC".to_owned());
        }
        // The first source follows one destination, or two if there is a carry.
        let operand = if d.name.contains("_co_") || d.name.starts_with("div_scale") { 2 } else { 1 };
        let text = d.operand(operand)?;
        let register = text.trim_start_matches(['-', '|']).trim_end_matches('|');
        let Some(Register::Vgpr { first, count: 1 }) = Register::parse(register) else {
            return Err(format!("DPP source {text}"));
        };
        let dpp = Self {
            source: first,
            lanes,
            valid,
            enabled,
            bounded: d.text.has("bound_ctrl"),
            fetches_inactive: d.text.modifier("fi") == Some("1"),
        };
        d.text.replace_register(operand, TEMP);
        Ok(Some(dpp))
    }

    pub(in crate::decode) fn shell(self) -> Shell {
        Box::new(move |inner| {
            Box::new(move |wave, context| {
                let exec = wave.exec;
                let source = *wave.vgpr(self.source);
                let readable = if self.fetches_inactive { u64::MAX } else { exec };
                let mut written = 0;
                for (lane, from) in self.lanes.iter().enumerate().take(wave.lanes) {
                    let valid = self.valid >> lane & readable >> from & 1 != 0;
                    let value = if valid { source[from / GROUP][from % GROUP] } else { 0 };
                    wave.set_lane(TEMP, lane, value);
                    written |= u64::from(valid || self.bounded) << lane;
                }
                wave.use_mask(exec & written & self.enabled);
                let flow = inner(wave, context);
                wave.use_mask(exec);
                flow
            })
        })
    }
}

/// Returns the lane that `lane` reads, or none if it would be outside.
fn source_lane(control: &str, value: &str, lane: i64, lanes: i64) -> Decoded<Option<usize>> {
    let (row, column) = (lane & !15, lane & 15);
    let bad = || format!("{control}:{value}");
    let list = || -> Decoded<Vec<i64>> {
        let list = value.trim_matches(['[', ']']);
        list.split(',').map(|item| item.trim().parse().map_err(|_| bad())).collect()
    };
    let element = |index: i64| -> Decoded<i64> { list()?.get(index as usize).copied().ok_or_else(bad) };
    let number = || value.parse::<i64>().map_err(|_| bad());
    let within_row = |column: i64| (0..16).contains(&column).then_some(row + column);
    let source = match control {
        "quad_perm" => Some((lane & !3) + element(lane & 3)?),
        "dpp8" => Some((lane & !7) + element(lane & 7)?),
        "row_shl" => within_row(column + number()?),
        "row_shr" => within_row(column - number()?),
        "row_ror" => Some(row + ((column - number()?) & 15)),
        "row_mirror" => Some(row + 15 - column),
        "row_half_mirror" => Some(lane ^ 7),
        "row_share" | "row_newbcast" => within_row(number()?),
        "row_xmask" => within_row(column ^ number()?),
        "row_bcast" if value == "15" => (lane >= 16).then_some(row - 1),
        "row_bcast" if value == "31" => (lane >= 32).then_some((lane & !31) - 1),
        "wave_shl" => Some(lane + 1).filter(|lane| *lane < lanes),
        "wave_shr" => Some(lane - 1),
        "wave_rol" => Some((lane + 1) % lanes),
        "wave_ror" => Some((lane + lanes - 1) % lanes),
        _ => return Err(bad()),
    };
    Ok(source.filter(|lane| (0..MAX_LANES as i64).contains(lane)).map(|lane| lane as usize))
}
