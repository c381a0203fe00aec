//! `global_`, `flat_` and `scratch_` instructions: memory by 64-bit addresses.

use super::address::FlatAddress;
use super::atomic;
use super::transfer::{Form, Segment, load, store};
use crate::decode::{Decoded, Decoder, Flow, Step};

pub(in crate::decode) fn decode(d: &Decoder<'_>) -> Decoded<Step> {
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
        let (data, address) = (form.registers(d, 0)?, FlatAddress::decode(d, segment, 1, 2)?);
        return Ok(Box::new(move |wave, context| {
            let (active, addresses) = (wave.exec, address.lanes(wave));
            load(segment, form, (wave, context), active, &addresses, data)?;
            Ok(Flow::Next)
        }));
    }
    let (data, address) = (form.registers(d, 1)?, FlatAddress::decode(d, segment, 0, 2)?);
    Ok(Box::new(move |wave, context| {
        let (active, addresses) = (wave.exec, address.lanes(wave));
        store(segment, form, (wave, context), active, &addresses, data)?;
        Ok(Flow::Next)
    }))
}
