//! `ds_` instructions: LDS, and exchanges between lanes through its crossbar.

use super::address::LdsAddress;
use super::atomic;
use super::transfer::{Form, Segment, lane_addresses, load, store};
use crate::decode::cross_lane::{all_lanes, put_lanes};
use crate::decode::{Decoded, Decoder, Flow, Step, step};
use crate::operand::Source;
use crate::syntax::integer;
use crate::wave::MAX_LANES;

pub(in crate::decode) fn decode(d: &Decoder<'_>) -> Decoded<Step> {
    let name = d.text.mnemonic.strip_prefix("ds_").ok_or("unknown instruction")?;
    match name {
        "nop" => return Ok(step(|_| {})),
        "bpermute_b32" => return backward_permute(d),
        "permute_b32" => return permute(d),
        "swizzle_b32" => return swizzle(d),
        _ => {}
    }
    if let Some(two) = Two::parse(name) {
        return two.decode(d);
    }
    let Some(form) = Form::parse(name) else { return atomic::lds(d, name) };
    let address = LdsAddress::decode(d, if form.is_load { 1 } else { 0 })?;
    let data = form.registers(d, if form.is_load { 0 } else { 1 })?;
    Ok(Box::new(move |wave, context| {
        let (active, addresses) = (wave.exec, address.lanes(wave));
        match form.is_load {
            true => load(Segment::Lds, form, (wave, context), active, &addresses, data)?,
            false => store(Segment::Lds, form, (wave, context), active, &addresses, data)?,
        }
        Ok(Flow::Next)
    }))
}

/// Loads and stores at two addresses: `read2st64_b32`, `store_2addr_b64`.
struct Two {
    form: Form,
    /// Bytes per unit of the offsets.
    unit: u64,
}

impl Two {
    fn parse(name: &str) -> Option<Self> {
        let name = name.replace("read2", "read_2addr").replace("write2", "write_2addr");
        let name = name.replace("2addrst64", "2addr_stride64");
        let (verb, size) = name.split_once("_2addr_")?;
        let (strided, size) = size.strip_prefix("stride64_").map_or((false, size), |size| (true, size));
        let form = Form::parse(&format!("{verb}_{size}"))?;
        Some(Self { form, unit: form.bytes as u64 * if strided { 64 } else { 1 } })
    }

    fn decode(self, d: &Decoder<'_>) -> Decoded<Step> {
        let Self { form, unit } = self;
        let offset = |name| -> Decoded<u64> {
            let count = d.text.modifier(name).map_or(Some(0), integer).ok_or("offset")?;
            Ok(count as u64 * unit)
        };
        let offsets = [offset("offset0")?, offset("offset1")?];
        let address = |index| -> Decoded<Source> { Source::parse::<u32>(d.operand(index)?) };
        if !form.is_load {
            let (address, data) = (address(0)?, [form.registers(d, 1)?, form.registers(d, 2)?]);
            return Ok(Box::new(move |wave, context| {
                let (active, lanes) = (wave.exec, all_lanes(&address, wave));
                for (offset, data) in offsets.iter().zip(data) {
                    let addresses = lane_addresses(wave, |lane| u64::from(lanes[lane]) + offset);
                    store(Segment::Lds, form, (wave, context), active, &addresses, data)?;
                }
                Ok(Flow::Next)
            }));
        }
        let (address, data) = (address(1)?, d.vgpr(0)?);
        Ok(Box::new(move |wave, context| {
            let (active, lanes) = (wave.exec, all_lanes(&address, wave));
            let second = data + form.words() as u16;
            for (offset, data) in offsets.iter().zip([data, second]) {
                let addresses = lane_addresses(wave, |lane| u64::from(lanes[lane]) + offset);
                load(Segment::Lds, form, (wave, context), active, &addresses, data)?;
            }
            Ok(Flow::Next)
        }))
    }
}

