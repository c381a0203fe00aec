//! The operands that give the lanes' addresses, in memory and in LDS.

use super::transfer::{Addresses, Segment, lane_addresses};
use crate::decode::cross_lane::all_lanes;
use crate::decode::{Decoded, Decoder};
use crate::operand::Source;
use crate::syntax::{Register, integer};
use crate::wave::{GROUP, MAX_LANES, Wave};

/// The operands that form the lanes' 64-bit addresses.
pub(in crate::decode) struct FlatAddress {
    base: Base,
    offset: i64,
}

enum Base {
    /// A pair of VGPRs.
    Lanes(Source),
    /// A pair of SGPRs, plus 32 bits of each lane.
    Shared { base: Source, lane: Source },
    /// 32 bits of each lane plus an SGPR; either may be missing.
    Scratch { lane: Option<Source>, shared: Option<Source> },
}

impl FlatAddress {
    /// Parses `v[1:2], off`, `v1, s[2:3]`; for scratch `v1, s2`, with `off` for a missing part. Flat addresses have one
    /// operand.
    pub(in crate::decode) fn decode(d: &Decoder<'_>, segment: Segment, vector: usize, scalar: usize) -> Decoded<Self> {
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

    pub(in crate::decode) fn lanes(&self, wave: &Wave) -> Addresses {
        let mut addresses = [0; MAX_LANES];
        for group in 0..wave.groups() {
            let part = &mut addresses[GROUP * group..][..GROUP];
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

/// An address in LDS: a byte offset in each lane, and a constant.
pub(in crate::decode) struct LdsAddress {
    lane: Source,
    offset: u64,
}

impl LdsAddress {
    pub(in crate::decode) fn decode(d: &Decoder<'_>, index: usize) -> Decoded<Self> {
        let offset = d.text.modifier("offset").map_or(Some(0), integer).ok_or("offset")?;
        Ok(Self { lane: Source::parse::<u32>(d.operand(index)?)?, offset: offset as u64 })
    }

    pub(in crate::decode) fn lanes(&self, wave: &Wave) -> Addresses {
        let lanes = all_lanes(&self.lane, wave);
        lane_addresses(wave, |lane| u64::from(lanes[lane]) + self.offset)
    }
}
