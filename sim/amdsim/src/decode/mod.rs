//! Translates an instruction's text to the closure that executes it.
//!
//! Each submodule handles one class of instructions. All work on text happens here, once; the closures contain only
//! register numbers and constants.

mod carry;
mod compare;
mod convert;
mod cross_lane;
mod dot;
mod encodings;
mod float;
mod half;
mod integer;
mod map;
mod matrix;
mod memory;
mod packed;
mod scalar;

use crate::Fault;
use crate::context::Context;
use crate::disassembly::Line;
use crate::lane::Lane;
use crate::operand::{Dest, HalfWrite, Source, split_half};
use crate::syntax::{Register, Text};
use crate::target::Target;
use crate::wave::Wave;

/// The control flow after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// Continue at this address of the code object.
    Jump(u64),
    Barrier,
    /// Let the other waves of the workgroup run.
    Yield,
    End,
}

/// A decoded instruction.
pub(crate) type Step = Box<dyn Fn(&mut Wave, &mut Context<'_>) -> Result<Flow, Box<Fault>> + Send + Sync>;

/// The result of decoding, or the reason why an instruction cannot be decoded.
pub(crate) type Decoded<T> = Result<T, String>;

/// Wraps a closure that changes only the wave.
pub(crate) fn step(execute: impl Fn(&mut Wave) + Send + Sync + 'static) -> Step {
    Box::new(move |wave, _| {
        execute(wave);
        Ok(Flow::Next)
    })
}

/// Decodes one instruction.
pub(crate) fn instruction(target: &Target, line: &Line) -> Decoded<Step> {
    if line.text.contains("::") {
        return encodings::dual::decode(target, line);
    }
    Decoder::new(target, line, Text::parse(&line.text)).decode()
}

/// An instruction that is being decoded.
pub(crate) struct Decoder<'a> {
    pub target: &'a Target,
    pub line: &'a Line,
    pub text: Text,
    /// The mnemonic in the spelling common to all generations: no `v_`, no `_e32`, no `_nc`.
    pub name: String,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(target: &'a Target, line: &'a Line, text: Text) -> Self {
        let mut name = text.mnemonic.as_str();
        for encoding in ["_dpp", "_sdwa", "_e32", "_e64"] {
            name = name.strip_suffix(encoding).unwrap_or(name);
        }
        let name = name.strip_prefix("v_").unwrap_or(name).replace("_nc_", "_").replace("_num_", "_");
        Self { target, line, text, name }
    }

    fn decode(self) -> Decoded<Step> {
        if let Some(step) = memory::cache::decode(&self)? {
            return Ok(step);
        }
        if scalar::is_nothing(&self.line.text) {
            return Ok(step(|_| {}));
        }
        let step = match self.text.mnemonic.split('_').next() {
            Some("s") => scalar::decode(&self),
            Some("v") => return self.vector(),
            Some("ds") => memory::lds::decode(&self),
            Some("global" | "flat" | "scratch") => memory::flat::decode(&self),
            Some("buffer") => memory::buffer::decode(&self),
            _ => Err("unknown instruction".to_owned()),
        }?;
        self.finish(step)
    }

    /// Decodes a vector instruction, with its DPP or SDWA part if there is one.
    pub(crate) fn vector(mut self) -> Decoded<Step> {
        let shell = match (encodings::dpp::Dpp::take(&mut self)?, encodings::sdwa::Sdwa::take(&mut self)?) {
            (Some(dpp), None) => Some(dpp.shell()),
            (None, Some(sdwa)) => Some(sdwa.shell()),
            (None, None) => None,
            (Some(_), Some(_)) => return Err("DPP and SDWA in one".to_owned()),
        };
        let step = self.vector_step()?;
        let step = self.finish(step)?;
        Ok(match shell {
            Some(shell) => shell(step),
            None => step,
        })
    }

    fn vector_step(&self) -> Decoded<Step> {
        let classes = [
            float::decode,
            integer::decode,
            half::decode,
            convert::decode,
            compare::decode,
            carry::decode,
            packed::decode,
            dot::decode,
            cross_lane::decode,
            matrix::decode,
        ];
        for decode in classes {
            if let Some(step) = decode(self)? {
                return Ok(step);
            }
        }
        Err("unknown instruction".to_owned())
    }

    /// Checks that every part of the text was read by some decoder.
    fn finish(&self, step: Step) -> Decoded<Step> {
        // Cache hints. `cache` reads those that affect other workgroups.
        for hint in ["glc", "slc", "dlc", "sc0", "sc1", "nt", "th", "scope"] {
            self.text.has(hint);
        }
        match self.text.unused() {
            Some(modifier) => Err(format!("modifier {modifier}")),
            None => Ok(step),
        }
    }

    pub(crate) fn operand(&self, index: usize) -> Decoded<&str> {
        self.text.operands.get(index).map(String::as_str).ok_or_else(|| format!("operand {index} is missing"))
    }

    pub(crate) fn operand_count(&self) -> usize {
        self.text.operands.len()
    }

    /// Returns a source operand of type `T`; operand 0 is the destination.
    pub(crate) fn source<T: Lane>(&self, index: usize) -> Decoded<Source> {
        let mut source = Source::parse::<T>(self.operand(index)?)?;
        if T::BITS == 16
            && let Some(select) = self.text.bits("op_sel")
        {
            source.high |= index > 0 && select.get(index - 1).copied().unwrap_or(false);
        }
        Ok(source)
    }

    /// Returns the VGPR of an operand, or the first of several.
    pub(crate) fn vgpr(&self, index: usize) -> Decoded<u16> {
        match Register::parse(self.operand(index)?) {
            Some(Register::Vgpr { first, .. }) => Ok(first),
            _ => Err(format!("operand {} is no VGPR", self.operand(index)?)),
        }
    }

    /// Returns the SGPR of an operand, or the first of several.
    pub(crate) fn sgpr(&self, index: usize) -> Decoded<u16> {
        match Register::parse(self.operand(index)?) {
            Some(Register::Sgpr { first, .. }) => Ok(first),
            _ => Err(format!("operand {} is no SGPR", self.operand(index)?)),
        }
    }

    /// Returns the destination of a result of type `T`.
    pub(crate) fn dest<T: Lane>(&self, index: usize) -> Decoded<Dest> {
        let (text, half) = split_half(self.operand(index)?);
        let Some(Register::Vgpr { first, .. }) = Register::parse(text) else {
            return Err(format!("destination {text}"));
        };
        let mut dest = Dest::new(first);
        if T::BITS == 16 {
            let sources = self.operand_count() - 1;
            let selected = self.text.bits("op_sel").and_then(|select| select.get(sources).copied());
            dest.half = match half.or(selected) {
                Some(true) => HalfWrite::High,
                None if self.target.clears_upper_half() && !keeps_upper_half(&self.name) => HalfWrite::Whole,
                _ => HalfWrite::Low,
            };
        }
        if T::KIND == crate::lane::Kind::Float {
            dest.clamp = self.text.has("clamp");
            dest.scale = match (self.text.modifier("mul"), self.text.modifier("div")) {
                (Some("2"), None) => Some(2.0),
                (Some("4"), None) => Some(4.0),
                (None, Some("2")) => Some(0.5),
                (None, None) => None,
                _ => return Err("output modifier".to_owned()),
            };
        }
        Ok(dest)
    }
}

/// True for the 16-bit instructions that keep the upper half of their register even on GFX9.
fn keeps_upper_half(name: &str) -> bool {
    matches!(name, "bitop3_b16" | "fma_f16" | "mad_f16" | "mad_u16" | "mad_i16" | "div_fixup_f16")
}
