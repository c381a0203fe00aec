//! Atomic operations on global memory, LDS and scratch: lane by lane, in lane order.

use super::address::{FlatAddress, LdsAddress};
use super::transfer::{Addresses, Segment};
use crate::Fault;
use crate::context::Context;
use crate::decode::{Decoded, Decoder, Flow, Step};
use crate::error::Access;
use crate::lane::Half;
use crate::syntax::Register;
use crate::wave::Wave;

/// Returns the new value from the old one, the data, and, for a comparison, the expected value.
type Function = fn(old: u64, data: u64, expected: u64) -> u64;

struct Operation {
    f: Function,
    bytes: usize,
    /// It takes two values: the new one and the expected one.
    compares: bool,
}

impl Operation {
    /// Parses `add_u32`, `umax_x2`, `cmpswap_b64`, `add_f32`; on GFX9 and GFX10 a missing type means 32 bits.
    fn parse(name: &str) -> Option<Self> {
        let name = name.replace("_num_", "_");
        let (name, wide) = name.strip_suffix("_x2").map_or((name.as_str(), false), |name| (name, true));
        if let Some(f) = packed(name) {
            return Some(Self { f, bytes: 4, compares: false });
        }
        let (verb, of) = match name.rsplit_once('_') {
            Some((verb, of)) if of.starts_with(['u', 'i', 'b', 'f']) && of.len() == 3 => (verb, of),
            _ => (name, ""),
        };
        let bits = match of.get(1..) {
            Some("64") => 64,
            Some("32") => 32,
            _ if wide => 64,
            _ => 32,
        };
        let verb = match (verb, of.get(..1)) {
            ("max", Some("u")) => "umax",
            ("min", Some("u")) => "umin",
            ("max", Some("i")) => "smax",
            ("min", Some("i")) => "smin",
            ("max", Some("f")) => "fmax",
            ("min", Some("f")) => "fmin",
            ("add", Some("f")) => "fadd",
            (verb, _) => verb,
        };
        let f = if bits == 64 { function64(verb)? } else { function32(verb)? };
        Some(Self { f, bytes: bits / 8, compares: matches!(verb, "cmpswap" | "cmpst" | "cmpstore") })
    }
}

fn function32(verb: &str) -> Option<Function> {
    fn float(f: fn(f32, f32) -> f32, old: u64, data: u64) -> u64 {
        f(f32::from_bits(old as u32), f32::from_bits(data as u32)).to_bits().into()
    }
    Some(match verb {
        "add" => |old, data, _| (old as u32).wrapping_add(data as u32).into(),
        "sub" => |old, data, _| (old as u32).wrapping_sub(data as u32).into(),
        "rsub" => |old, data, _| (data as u32).wrapping_sub(old as u32).into(),
        "smax" => |old, data, _| (old as i32).max(data as i32) as u32 as u64,
        "smin" => |old, data, _| (old as i32).min(data as i32) as u32 as u64,
        "inc" => |old, data, _| if old >= data { 0 } else { old + 1 },
        "dec" => |old, data, _| if old == 0 || old > data { data } else { old - 1 },
        "fadd" => |old, data, _| float(|a, b| a + b, old, data),
        "fmax" => |old, data, _| float(f32::max, old, data),
        "fmin" => |old, data, _| float(f32::min, old, data),
        _ => return common(verb),
    })
}

fn function64(verb: &str) -> Option<Function> {
    fn float(f: fn(f64, f64) -> f64, old: u64, data: u64) -> u64 {
        f(f64::from_bits(old), f64::from_bits(data)).to_bits()
    }
    Some(match verb {
        "add" => |old, data, _| old.wrapping_add(data),
        "sub" => |old, data, _| old.wrapping_sub(data),
        "rsub" => |old, data, _| data.wrapping_sub(old),
        "smax" => |old, data, _| (old as i64).max(data as i64) as u64,
        "smin" => |old, data, _| (old as i64).min(data as i64) as u64,
        "inc" => |old, data, _| if old >= data { 0 } else { old + 1 },
        "dec" => |old, data, _| if old == 0 || old > data { data } else { old - 1 },
        "fadd" => |old, data, _| float(|a, b| a + b, old, data),
        "fmax" => |old, data, _| float(f64::max, old, data),
        "fmin" => |old, data, _| float(f64::min, old, data),
        _ => return common(verb),
    })
}

/// Returns functions that are the same for 32 and 64 bits.
fn common(verb: &str) -> Option<Function> {
    Some(match verb {
        "umax" => |old, data, _| old.max(data),
        "umin" => |old, data, _| old.min(data),
        "and" => |old, data, _| old & data,
        "or" => |old, data, _| old | data,
        "xor" => |old, data, _| old ^ data,
        "swap" | "wrxchg" | "storexchg" => |_, data, _| data,
        "cmpswap" | "cmpst" | "cmpstore" => |old, data, expected| if old == expected { data } else { old },
        _ => return None,
    })
}

