//! Packed arithmetic: two 16-bit values in a register, or two floats in a pair of them.

use super::{Decoded, Decoder, Step, step};
use crate::lane::{Half, Kind, Lane};
use crate::operand::{Dest, Place, Source};
use crate::syntax::{Constant, Register};
use crate::wave::{GROUP, Wave};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let Some(name) = d.name.strip_prefix("pk_") else { return Ok(None) };
    let step = match name {
        "add_f16" => halves(d, |[a, b, _]: [Half; 3]| Half::new(a.f32() + b.f32())),
        "mul_f16" => halves(d, |[a, b, _]: [Half; 3]| Half::new(a.f32() * b.f32())),
        "max_f16" => halves(d, |[a, b, _]: [Half; 3]| Half::new(a.f32().max(b.f32()))),
        "min_f16" => halves(d, |[a, b, _]: [Half; 3]| Half::new(a.f32().min(b.f32()))),
        "fma_f16" => halves(d, |[a, b, c]: [Half; 3]| super::half::fma(a, b, c)),
        "fmac_f16" => fmac(d),
        "add_u16" | "add_i16" => halves(d, |[a, b, _]: [u16; 3]| a.wrapping_add(b)),
        "sub_u16" | "sub_i16" => halves(d, |[a, b, _]: [u16; 3]| a.wrapping_sub(b)),
        "mul_lo_u16" => halves(d, |[a, b, _]: [u16; 3]| a.wrapping_mul(b)),
        "mad_u16" | "mad_i16" => halves(d, |[a, b, c]: [u16; 3]| a.wrapping_mul(b).wrapping_add(c)),
        "max_u16" => halves(d, |[a, b, _]: [u16; 3]| a.max(b)),
        "min_u16" => halves(d, |[a, b, _]: [u16; 3]| a.min(b)),
        "max_i16" => halves(d, |[a, b, _]: [i16; 3]| a.max(b)),
        "min_i16" => halves(d, |[a, b, _]: [i16; 3]| a.min(b)),
        "lshlrev_b16" => halves(d, |[a, b, _]: [u16; 3]| b << (a & 15)),
        "lshrrev_b16" => halves(d, |[a, b, _]: [u16; 3]| b >> (a & 15)),
        "ashrrev_i16" => halves(d, |[a, b, _]: [i16; 3]| b >> (a & 15)),
        "add_f32" => floats(d, |[a, b, _]| a + b),
        "mul_f32" => floats(d, |[a, b, _]| a * b),
        "fma_f32" => floats(d, |[a, b, c]| a.mul_add(b, c)),
        "mov_b32" => mov(d),
        _ => return Ok(None),
    };
    step.map(Some)
}

/// The four modifiers: which half of each source goes to each half of the result, and with which sign.
struct Selection {
    low: Vec<bool>,
    high: Vec<bool>,
    negate_low: Vec<bool>,
    negate_high: Vec<bool>,
}

impl Selection {
    fn decode(d: &Decoder<'_>) -> Self {
        let bits = |name, default| d.text.bits(name).unwrap_or_else(|| vec![default; 3]);
        Self {
            low: bits("op_sel", false),
            high: bits("op_sel_hi", true),
            negate_low: bits("neg_lo", false),
            negate_high: bits("neg_hi", false),
        }
    }
}

fn at(bits: &[bool], index: usize) -> bool {
    bits.get(index).copied().unwrap_or(false)
}

/// A source's two halves, for the low and the high result.
type Pair = (Source, Source);

fn half_pair<T: Lane>(d: &Decoder<'_>, selection: &Selection, index: usize) -> Decoded<Pair> {
    let text = d.operand(index + 1)?;
    let mut source = Source::parse::<T>(text)?;
    let (low, high) = (at(&selection.low, index), at(&selection.high, index));
    match Constant::parse(text) {
        // Such a constant occupies only the low half of the operand.
        Some(Constant::Float(value)) if value != 0.0 && (low || high) => {
            return Err(format!("the upper half of the packed constant {text}"));
        }
        // Sign-extended to 32 bits; a literal already has 32 bits.
        Some(Constant::Integer(value)) => source.place = Place::Bits(u64::from(value as u32)),
        _ => {}
    }
    let negated = |mut source: Source, high: bool, negate: bool| {
        source.high = high;
        source.negate ^= negate;
        source
    };
    if T::KIND != Kind::Float && (at(&selection.negate_low, index) || at(&selection.negate_high, index)) {
        return Err("neg_lo on integers".to_owned());
    }
    Ok((
        negated(source, low, at(&selection.negate_low, index)),
        negated(source, high, at(&selection.negate_high, index)),
    ))
}

