//! Scalar instructions other than arithmetic: control flow, loads, waits, the state of the wave.

mod alu;

use super::{Decoded, Decoder, Flow, Step, step};
use crate::Fault;
use crate::context::IMAGE_BASE;
use crate::operand::{Place, Source};
use crate::syntax::integer;
use crate::wave::{Wave, sgpr};

/// Prefixes of instructions that affect only timing or caches.
const NOTHING: [&str; 19] = [
    "nop",
    "waitcnt",
    "wait_",
    "clause",
    "delay_alu",
    "sendmsg",
    "setprio",
    "barrier_signal -1",
    "code_end",
    "inst_prefetch",
    "set_inst_prefetch",
    "prefetch",
    "icache_inv",
    "dcache",
    "gl1_inv",
    "denorm_mode",
    "ttracedata",
    "version",
    "sethalt",
];

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Step> {
    let name = d.text.mnemonic.strip_prefix("s_").ok_or("unknown instruction")?;
    if let Some(step) = control(d, name)? {
        return Ok(step);
    }
    if let Some(step) = state(d, name)? {
        return Ok(step);
    }
    if let Some(form) = name.strip_prefix("load_") {
        return load(d, form);
    }
    if let Some(form) = name.strip_prefix("buffer_load_") {
        return buffer_load(d, form);
    }
    if let Some(step) = alu::decode(d, name)? {
        return Ok(step);
    }
    Err("unknown instruction".to_owned())
}

/// True if an instruction has no visible effect in sequential execution.
pub(super) fn is_nothing(mnemonic: &str) -> bool {
    let Some(name) = mnemonic.strip_prefix("s_") else { return false };
    NOTHING.iter().any(|prefix| name.starts_with(prefix)) && !name.starts_with("sendmsg_rtn")
}

