//! The parts of an ELF file that a code object needs: loadable segments, symbols, the metadata note.

use crate::LoadError;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_DYNSYM: u32 = 11;
const EM_AMDGPU: u16 = 224;
const NT_AMDGPU_METADATA: u32 = 32;
/// A code object has a few hundred kilobytes; a broken header must not request more memory than exists.
const MAX_IMAGE: u64 = 1 << 30;

/// A code object laid out as by the loader, from address 0.
pub(crate) struct Elf<'a> {
    pub image: Vec<u8>,
    /// The MessagePack metadata.
    pub metadata: &'a [u8],
    symbols: Vec<(&'a [u8], u64)>,
}

impl<'a> Elf<'a> {
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, LoadError> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return Err(LoadError::Format("no 64-bit little-endian ELF header"));
        }
        if number::<2>(file, 18)? as u16 != EM_AMDGPU {
            return Err(LoadError::Format("the ELF file is for another machine"));
        }
        let mut elf = Self { image: Vec::new(), metadata: &[], symbols: Vec::new() };
        let (headers, count) = (number::<8>(file, 32)?, number::<2>(file, 56)?);
        for index in 0..count {
            elf.segment(file, headers.wrapping_add(56 * index))?;
        }
        let (sections, count) = (number::<8>(file, 40)?, number::<2>(file, 60)?);
        for index in 0..count {
            let section = sections.wrapping_add(64 * index);
            if number::<4>(file, section.wrapping_add(4))? as u32 == SHT_DYNSYM {
                elf.read_symbols(file, sections, section)?;
            }
        }
        if elf.metadata.is_empty() {
            return Err(LoadError::Format("no NT_AMDGPU_METADATA note"));
        }
        Ok(elf)
    }

    pub(crate) fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| *value)
    }

    fn segment(&mut self, file: &'a [u8], header: u64) -> Result<(), LoadError> {
        let field = |offset| number::<8>(file, header.wrapping_add(offset));
        let (offset, address, file_size, memory_size) = (field(8)?, field(16)?, field(32)?, field(40)?);
        match number::<4>(file, header)? as u32 {
            PT_LOAD => {
                let end = address.checked_add(memory_size.max(file_size)).filter(|end| *end <= MAX_IMAGE);
                let end = end.ok_or(LoadError::Format("a segment's address is out of range"))? as usize;
                self.image.resize(self.image.len().max(end), 0);
                let start = address as usize;
                self.image[start..start + file_size as usize].copy_from_slice(slice(file, offset, file_size)?);
            }
            PT_NOTE => {
                let (name_size, size) = (number::<4>(file, offset)?, number::<4>(file, offset.wrapping_add(4))?);
                if number::<4>(file, offset.wrapping_add(8))? as u32 == NT_AMDGPU_METADATA {
                    let start = offset.wrapping_add(12).wrapping_add(name_size.next_multiple_of(4));
                    self.metadata = slice(file, start, size)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_symbols(&mut self, file: &'a [u8], sections: u64, section: u64) -> Result<(), LoadError> {
        let field = |section: u64, offset: u64| number::<8>(file, section.wrapping_add(offset));
        let strings = sections.wrapping_add(64 * number::<4>(file, section.wrapping_add(40))?);
        let strings = slice(file, field(strings, 24)?, field(strings, 32)?)?;
        let table = slice(file, field(section, 24)?, field(section, 32)?)?;
        for entry in table.chunks_exact(24) {
            let name = number::<4>(entry, 0)? as usize;
            let name = strings.get(name..).and_then(|rest| rest.split(|byte| *byte == 0).next());
            let name = name.ok_or(LoadError::Format("a symbol's name is out of range"))?;
            self.symbols.push((name, number::<8>(entry, 8)?));
        }
        Ok(())
    }
}

fn slice(file: &[u8], offset: u64, size: u64) -> Result<&[u8], LoadError> {
    let cut = LoadError::Format("the file is cut short");
    let (Ok(start), Ok(size)) = (usize::try_from(offset), usize::try_from(size)) else { return Err(cut) };
    start.checked_add(size).and_then(|end| file.get(start..end)).ok_or(cut)
}

/// Returns the little-endian number of `N` bytes at `offset`.
pub(crate) fn number<const N: usize>(file: &[u8], offset: u64) -> Result<u64, LoadError> {
    Ok(slice(file, offset, N as u64)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
