//! `global_`, `flat_` and `scratch_` instructions: memory by 64-bit addresses.

use super::transfer::{Addresses, Form, Segment, lane_addresses, load, store};
use super::{Decoded, Decoder, Flow, Step, atomic};
use crate::operand::Source;
use crate::syntax::{Register, integer};
use crate::wave::Wave;

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Step> {
    let (segment, name) = match d.text.mnemonic.split_once('_') {
        Some(("global", name)) => (Segment::Global, name),
        Some(("flat", name)) => (Segment::Flat, name),
        Some(("scratch", name)) => (Segment::Scratch, name),
        _ => return Err("unknown instruction".to_owned()),
    };
    if let Some(name) = name.strip_prefix("atomic_") {
        return atomic::flat(d, segment, name);
    }
    let form = Form::global(d, name)?;
    if form.is_load {
        let (data, address) = (form.registers(d, 0)?, Address::decode(d, segment, 1, 2)?);
        return Ok(Box::new(move |wave, context| {
            let (active, addresses) = (wave.exec, address.lanes(wave));
            load(segment, form, (wave, context), active, &addresses, data)?;
            Ok(Flow::Next)
        }));
    }
    let (data, address) = (form.registers(d, 1)?, Address::decode(d, segment, 0, 2)?);
    Ok(Box::new(move |wave, context| {
        let (active, addresses) = (wave.exec, address.lanes(wave));
        store(segment, form, (wave, context), active, &addresses, data)?;
        Ok(Flow::Next)
    }))
}

/// The operands that make the lanes' addresses.
pub(super) struct Address {
    base: Base,
    offset: i64,
}

enum Base {
    /// A pair of VGPRs.
    Lanes(Source),
    /// A pair of SGPRs, and 32 bits of each lane.
    Shared { base: Source, lane: Source },
    /// 32 bits of each lane, and of an SGPR; either may be absent.
    Scratch { lane: Option<Source>, shared: Option<Source> },
}

impl Address {
    /// `v[1:2], off`, `v1, s[2:3]`; for scratch `v1, s2` with `off` for what is absent. Flat addresses have one
    /// operand.
    pub(super) fn decode(d: &Decoder<'_>, segment: Segment, vector: usize, scalar: usize) -> Decoded<Self> {
        let offset = d.text.modifier("offset").map_or(Some(0), integer).ok_or("offset")?;
        let scalar_text = d.text.operands.get(scalar).map_or("off", String::as_str);
        let scalar_text = Some(scalar_text).filter(|text| !matches!(*text, "off" | "null"));
        let vector_text = Some(d.operand(vector)?).filter(|text| *text != "off");
        let base = match (segment, vector_text, scalar_text) {
            (Segment::Scratch, lane, shared) => Base::Scratch {
                lane: lane.map(Source::parse::<u32>).transpose()?,
                shared: shared.map(Source::parse::<u32>).transpose()?,
            },
            (_, Some(lanes), None) => Base::Lanes(Source::parse::<u64>(lanes)?),
            (_, Some(lane), Some(base)) => match Register::parse(lane) {
                Some(Register::Vgpr { count: 1, .. }) => {
                    Base::Shared { base: Source::parse::<u64>(base)?, lane: Source::parse::<u32>(lane)? }
                }
                _ => return Err(format!("address {lane}, {base}")),
            },
            (_, None, _) => return Err("address".to_owned()),
        };
        Ok(Self { base, offset })
    }

    pub(super) fn lanes(&self, wave: &Wave) -> Addresses {
        let mut addresses = [0; crate::wave::MAX_LANES];
        for group in 0..wave.groups() {
            let part = &mut addresses[crate::wave::GROUP * group..][..crate::wave::GROUP];
            match &self.base {
                Base::Lanes(lanes) => part.copy_from_slice(&lanes.group::<u64>(wave, group)),
                Base::Shared { base, lane } => {
                    let base: u64 = base.scalar(wave);
                    let offsets = lane.group::<u32>(wave, group);
                    part.copy_from_slice(&offsets.map(|offset| base.wrapping_add(offset.into())));
                }
                Base::Scratch { lane, shared } => {
                    let shared = shared.map_or(0, |source| source.scalar::<u32>(wave));
                    match lane {
                        Some(lane) => {
                            let offsets = lane.group::<u32>(wave, group);
                            part.copy_from_slice(&offsets.map(|offset| offset.wrapping_add(shared).into()));
                        }
                        None => part.fill(shared.into()),
                    }
                }
            }
        }
        let offset = self.offset;
        lane_addresses(wave, |lane| addresses[lane].wrapping_add_signed(offset))
    }
}