fn control(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    let step: Step = match name {
        "endpgm" | "endpgm_saved" => Box::new(|_, _| Ok(Flow::End)),
        "barrier" | "barrier_wait" => Box::new(|_, _| Ok(Flow::Barrier)),
        // A wave that waits for another wave polls and sleeps.
        "sleep" => Box::new(|_, _| Ok(Flow::Yield)),
        "trap" => Box::new(|_, _| Err(Box::new(Fault::Trapped))),
        "branch" => jump_if(d, |_| true)?,
        "cbranch_scc0" => jump_if(d, |wave| !wave.scc)?,
        "cbranch_scc1" => jump_if(d, |wave| wave.scc)?,
        "cbranch_vccz" => jump_if(d, |wave| wave.mask(sgpr::VCC) == 0)?,
        "cbranch_vccnz" => jump_if(d, |wave| wave.mask(sgpr::VCC) != 0)?,
        "cbranch_execz" => jump_if(d, |wave| wave.exec == 0)?,
        "cbranch_execnz" => jump_if(d, |wave| wave.exec != 0)?,
        "getpc_b64" => {
            let (dest, next) = (d.sgpr(0)?, IMAGE_BASE + d.line.address + d.line.size);
            step(move |wave| wave.set_sgpr64(dest, next))
        }
        "setpc_b64" => {
            let target = d.sgpr(0)?;
            Box::new(move |wave, _| Ok(Flow::Jump(wave.sgpr64(target).wrapping_sub(IMAGE_BASE))))
        }
        "swappc_b64" => {
            let (dest, target, next) = (d.sgpr(0)?, d.sgpr(1)?, IMAGE_BASE + d.line.address + d.line.size);
            Box::new(move |wave, _| {
                let target = wave.sgpr64(target).wrapping_sub(IMAGE_BASE);
                wave.set_sgpr64(dest, next);
                Ok(Flow::Jump(target))
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(step))
}

/// The operand counts words from the next instruction.
fn jump_if(d: &Decoder<'_>, condition: impl Fn(&Wave) -> bool + Send + Sync + 'static) -> Decoded<Step> {
    let words = integer(d.operand(0)?).ok_or("branch without a distance")? as i16;
    let target = (d.line.address + 4).wrapping_add_signed(4 * i64::from(words));
    Ok(Box::new(move |wave, _| Ok(if condition(wave) { Flow::Jump(target) } else { Flow::Next })))
}

/// Clocks and hardware registers.
fn state(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    let register = d.text.operands.iter().find(|text| text.starts_with("hwreg(")).map_or("", String::as_str);
    Ok(Some(match name {
        "memtime" | "memrealtime" | "sendmsg_rtn_b64" => {
            if name == "sendmsg_rtn_b64" && !d.operand(1)?.contains("REALTIME") {
                return Err(format!("message {}", d.operand(1)?));
            }
            let dest = d.sgpr(0)?;
            Box::new(move |wave, context| {
                wave.set_sgpr64(dest, context.clock);
                Ok(Flow::Next)
            })
        }
        "getreg_b32" if register.contains("CYCLES") => {
            let (dest, high) = (d.sgpr(0)?, register.contains("CYCLES_HI"));
            Box::new(move |wave, context| {
                wave.set_sgpr(dest, if high { (context.clock >> 32) as u32 } else { context.clock as u32 });
                Ok(Flow::Next)
            })
        }
        // The wave's position on the chip is undefined, and reads as 0.
        "getreg_b32" if register.contains("HW_ID") || register.contains("XCC_ID") => {
            let dest = d.sgpr(0)?;
            step(move |wave| wave.set_sgpr(dest, 0))
        }
        // The mode may only change its handling of subnormals (bits 4 to 7), which are always kept here.
        "setreg_b32" | "setreg_imm32_b32" => match register {
            // Each wave has its own scratch memory, whatever its address.
            _ if register.contains("SCHED_MODE") || register.contains("FLAT_SCR") => step(|_| {}),
            "hwreg(HW_REG_MODE, 4, 2)" | "hwreg(HW_REG_MODE, 4, 4)" | "hwreg(HW_REG_MODE, 6, 2)" => step(|_| {}),
            _ => return Err(format!("setting {register}")),
        },
        "round_mode" => match d.operand(0)? {
            "0x0" | "0" => step(|_| {}),
            mode => return Err(format!("rounding mode {mode}")),
        },
        _ => return Ok(None),
    }))
}

/// Returns the number of words of `b64`, `dwordx2`.
fn words(form: &str) -> Decoded<usize> {
    let bad = || format!("scalar load of {form}");
    let count = match (form.strip_prefix("dword"), form.strip_prefix('b')) {
        (Some(""), _) => Ok(1),
        (Some(times), _) => times.trim_start_matches('x').parse().map_err(|_| bad()),
        (_, Some(bits)) => bits.parse::<usize>().map(|bits| bits / 32).map_err(|_| bad()),
        _ => Err(bad()),
    }?;
    if (1..=16).contains(&count) { Ok(count) } else { Err(bad()) }
}

/// A register, an immediate or both, after the base.
struct Offset {
    register: Option<Source>,
    immediate: i64,
}

impl Offset {
    fn decode(d: &Decoder<'_>) -> Decoded<Self> {
        let offset = d.text.modifier("offset").map_or(Some(0), integer).ok_or("offset")?;
        let text = d.operand(2)?;
        Ok(match integer(text) {
            Some(immediate) => Self { register: None, immediate: immediate + offset },
            None => {
                let source = Source::parse::<u32>(text)?;
                let register = (source.place != Place::Bits(0)).then_some(source);
                Self { register, immediate: offset }
            }
        })
    }

    fn value(&self, wave: &Wave) -> u64 {
        let register = self.register.map_or(0, |source| source.scalar::<u32>(wave));
        u64::from(register).wrapping_add_signed(self.immediate)
    }
}

fn load(d: &Decoder<'_>, form: &str) -> Decoded<Step> {
    // GFX12 has scalar loads of bytes and halves.
    let (bytes, signed) = match form {
        "u8" | "i8" => (1, form == "i8"),
        "u16" | "i16" => (2, form == "i16"),
        _ => (4 * words(form)?, false),
    };
    let (dest, base, offset) = (d.sgpr(0)?, d.sgpr(1)?, Offset::decode(d)?);
    Ok(Box::new(move |wave, context| {
        let mut data = [0; 64];
        // The lowest two bits of a word address are ignored.
        let address = wave.sgpr64(base).wrapping_add(offset.value(wave));
        let address = if bytes >= 4 { address & !3 } else { address };
        context.load_scalar(wave, address, &mut data[..bytes])?;
        write(wave, dest, &data[..bytes.next_multiple_of(4)]);
        if signed {
            let unused = 32 - 8 * bytes;
            let value = (wave.sgpr(dest) << unused) as i32 >> unused;
            wave.set_sgpr(dest, value as u32);
        }
        Ok(Flow::Next)
    }))
}

fn write(wave: &mut Wave, dest: u16, data: &[u8]) {
    for (index, word) in data.chunks_exact(4).enumerate() {
        let word = [word[0], word[1], word[2], word[3]];
        wave.set_sgpr(dest + index as u16, u32::from_le_bytes(word));
    }
}

/// Decodes a load through a buffer descriptor: bytes after its end read as 0.
fn buffer_load(d: &Decoder<'_>, form: &str) -> Decoded<Step> {
    let bytes = 4 * words(form)?;
    let (dest, descriptor, offset) = (d.sgpr(0)?, d.sgpr(1)?, Offset::decode(d)?);
    Ok(Box::new(move |wave, context| {
        let base = wave.sgpr64(descriptor) & 0xffff_ffff_ffff;
        let offset = offset.value(wave) & !3;
        let readable = u64::from(wave.sgpr(descriptor + 2)).saturating_sub(offset).min(bytes as u64) as usize & !3;
        let mut data = [0; 64];
        if readable > 0 {
            context.load_scalar(wave, base + offset, &mut data[..readable])?;
        }
        write(wave, dest, &data[..bytes]);
        Ok(Flow::Next)
    }))
}
