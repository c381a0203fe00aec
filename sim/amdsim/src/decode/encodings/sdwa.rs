//! SDWA (GFX9, GFX10): sources and destination are bytes or halves of registers.
//!
//! The instruction is decoded with temporary registers, as for DPP, and a shell moves the parts.

use super::dpp::Shell;
use crate::decode::{Decoded, Decoder};
use crate::operand::Source;
use crate::wave::{GROUP, vgpr};

const TEMP: u16 = vgpr::TEMP + 1;

/// A byte, a half or the whole of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    shift: u32,
    bits: u32,
}

impl Part {
    const WHOLE: Self = Self { shift: 0, bits: 32 };

    fn parse(text: &str) -> Decoded<Self> {
        let part = |index: &str, bits: u32| {
            let index = index.parse::<u32>().ok().filter(|index| index * bits < 32);
            index.map(|index| Self { shift: index * bits, bits }).ok_or_else(|| format!("selection {text}"))
        };
        match text.split_once('_') {
            None if text == "DWORD" => Ok(Self::WHOLE),
            Some(("BYTE", index)) => part(index, 8),
            Some(("WORD", index)) => part(index, 16),
            _ => Err(format!("selection {text}")),
        }
    }

    fn mask(self) -> u32 {
        u32::MAX >> (32 - self.bits)
    }

    fn extract(self, word: u32, signed: bool) -> u32 {
        let unused = 32 - self.bits;
        let top = word << (unused - self.shift);
        if signed { (top as i32 >> unused) as u32 } else { top >> unused }
    }
}

struct Input {
    source: Source,
    part: Part,
    signed: bool,
}

struct Output {
    register: u16,
    part: Part,
    preserve: bool,
    signed: bool,
}

/// The parts of an instruction's operands.
pub(in crate::decode) struct Sdwa {
    inputs: [Option<Input>; 2],
    output: Option<Output>,
}

impl Sdwa {
    /// Removes the SDWA part from an instruction and returns it, if there is one.
    pub(in crate::decode) fn take(d: &mut Decoder<'_>) -> Decoded<Option<Self>> {
        if !d.text.mnemonic.ends_with("_sdwa") {
            return Ok(None);
        }
        let first = if d.name.contains("_co_") { 2 } else { 1 };
        let inputs = [input(d, first, "src0_sel", TEMP)?, input(d, first + 1, "src1_sel", TEMP + 1)?];
        let output = output(d)?;
        Ok(Some(Self { inputs, output }))
    }

    pub(in crate::decode) fn shell(self) -> Shell {
        Box::new(move |inner| {
            Box::new(move |wave, context| {
                for (input, register) in self.inputs.iter().zip([TEMP, TEMP + 1]) {
                    let Some(input) = input else { continue };
                    for group in 0..wave.groups() {
                        let words = input.source.group::<u32>(wave, group);
                        let parts = words.map(|word| input.part.extract(word, input.signed));
                        wave.vgprs[usize::from(register)][group] = parts;
                    }
                }
                let flow = inner(wave, context)?;
                if let Some(output) = &self.output {
                    for group in 0..wave.groups() {
                        let result = wave.vgpr(TEMP + 2)[group];
                        let old = wave.vgpr(output.register)[group];
                        wave.set_group(output.register, group, &output.merge(&old, &result));
                    }
                }
                Ok(flow)
            })
        })
    }
}

impl Output {
    fn merge(&self, old: &[u32; GROUP], result: &[u32; GROUP]) -> [u32; GROUP] {
        let Part { shift, .. } = self.part;
        let place = self.part.mask() << shift;
        std::array::from_fn(|lane| {
            let part = (result[lane] & self.part.mask()) << shift;
            let kept = match (self.preserve, self.signed) {
                (true, _) => old[lane],
                (false, true) => self.part.extract(part, true) << shift,
                (false, false) => 0,
            };
            part | kept & !place
        })
    }
}

fn input(d: &mut Decoder<'_>, index: usize, selection: &str, temp: u16) -> Decoded<Option<Input>> {
    let Some(part) = d.text.modifier(selection).map(Part::parse) else { return Ok(None) };
    let part = part?;
    let text = d.operand(index)?.to_owned();
    let inner = text.trim_start_matches(['-', '|']).trim_end_matches('|');
    let (inner, signed) = match inner.strip_prefix("sext(").and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => (inner, true),
        None => (inner, false),
    };
    if part == Part::WHOLE {
        return if signed { Err(format!("operand {text} of a whole register")) } else { Ok(None) };
    }
    let source = Source::parse::<u32>(inner)?;
    d.text.replace_register(index, temp);
    Ok(Some(Input { source, part, signed }))
}

fn output(d: &mut Decoder<'_>) -> Decoded<Option<Output>> {
    let unused = d.text.modifier("dst_unused").unwrap_or_default().to_owned();
    let Some(part) = d.text.modifier("dst_sel").map(Part::parse) else { return Ok(None) };
    let part = part?;
    if part == Part::WHOLE {
        return Ok(None);
    }
    if d.name.starts_with("mac") || d.name.starts_with("fmac") {
        return Err("a part of a register as accumulator".to_owned());
    }
    let register = d.vgpr(0)?;
    d.text.replace_register(0, TEMP + 2);
    let (preserve, signed) = match unused.as_str() {
        "UNUSED_PAD" => (false, false),
        "UNUSED_SEXT" => (false, true),
        "UNUSED_PRESERVE" => (true, false),
        other => return Err(format!("dst_unused:{other}")),
    };
    Ok(Some(Output { register, part, preserve, signed }))
}