/// Each lane reads the lane that its byte offset names; 0 from a disabled lane.
fn backward_permute(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, address, data) = (d.vgpr(0)?, LdsAddress::decode(d, 1)?, Source::parse::<u32>(d.operand(2)?)?);
    Ok(step(move |wave| {
        let (addresses, values) = (address.lanes(wave), all_lanes(&data, wave));
        let read = |lane: usize| {
            let from = (addresses[lane] / 4) as usize & (wave.lanes - 1);
            if wave.exec >> from & 1 != 0 { values[from] } else { 0 }
        };
        let results = std::array::from_fn(read);
        put_lanes(dest, wave, &results);
    }))
}

/// Each lane writes to the lane that its byte offset names. The last write wins; lanes without a write get 0.
fn permute(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, address, data) = (d.vgpr(0)?, LdsAddress::decode(d, 1)?, Source::parse::<u32>(d.operand(2)?)?);
    Ok(step(move |wave| {
        let (addresses, values) = (address.lanes(wave), all_lanes(&data, wave));
        let mut results = [0; MAX_LANES];
        for lane in wave.active() {
            results[(addresses[lane] / 4) as usize & (wave.lanes - 1)] = values[lane];
        }
        put_lanes(dest, wave, &results);
    }))
}

/// Each lane reads the lane that a constant pattern gives.
fn swizzle(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, data) = (d.vgpr(0)?, Source::parse::<u32>(d.operand(1)?)?);
    let pattern = d.text.modifier("offset").unwrap_or("0").to_owned();
    let mut sources = [0; MAX_LANES];
    for (lane, source) in sources.iter_mut().enumerate() {
        *source = swizzle_source(&pattern, lane).ok_or_else(|| format!("pattern {pattern}"))?;
    }
    Ok(step(move |wave| {
        let values = all_lanes(&data, wave);
        let read = |lane: usize| {
            let from = sources[lane] & (wave.lanes - 1);
            if wave.exec >> from & 1 != 0 { values[from] } else { 0 }
        };
        let results = std::array::from_fn(read);
        put_lanes(dest, wave, &results);
    }))
}

/// Parses `swizzle(SWAP,1)`, `swizzle(BITMASK_PERM,"00p11")`, or the bits themselves.
fn swizzle_source(pattern: &str, lane: usize) -> Option<usize> {
    if let Some(bits) = integer(pattern) {
        let bits = bits as usize;
        if bits & 0x8000 != 0 {
            return (bits & 0x7f00 == 0).then_some(lane & !3 | bits >> (2 * (lane & 3)) & 3);
        }
        return Some(lane & !31 | (lane & 31 & bits | bits >> 5 & 31) ^ bits >> 10 & 31);
    }
    let inner = pattern.strip_prefix("swizzle(")?.strip_suffix(')')?;
    let (kind, arguments) = inner.split_once(',')?;
    let numbers: Vec<usize> = arguments.split(',').map_while(|text| text.trim().parse().ok()).collect();
    match (kind, numbers.as_slice()) {
        ("SWAP", [distance]) => Some(lane ^ distance),
        ("REVERSE", [size]) => Some(lane ^ (size - 1)),
        ("BROADCAST", [size, index]) => Some(lane & !(size - 1) | index),
        ("QUAD_PERM", [_, _, _, _]) => Some(lane & !3 | numbers[lane & 3]),
        // The letters mean bits, from the highest: 0, 1, keep (p) or invert (i).
        ("BITMASK_PERM", _) => {
            let letters = arguments.trim().trim_matches('"').bytes();
            let bit = |result: usize, (at, letter): (usize, u8)| {
                let own = lane >> (4 - at) & 1;
                Some(
                    result << 1
                        | match letter {
                            b'0' => 0,
                            b'1' => 1,
                            b'p' => own,
                            b'i' => own ^ 1,
                            _ => return None,
                        },
                )
            };
            letters.enumerate().try_fold(lane >> 5, bit)
        }
        _ => None,
    }
}
