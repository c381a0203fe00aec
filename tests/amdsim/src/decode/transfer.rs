//! What loads and stores of all memories have in common.

use super::{Decoded, Decoder};
use crate::context::{Context, copy_from, copy_to};
use crate::error::{Access, Fault, OutOfBounds, Space};
use crate::operand::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::syntax::Register;
use crate::wave::{GROUP, Lanes, MAX_LANES, Wave};

/// The memory that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    Global,
    Lds,
    Scratch,
    /// Global, LDS or scratch, by the address.
    Flat,
}

impl Segment {
    fn resolve(self, address: u64) -> (Space, u64) {
        const APERTURE: u64 = 1 << 32;
        match self {
            Segment::Global => (Space::Global, address),
            Segment::Lds => (Space::Lds, address),
            Segment::Scratch => (Space::Scratch, address),
            Segment::Flat if (SHARED_APERTURE..SHARED_APERTURE + APERTURE).contains(&address) => {
                (Space::Lds, address - SHARED_APERTURE)
            }
            Segment::Flat if (PRIVATE_APERTURE..PRIVATE_APERTURE + APERTURE).contains(&address) => {
                (Space::Scratch, address - PRIVATE_APERTURE)
            }
            Segment::Flat => (Space::Global, address),
        }
    }

    pub fn load(
        self,
        wave: &Wave,
        context: &mut Context<'_>,
        lane: usize,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), OutOfBounds> {
        match self.resolve(address) {
            (Space::Global, address) => context.load(address, bytes),
            (Space::Lds, address) => copy_from(&context.lds, address, bytes),
            (Space::Scratch, offset) => copy_from(wave.scratch_of(lane), offset, bytes),
        }
    }

    pub fn store(
        self,
        wave: &mut Wave,
        context: &mut Context<'_>,
        lane: usize,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), OutOfBounds> {
        match self.resolve(address) {
            (Space::Global, address) => context.store(address, bytes),
            (Space::Lds, address) => copy_to(&mut context.lds, address, bytes),
            (Space::Scratch, offset) => copy_to(wave.scratch_of_mut(lane), offset, bytes),
        }
    }

    pub fn fault(self, access: Access, address: u64, bytes: usize, lane: usize) -> Box<Fault> {
        let (space, address) = self.resolve(address);
        Box::new(Fault::OutOfBounds { space, access, address, bytes, lane })
    }
}

pub type Addresses = [u64; MAX_LANES];

/// Size and placement of what a load or store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub is_load: bool,
    pub bytes: usize,
    pub signed: bool,
    /// A half of a register is loaded, the other kept.
    pub d16: bool,
    /// The upper half.
    pub high: bool,
}

impl Form {
    /// `load_dwordx4`, `store_short_d16_hi`, `load_d16_hi_b16`, `read_u16_d16`, `write_b128`, ...
    pub fn parse(name: &str) -> Option<Self> {
        let mut words = name.split('_');
        let is_load = match words.next()? {
            "load" | "read" => true,
            "store" | "write" => false,
            _ => return None,
        };
        let mut form = Self { is_load, bytes: 0, signed: false, d16: false, high: false };
        for word in words {
            match word {
                "d16" => form.d16 = true,
                "hi" if form.d16 => form.high = true,
                "byte" | "ubyte" => form.bytes = 1,
                "sbyte" => (form.bytes, form.signed) = (1, true),
                "short" | "ushort" => form.bytes = 2,
                "sshort" => (form.bytes, form.signed) = (2, true),
                "dword" => form.bytes = 4,
                "dwordx2" => form.bytes = 8,
                "dwordx3" => form.bytes = 12,
                "dwordx4" => form.bytes = 16,
                _ => {
                    let bits: usize = word.strip_prefix(['b', 'u', 'i'])?.parse().ok()?;
                    if !matches!(bits, 8 | 16 | 32 | 64 | 96 | 128) {
                        return None;
                    }
                    (form.bytes, form.signed) = (bits / 8, word.starts_with('i'));
                }
            }
        }
        (form.bytes > 0 && (form.bytes <= 2 || !form.d16)).then_some(form)
    }

    /// Registers of the data.
    pub fn words(&self) -> usize {
        self.bytes.div_ceil(4)
    }

    /// The data registers of an operand.
    pub fn registers(&self, d: &Decoder<'_>, index: usize) -> Decoded<u16> {
        match Register::parse(d.operand(index)?) {
            Some(Register::Vgpr { first, count }) if usize::from(count) == self.words() => Ok(first),
            _ => Err(format!("data operand {}", d.operand(index)?)),
        }
    }

    fn extend(&self, value: u32, old: u32) -> u32 {
        let unused = 32 - 8 * self.bytes as u32;
        let value = if self.signed { ((value << unused) as i32 >> unused) as u32 } else { value };
        match (self.d16, self.high) {
            (false, _) => value,
            (true, false) => old & 0xffff_0000 | value & 0xffff,
            (true, true) => old & 0xffff | value << 16,
        }
    }
}

/// The bytes of all lanes, one after the other.
type Buffer = [u8; 16 * MAX_LANES];