/// Replaces the third source of an instruction that has only two.
fn absent() -> Pair {
    (Source::new(Place::Bits(0)), Source::new(Place::Bits(0)))
}

fn halves<T: Lane>(d: &Decoder<'_>, f: impl Fn([T; 3]) -> T + Copy + Send + Sync + 'static) -> Decoded<Step> {
    let selection = Selection::decode(d);
    let count = d.operand_count() - 1;
    let pair = |index| if index < count { half_pair::<T>(d, &selection, index) } else { Ok(absent()) };
    let sources = [pair(0)?, pair(1)?, pair(2)?];
    packed_halves(d, sources, f)
}

fn packed_halves<T: Lane>(
    d: &Decoder<'_>,
    sources: [Pair; 3],
    f: impl Fn([T; 3]) -> T + Copy + Send + Sync + 'static,
) -> Decoded<Step> {
    let dest = d.dest::<u32>(0)?;
    let clamp = T::KIND == Kind::Float && d.text.has("clamp");
    let f = move |values| if clamp { f(values).saturate() } else { f(values) };
    Ok(step(move |wave: &mut Wave| {
        for group in 0..wave.groups() {
            let low = sources.map(|(low, _)| low.group::<T>(wave, group));
            let high = sources.map(|(_, high)| high.group::<T>(wave, group));
            let result = std::array::from_fn(|lane| {
                let low = f(low.map(|values| values[lane])).bits() as u32;
                let high = f(high.map(|values| values[lane])).bits() as u32;
                low | high << 16
            });
            dest.put::<u32>(wave, group, result);
        }
    }))
}

fn fmac(d: &Decoder<'_>) -> Decoded<Step> {
    let selection = Selection::decode(d);
    let mut high = Source::parse::<Half>(d.operand(0)?)?;
    let low = high;
    high.high = true;
    let sources = [half_pair::<Half>(d, &selection, 0)?, half_pair::<Half>(d, &selection, 1)?, (low, high)];
    packed_halves(d, sources, |[a, b, c]| super::half::fma(a, b, c))
}

/// Returns one word of a 64-bit operand. A constant is the same in both words.
fn word(d: &Decoder<'_>, index: usize, high: bool, negate: bool) -> Decoded<Source> {
    let text = d.operand(index + 1)?;
    let place = match Register::parse(text) {
        Some(Register::Vgpr { first, .. }) => Place::Vgpr(first + u16::from(high)),
        Some(Register::Sgpr { first, .. }) => Place::Sgpr(first + u16::from(high)),
        None => Source::parse::<f32>(text)?.place,
    };
    Ok(Source { negate, ..Source::new(place) })
}

fn floats(d: &Decoder<'_>, f: impl Fn([f32; 3]) -> f32 + Copy + Send + Sync + 'static) -> Decoded<Step> {
    let selection = Selection::decode(d);
    let count = d.operand_count() - 1;
    let zero = Source::new(Place::Bits(0));
    let low = |index| match index < count {
        true => word(d, index, at(&selection.low, index), at(&selection.negate_low, index)),
        false => Ok(zero),
    };
    let high = |index| match index < count {
        true => word(d, index, at(&selection.high, index), at(&selection.negate_high, index)),
        false => Ok(zero),
    };
    let (low, high) = ([low(0)?, low(1)?, low(2)?], [high(0)?, high(1)?, high(2)?]);
    let dest = d.dest::<f32>(0)?;
    let second = Dest { register: dest.register + 1, ..dest };
    let apply = move |values: &[[f32; GROUP]; 3]| {
        let [a, b, c] = values;
        super::map::map3(a, b, c, move |a, b, c| f([a, b, c]))
    };
    Ok(step(move |wave: &mut Wave| {
        for group in 0..wave.groups() {
            // Both are read before either is written: they may share registers.
            let (low, high) = (low.map(|s| s.group::<f32>(wave, group)), high.map(|s| s.group::<f32>(wave, group)));
            dest.put(wave, group, apply(&low));
            second.put(wave, group, apply(&high));
        }
    }))
}

/// The low word from the first source, the high word from the second.
fn mov(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(2)?;
    let selection = Selection::decode(d);
    let low = word(d, 0, at(&selection.low, 0), false)?;
    let high = word(d, 1, at(&selection.low, 1), false)?;
    let dest = d.dest::<u32>(0)?;
    let second = Dest::new(dest.register + 1);
    Ok(step(move |wave: &mut Wave| {
        for group in 0..wave.groups() {
            let (low, high) = (low.group::<u32>(wave, group), high.group::<u32>(wave, group));
            dest.put(wave, group, low);
            second.put(wave, group, high);
        }
    }))
}
