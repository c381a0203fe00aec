//! Shared by the loads and stores of all memories.

use crate::context::{Context, copy_from, copy_to};
use crate::decode::{Decoded, Decoder};
use crate::error::{Access, Fault, OutOfBounds, Space};
use crate::operand::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::syntax::Register;
use crate::wave::{Lanes, MAX_LANES, Wave};

/// The memory of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Segment {
    Global,
    Lds,
    Scratch,
    /// Global, LDS or scratch, depending on the address.
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

    pub(in crate::decode) fn load(
        self,
        wave: &Wave,
        context: &mut Context<'_>,
        lane: usize,
        address: u64,
        bytes: &mut [u8],
        agent: bool,
    ) -> Result<(), OutOfBounds> {
        match self.resolve(address) {
            (Space::Global, address) => context.load(wave, address, bytes, agent),
            (Space::Lds, address) => copy_from(&context.lds, address, bytes),
            (Space::Scratch, offset) => copy_from(wave.scratch_of(lane), offset, bytes),
        }
    }

    pub(in crate::decode) fn store(
        self,
        wave: &mut Wave,
        context: &mut Context<'_>,
        lane: usize,
        address: u64,
        bytes: &[u8],
        agent: bool,
    ) -> Result<(), OutOfBounds> {
        match self.resolve(address) {
            (Space::Global, address) => context.store(wave, address, bytes, agent),
            (Space::Lds, address) => copy_to(&mut context.lds, address, bytes),
            (Space::Scratch, offset) => copy_to(wave.scratch_of_mut(lane), offset, bytes),
        }
    }

    /// Changes memory by an atomic; `update` gets the old content.
    pub(in crate::decode) fn atomic(
        self,
        wave: &mut Wave,
        context: &mut Context<'_>,
        lane: usize,
        address: u64,
        bytes: &mut [u8],
        update: impl FnOnce(&mut [u8]),
    ) -> Result<(), OutOfBounds> {
        let (memory, address) = match self.resolve(address) {
            (Space::Global, address) => return context.atomic(wave, address, bytes, update),
            (Space::Lds, address) => (&mut context.lds[..], address),
            (Space::Scratch, offset) => (wave.scratch_of_mut(lane), offset),
        };
        copy_from(memory, address, bytes)?;
        update(bytes);
        copy_to(memory, address, bytes)
    }

    pub(in crate::decode) fn fault(self, access: Access, address: u64, bytes: usize, lane: usize) -> Box<Fault> {
        let (space, address) = self.resolve(address);
        Box::new(Fault::OutOfBounds { space, access, address, bytes, lane })
    }
}

pub(in crate::decode) type Addresses = [u64; MAX_LANES];

/// Size and placement of the data of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) struct Form {
    pub is_load: bool,
    pub bytes: usize,
    pub signed: bool,
    /// Only half of a register is loaded, the other half is kept.
    pub d16: bool,
    /// The upper half.
    pub high: bool,
    /// Bypasses the caches of its own workgroup, down to the memory that all workgroups share.
    pub agent: bool,
}

