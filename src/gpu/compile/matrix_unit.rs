//! Finds the matrix unit that code uses, from its machine code. The GPU alone does not tell, since code of a generic
//! target avoids matrix units that only some GPUs of the family have.

/// The unit that computes products of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnit {
    /// WMMA of AMD's GPUs since RDNA3.
    Wmma,
    /// MFMA of AMD's CDNA.
    Mfma,
    /// `mma.sync` of NVIDIA.
    MmaSync,
    /// `wgmma` of NVIDIA's Hopper.
    Wgmma,
    /// The code has no instruction of a matrix unit.
    Unused,
    /// The image is not GPU code that this module can read.
    Unknown,
}

impl MatrixUnit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Wmma => "WMMA",
            Self::Mfma => "MFMA",
            Self::MmaSync => "mma.sync",
            Self::Wgmma => "wgmma",
            Self::Unused => "no matrix unit",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the matrix unit that a code object uses, found by scanning its instructions. A constant that looks like
    /// the instruction would mislead, but the kernels of no target contain one.
    pub fn of(image: &[u8]) -> Self {
        match (word::<2>(image, MACHINE_AT), sections(image)) {
            (Some(machine), Some(sections)) if machine == EM_AMDGPU => of_amd(&sections),
            (Some(machine), Some(sections)) if machine == EM_CUDA => of_nvidia(&sections),
            _ => Self::Unknown,
        }
    }
}

const EM_CUDA: u64 = 190;
const EM_AMDGPU: u64 = 224;
/// Offsets in a 64-bit ELF header: its machine, and the offset, size and number of the section headers.
const MACHINE_AT: usize = 0x12;
const SECTIONS_AT: usize = 0x28;
const SECTION_SIZE_AT: usize = 0x3a;
const NUM_SECTIONS_AT: usize = 0x3c;
/// `SHT_PROGBITS` and `SHF_EXECINSTR`.
const PROGBITS: u64 = 1;
const EXECUTABLE: u64 = 4;

/// Returns a little-endian number of `N` bytes.
fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// Returns the sections with instructions; `None` if `image` is not a complete ELF file.
fn sections(image: &[u8]) -> Option<Vec<&[u8]>> {
    if !image.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let start = usize::try_from(word::<8>(image, SECTIONS_AT)?).ok()?;
    let size = usize::try_from(word::<2>(image, SECTION_SIZE_AT)?).ok()?;
    let mut found = Vec::new();
    for number in 0..usize::try_from(word::<2>(image, NUM_SECTIONS_AT)?).ok()? {
        let at = start.checked_add(number * size)?;
        let header = image.get(at..at.checked_add(size)?)?;
        if word::<4>(header, 4)? == PROGBITS && word::<8>(header, 8)? & EXECUTABLE != 0 {
            let first = usize::try_from(word::<8>(header, 24)?).ok()?;
            let bytes = usize::try_from(word::<8>(header, 32)?).ok()?;
            found.push(image.get(first..first.checked_add(bytes)?)?);
        }
    }
    Some(found)
}

/// Finds VOP3P instructions of GFX11 and GFX12 (encoding 0xcc, opcodes 0x40 and up), and VOP3P-MAI of GFX9 (encoding
/// 0xd3, opcodes 0x40 and up). Two of the latter only move registers (`v_accvgpr_read`, `v_accvgpr_write`).
fn of_amd(sections: &[&[u8]]) -> MatrixUnit {
    for section in sections {
        for instruction in section.as_chunks::<4>().0 {
            match (instruction[3], instruction[2]) {
                (0xcc, 0x40..=0x45) => return MatrixUnit::Wmma,
                (0xd3, 0xd8 | 0xd9) => {}
                (0xd3, 0xc0..) => return MatrixUnit::Mfma,
                _ => {}
            }
        }
    }
    MatrixUnit::Unused
}

/// Instructions have 16 bytes, with the opcode in the lowest 12 bits. `wgmma` on halves compiles to `HGMMA`, and
/// `mma.sync` to `HMMA`.
fn of_nvidia(sections: &[&[u8]]) -> MatrixUnit {
    let has = |opcode: u16| {
        let is = |instruction: &[u8; 16]| u16::from_le_bytes([instruction[0], instruction[1]]) & 0xfff == opcode;
        sections.iter().flat_map(|section| section.as_chunks::<16>().0).any(is)
    };
    match (has(0xdf0), has(0x23c)) {
        (true, _) => MatrixUnit::Wgmma,
        (false, true) => MatrixUnit::MmaSync,
        (false, false) => MatrixUnit::Unused,
    }
}
