//! `buffer_` instructions: memory through a descriptor in four SGPRs.
//!
//! Raw buffers (stride 0) are checked against the descriptor's size: loads beyond it give 0, stores are dropped. GFX9
//! and GFX10 use the descriptor of the scratch memory if they have no `scratch_` instructions. It is recognised by its
//! address.

use super::transfer::{Form, Segment, lane_addresses, load, store};
use crate::decode::{Decoded, Decoder, Flow, Step};
use crate::operand::{PRIVATE_APERTURE, Source};
use crate::syntax::integer;
use crate::wave::{Lanes, Wave};

pub(in crate::decode) fn decode(d: &Decoder<'_>) -> Decoded<Step> {
    let name = d.text.mnemonic.strip_prefix("buffer_").ok_or("unknown instruction")?;
    let form = Form::global(d, name)?;
    let data = form.registers(d, 0)?;
    let address = Address::decode(d)?;
    Ok(Box::new(move |wave, context| {
        let descriptor = address.descriptor(wave);
        let offsets = address.offsets(wave);
        if descriptor.is_scratch() {
            // The scalar offset counts bytes of the whole wave, the other offsets bytes of a lane.
            let shared = u64::from(address.scalar.scalar::<u32>(wave)) / wave.lanes as u64;
            let addresses = lane_addresses(wave, |lane| offsets[lane].wrapping_add(shared));
            let active = wave.exec;
            match form.is_load {
                true => load(Segment::Scratch, form, (wave, context), active, &addresses, data)?,
                false => store(Segment::Scratch, form, (wave, context), active, &addresses, data)?,
            }
            return Ok(Flow::Next);
        }
        let base = descriptor.base.wrapping_add(u64::from(address.scalar.scalar::<u32>(wave)));
        let addresses = lane_addresses(wave, |lane| base.wrapping_add(offsets[lane]));
        let inside = |lane: usize| offsets[lane].saturating_add(form.bytes as u64) <= descriptor.size;
        let active = wave.active().filter(|lane| inside(*lane)).fold(0, |mask, lane| mask | 1 << lane);
        if !form.is_load {
            store(Segment::Global, form, (wave, context), active, &addresses, data)?;
            return Ok(Flow::Next);
        }
        let outside = wave.exec & !active;
        load(Segment::Global, form, (wave, context), active, &addresses, data)?;
        for word in 0..form.words() as u16 {
            for lane in Lanes(outside) {
                let old = wave.lane(data + word, lane);
                let kept = match (form.d16, form.high) {
                    (false, _) => 0,
                    (true, false) => old & 0xffff_0000,
                    (true, true) => old & 0xffff,
                };
                wave.set_lane(data + word, lane, kept);
            }
        }
        Ok(Flow::Next)
    }))
}

struct Descriptor {
    base: u64,
    size: u64,
}

impl Descriptor {
    /// True if the descriptor has the address that the launch sets for scratch memory.
    fn is_scratch(&self) -> bool {
        self.base == PRIVATE_APERTURE
    }
}

struct Address {
    lane: Option<Source>,
    descriptor: u16,
    scalar: Source,
    offset: u64,
}

impl Address {
    /// `v1, v2, s[4:7], 0 offen offset:16`
    fn decode(d: &Decoder<'_>) -> Decoded<Self> {
        let lane = d.text.has("offen").then(|| d.source::<u32>(1)).transpose()?;
        if lane.is_none() && d.operand(1)? != "off" {
            return Err("a buffer with an index".to_owned());
        }
        let offset = d.text.modifier("offset").map_or(Some(0), integer).ok_or("offset")?;
        Ok(Self { lane, descriptor: d.sgpr(2)?, scalar: d.source::<u32>(3)?, offset: offset as u64 })
    }

    fn descriptor(&self, wave: &Wave) -> Descriptor {
        let base = wave.sgpr64(self.descriptor) & 0xffff_ffff_ffff;
        Descriptor { base, size: wave.sgpr(self.descriptor + 2).into() }
    }

    fn offsets(&self, wave: &Wave) -> super::transfer::Addresses {
        let offsets = self.lane.map(|lane| crate::decode::cross_lane::all_lanes(&lane, wave));
        lane_addresses(wave, |lane| offsets.map_or(0, |offsets| u64::from(offsets[lane])) + self.offset)
    }
}