impl Form {
    /// Parses `load_dwordx4`, `store_short_d16_hi`, `load_d16_hi_b16`, `read_u16_d16`, `write_b128`, ...
    pub(in crate::decode) fn parse(name: &str) -> Option<Self> {
        let mut words = name.split('_');
        let is_load = match words.next()? {
            "load" | "read" => true,
            "store" | "write" => false,
            _ => return None,
        };
        let mut form = Self { is_load, bytes: 0, signed: false, d16: false, high: false, agent: false };
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

    /// Parses the form from the end of an instruction's name, with the scope from its text.
    pub(super) fn global(d: &Decoder<'_>, name: &str) -> Decoded<Self> {
        let form = Self::parse(name).ok_or("unknown instruction")?;
        Ok(Self { agent: super::cache::reaches_agent(d, form.is_load), ..form })
    }

    /// Returns the number of data registers.
    pub(in crate::decode) fn words(&self) -> usize {
        self.bytes.div_ceil(4)
    }

    /// Returns the first data register of an operand.
    pub(in crate::decode) fn registers(&self, d: &Decoder<'_>, index: usize) -> Decoded<u16> {
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

/// The words of all lanes, in the order of registers.
type Words<const WORDS: usize> = [[u32; MAX_LANES]; WORDS];

/// Loads into the registers from `first` on, for the lanes in `active`.
pub(in crate::decode) fn load(
    segment: Segment,
    form: Form,
    (wave, context): (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    let state = (wave, context);
    match form.bytes {
        1 => load_sized::<1, 1>(segment, form, state, active, addresses, first),
        2 => load_sized::<2, 1>(segment, form, state, active, addresses, first),
        4 => load_sized::<4, 1>(segment, form, state, active, addresses, first),
        8 => load_sized::<8, 2>(segment, form, state, active, addresses, first),
        12 => load_sized::<12, 3>(segment, form, state, active, addresses, first),
        _ => load_sized::<16, 4>(segment, form, state, active, addresses, first),
    }
}

fn load_sized<const BYTES: usize, const WORDS: usize>(
    segment: Segment,
    form: Form,
    (wave, context): (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    let mut words: Words<WORDS> = [[0; MAX_LANES]; WORDS];
    let failed = |lane: usize| segment.fault(Access::Load, addresses[lane], BYTES, lane);
    match segment {
        Segment::Lds => {
            let rest = gather::<BYTES, WORDS>(&context.lds, 0, active, addresses, &mut words);
            if rest != 0 {
                return Err(failed(rest.trailing_zeros() as usize));
            }
        }
        Segment::Global if context.caches.is_none() => {
            let mut rest = active;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                let (start, bytes) = context.readable(addresses[lane]).ok_or_else(|| failed(lane))?;
                let left = gather::<BYTES, WORDS>(bytes, start, rest, addresses, &mut words);
                if left == rest {
                    return Err(failed(lane));
                }
                rest = left;
            }
        }
        _ => {
            for lane in Lanes(active) {
                let mut piece = [0; BYTES];
                let loaded = segment.load(wave, context, lane, addresses[lane], &mut piece, form.agent);
                loaded.map_err(|_| failed(lane))?;
                put::<BYTES, WORDS>(&mut words, lane, &piece);
            }
        }
    }
    if BYTES < 4 {
        for lane in Lanes(active) {
            wave.set_lane(first, lane, form.extend(words[0][lane], wave.lane(first, lane)));
        }
        return Ok(());
    }
    let exec = wave.exec;
    if active != exec {
        wave.use_mask(active);
    }
    for (register, words) in (first..).zip(&words) {
        for (group, values) in words.as_chunks().0.iter().enumerate().take(wave.groups()) {
            wave.set_group(register, group, values);
        }
    }
    if active != exec {
        wave.use_mask(exec);
    }
    Ok(())
}

/// Reads the lanes of `active` whose data is in `memory`, which begins at `start`, up to the first lane outside.
/// Returns the remaining lanes.
fn gather<const BYTES: usize, const WORDS: usize>(
    memory: &[u8],
    start: u64,
    active: u64,
    addresses: &Addresses,
    words: &mut Words<WORDS>,
) -> u64 {
    let mut rest = active;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        let offset = addresses[lane].wrapping_sub(start) as usize;
        let Some(piece) = memory.get(offset..).and_then(<[u8]>::first_chunk::<BYTES>) else { break };
        put::<BYTES, WORDS>(words, lane, piece);
        rest &= rest - 1;
    }
    rest
}

/// Converts the bytes of a lane to its words.
#[inline(always)]
fn put<const BYTES: usize, const WORDS: usize>(words: &mut Words<WORDS>, lane: usize, piece: &[u8; BYTES]) {
    for (word, bytes) in words.iter_mut().zip(piece.chunks(4)) {
        let mut value = [0; 4];
        value[..bytes.len()].copy_from_slice(bytes);
        word[lane] = u32::from_le_bytes(value);
    }
}

/// Stores from the registers from `first` on, for the lanes in `active`.
pub(in crate::decode) fn store(
    segment: Segment,
    form: Form,
    state: (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    match form.bytes {
        1 => store_sized::<1>(segment, form, state, active, addresses, first),
        2 => store_sized::<2>(segment, form, state, active, addresses, first),
        4 => store_sized::<4>(segment, form, state, active, addresses, first),
        8 => store_sized::<8>(segment, form, state, active, addresses, first),
        12 => store_sized::<12>(segment, form, state, active, addresses, first),
        _ => store_sized::<16>(segment, form, state, active, addresses, first),
    }
}

fn store_sized<const BYTES: usize>(
    segment: Segment,
    form: Form,
    (wave, context): (&mut Wave, &mut Context<'_>),
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> Result<(), Box<Fault>> {
    let failed = |lane: usize| segment.fault(Access::Store, addresses[lane], BYTES, lane);
    match segment {
        Segment::Lds => {
            let rest = scatter::<BYTES>(&mut context.lds, 0, wave, form, active, addresses, first);
            if rest != 0 {
                return Err(failed(rest.trailing_zeros() as usize));
            }
        }
        Segment::Global if context.caches.is_none() => {
            let mut rest = active;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                let (start, bytes) = context.writable(addresses[lane]).ok_or_else(|| failed(lane))?;
                let left = scatter::<BYTES>(bytes, start, wave, form, rest, addresses, first);
                if left == rest {
                    return Err(failed(lane));
                }
                rest = left;
            }
        }
        _ => {
            for lane in Lanes(active) {
                let piece = piece::<BYTES>(wave, form, first, lane);
                let stored = segment.store(wave, context, lane, addresses[lane], &piece, form.agent);
                stored.map_err(|_| failed(lane))?;
            }
        }
    }
    Ok(())
}

/// Writes the lanes of `active` whose address is in `memory`, which begins at `start`, up to the first lane outside.
/// Returns the remaining lanes.
fn scatter<const BYTES: usize>(
    memory: &mut [u8],
    start: u64,
    wave: &Wave,
    form: Form,
    active: u64,
    addresses: &Addresses,
    first: u16,
) -> u64 {
    let mut rest = active;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        let offset = addresses[lane].wrapping_sub(start) as usize;
        let Some(target) = memory.get_mut(offset..).and_then(<[u8]>::first_chunk_mut::<BYTES>) else { break };
        *target = piece::<BYTES>(wave, form, first, lane);
        rest &= rest - 1;
    }
    rest
}

/// Returns the bytes that a lane stores.
#[inline(always)]
fn piece<const BYTES: usize>(wave: &Wave, form: Form, first: u16, lane: usize) -> [u8; BYTES] {
    let mut piece = [0; BYTES];
    for (register, bytes) in (first..).zip(piece.chunks_mut(4)) {
        let value = wave.lane(register, lane) >> if form.high { 16 } else { 0 };
        bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
    }
    piece
}

/// Returns the lanes' addresses.
pub(super) fn lane_addresses(wave: &Wave, mut address: impl FnMut(usize) -> u64) -> Addresses {
    let mut addresses = [0; MAX_LANES];
    for (lane, value) in addresses.iter_mut().enumerate().take(wave.lanes) {
        *value = address(lane);
    }
    addresses
}