/// Word `word` of each lane of a group.
fn words_of(buffer: &Buffer, bytes: usize, group: usize, word: usize) -> [u32; GROUP] {
    let mut words = [0; GROUP];
    let pieces = buffer[GROUP * group * bytes..].chunks_exact(bytes);
    for (value, piece) in words.iter_mut().zip(pieces) {
        let piece = &piece[4 * word..4 * word + 4];
        *value = u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]);
    }
    words
}

/// Neighbouring lanes whose data is one piece of memory, in the order of lanes.
struct Runs<'a> {
    lanes: std::iter::Peekable<Lanes>,
    addresses: &'a Addresses,
    bytes: u64,
}

impl Iterator for Runs<'_> {
    type Item = std::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.lanes.next()?;
        let mut last = first;
        let follows = |last: usize, next: &usize| {
            *next == last + 1 && self.addresses[*next] == self.addresses[last].wrapping_add(self.bytes)
        };
        while let Some(next) = self.lanes.next_if(|next| follows(last, next)) {
            last = next;
        }
        Some(first..last + 1)
    }
}

/// Splits an access of the active lanes into as few pieces as possible. Flat and scratch addresses of neighbouring lanes
/// need not be in the same memory.
fn runs(segment: Segment, active: u64, addresses: &Addresses, bytes: usize) -> Runs<'_> {
    let lanes = Lanes(active).peekable();
    // A distance that no two lanes have.
    let bytes = if matches!(segment, Segment::Global | Segment::Lds) { bytes as u64 } else { 1 << 63 };
    Runs { lanes, addresses, bytes }
}

/// Loads into the registers from `first` of the lanes in `active`.
pub fn load(
    segment: Segment,
    form: Form,
    (wave, context): (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    let mut buffer: Buffer = [0; 16 * MAX_LANES];
    let bytes = form.bytes;
    let mut previous: Option<usize> = None;
    for run in runs(segment, active, addresses, bytes) {
        let start = run.start;
        let same = previous.replace(start).filter(|lane| addresses[*lane] == addresses[start] && run.len() == 1);
        if let (Some(lane), Segment::Global | Segment::Lds) = (same, segment) {
            buffer.copy_within(lane * bytes..(lane + 1) * bytes, start * bytes);
            continue;
        }
        let piece = &mut buffer[start * bytes..run.end * bytes];
        if segment.load(wave, context, start, addresses[start], piece).is_ok() {
            continue;
        }
        for lane in run {
            let piece = &mut buffer[lane * bytes..(lane + 1) * bytes];
            let loaded = segment.load(wave, context, lane, addresses[lane], piece);
            loaded.map_err(|_| segment.fault(Access::Load, addresses[lane], bytes, lane))?;
        }
    }
    if bytes < 4 {
        for lane in Lanes(active) {
            let value =
                buffer[lane * bytes..(lane + 1) * bytes].iter().rev().fold(0, |v, byte| v << 8 | u32::from(*byte));
            wave.set_lane(first, lane, form.extend(value, wave.lane(first, lane)));
        }
        return Ok(());
    }
    let exec = wave.exec;
    if active != exec {
        wave.use_mask(active);
    }
    for word in 0..form.words() {
        for group in 0..wave.groups() {
            wave.set_group(first + word as u16, group, &words_of(&buffer, bytes, group, word));
        }
    }
    if active != exec {
        wave.use_mask(exec);
    }
    Ok(())
}

/// Stores from the registers from `first` of the lanes in `active`.
pub fn store(
    segment: Segment,
    form: Form,
    (wave, context): (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    let mut buffer: Buffer = [0; 16 * MAX_LANES];
    let bytes = form.bytes;
    for word in 0..form.words() {
        let register = first + word as u16;
        let shift = if form.high { 16 } else { 0 };
        let lanes = wave.vgpr(register).as_flattened().iter().take(wave.lanes);
        for (piece, value) in buffer.chunks_exact_mut(bytes).zip(lanes) {
            let value = (value >> shift).to_le_bytes();
            match bytes {
                1 => piece[0] = value[0],
                2 => piece.copy_from_slice(&value[..2]),
                _ => piece[4 * word..][..4].copy_from_slice(&value),
            }
        }
    }
    for run in runs(segment, active, addresses, bytes) {
        let piece = &buffer[run.start * bytes..run.end * bytes];
        if segment.store(wave, context, run.start, addresses[run.start], piece).is_ok() {
            continue;
        }
        for lane in run {
            let piece = &buffer[lane * bytes..(lane + 1) * bytes];
            let stored = segment.store(wave, context, lane, addresses[lane], piece);
            stored.map_err(|_| segment.fault(Access::Store, addresses[lane], bytes, lane))?;
        }
    }
    Ok(())
}

/// A sum of a base and, in each lane, an offset.
pub fn lane_addresses(wave: &Wave, mut address: impl FnMut(usize) -> u64) -> Addresses {
    let mut addresses = [0; MAX_LANES];
    for (lane, value) in addresses.iter_mut().enumerate().take(wave.lanes) {
        *value = address(lane);
    }
    addresses
}