/// Returns functions of two 16-bit floats at once.
fn packed(name: &str) -> Option<Function> {
    fn halves(old: u64, data: u64, f: fn(u16, u16) -> u16) -> u64 {
        let half = |shift: u32| u64::from(f((old >> shift) as u16, (data >> shift) as u16));
        half(0) | half(16) << 16
    }
    use crate::float::{bf16_to_f32, f32_to_bf16};
    Some(match name {
        "pk_add_f16" | "pk_add_rtn_f16" => {
            |old, data, _| halves(old, data, |a, b| Half::new(Half(a).f32() + Half(b).f32()).0)
        }
        "pk_add_bf16" | "pk_add_rtn_bf16" => {
            |old, data, _| halves(old, data, |a, b| f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b)))
        }
        _ => return None,
    })
}

/// The registers of an atomic's operands.
struct Registers {
    returned: Option<u16>,
    data: u16,
    expected: u16,
}

fn execute(
    segment: Segment,
    operation: &Operation,
    registers: &Registers,
    (wave, context): (&mut Wave, &mut Context<'_>),
    addresses: &Addresses,
) -> Result<(), Box<Fault>> {
    let bytes = operation.bytes;
    for lane in wave.active() {
        let address = addresses[lane];
        let fault = |_| segment.fault(Access::Atomic, address, bytes, lane);
        let (data, expected) = (value(wave, registers.data, lane, bytes), value(wave, registers.expected, lane, bytes));
        let mut old = 0;
        let mut memory = [0; 8];
        let update = |memory: &mut [u8]| {
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(memory);
            old = u64::from_le_bytes(word);
            memory.copy_from_slice(&(operation.f)(old, data, expected).to_le_bytes()[..bytes]);
        };
        segment.atomic(wave, context, lane, address, &mut memory[..bytes], update).map_err(fault)?;
        if let Some(register) = registers.returned {
            wave.set_lane(register, lane, old as u32);
            if bytes == 8 {
                wave.set_lane(register + 1, lane, (old >> 32) as u32);
            }
        }
    }
    Ok(())
}

fn value(wave: &Wave, register: u16, lane: usize, bytes: usize) -> u64 {
    let high = if bytes == 8 { wave.lane(register + 1, lane) } else { 0 };
    u64::from(wave.lane(register, lane)) | u64::from(high) << 32
}

/// Decodes `global_atomic_`, `flat_atomic_`: `[returned,] address, data[, base]`; the expected value follows the new
/// one.
pub(in crate::decode) fn flat(d: &Decoder<'_>, segment: Segment, name: &str) -> Decoded<Step> {
    let operation = Operation::parse(name).ok_or("unknown atomic")?;
    // sc1 and scope give the visibility; sc0, glc and th say that the old value is returned.
    let returns = d.text.has("glc") || d.text.has("sc0") || d.text.modifier("th") == Some("TH_ATOMIC_RETURN");
    let vector = usize::from(returns);
    let data = d.vgpr(vector + 1)?;
    let values = if operation.compares { 2 } else { 1 };
    match Register::parse(d.operand(vector + 1)?) {
        Some(Register::Vgpr { count, .. }) if usize::from(count) * 4 == values * operation.bytes => {}
        _ => return Err(format!("data operand {}", d.operand(vector + 1)?)),
    }
    let registers = Registers {
        returned: returns.then(|| d.vgpr(0)).transpose()?,
        data,
        expected: if operation.compares { data + (operation.bytes / 4) as u16 } else { data },
    };
    let address = FlatAddress::decode(d, segment, vector, vector + 2)?;
    Ok(Box::new(move |wave, context| {
        let addresses = address.lanes(wave);
        execute(segment, &operation, &registers, (wave, context), &addresses)?;
        // Other workgroups may run between an atomic and the next instruction.
        Ok(if context.caches.is_some() { Flow::Yield } else { Flow::Next })
    }))
}

/// Decodes `ds_add_rtn_u32 v1, v2, v3`. For a comparison, GFX11 has the new value first, earlier generations the
/// expected one.
pub(in crate::decode) fn lds(d: &Decoder<'_>, name: &str) -> Decoded<Step> {
    let returns = name.contains("_rtn");
    let operation = Operation::parse(&name.replace("_rtn", "")).ok_or("unknown instruction")?;
    let vector = usize::from(returns);
    let first = d.vgpr(vector + 1)?;
    let (data, expected) = match (operation.compares, d.target.generation >= 11) {
        (false, _) => (first, first),
        (true, true) => (first, d.vgpr(vector + 2)?),
        (true, false) => (d.vgpr(vector + 2)?, first),
    };
    let registers = Registers { returned: returns.then(|| d.vgpr(0)).transpose()?, data, expected };
    let address = LdsAddress::decode(d, vector)?;
    Ok(Box::new(move |wave, context| {
        let addresses = address.lanes(wave);
        execute(Segment::Lds, &operation, &registers, (wave, context), &addresses)?;
        Ok(Flow::Next)
    }))
}
