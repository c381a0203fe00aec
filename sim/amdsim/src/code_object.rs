//! A loaded code object.

mod elf;
pub(crate) mod kernel;
mod msgpack;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::decode::{self, Decoded, Step};
use crate::disassembly::{Line, disassemble};
use crate::target::Target;
use crate::{Kernel, LoadError};
use elf::Elf;

/// An AMDGPU code object. It is disassembled at its first launch, because most objects that a runtime loads are never
/// launched. Instructions are decoded when they are first executed.
///
/// Cheap to clone. A file that any part of the process has loaded is not disassembled again: loaded programs are kept
/// until the process ends.
#[derive(Clone)]
pub struct CodeObject(Arc<Program>);

struct Program {
    target: Target,
    kernels: Vec<Kernel>,
    image: Vec<u8>,
    file: Arc<[u8]>,
    code: OnceLock<Result<Code, LoadError>>,
}

/// The instructions of a code object.
pub(crate) struct Code {
    target: Target,
    lines: Vec<Line>,
    /// Index of the instruction at each word of the image, or `NO_INSTRUCTION`.
    indices: Vec<u32>,
    steps: Vec<OnceLock<Decoded<Step>>>,
}

const NO_INSTRUCTION: u32 = u32::MAX;

impl Code {
    fn new(program: &Program) -> Result<Self, LoadError> {
        let lines = disassemble(&program.file)?;
        let mut indices = vec![NO_INSTRUCTION; program.image.len() / 4];
        for (index, line) in (0..).zip(&lines) {
            if let Some(place) = indices.get_mut((line.address / 4) as usize) {
                *place = index;
            }
        }
        let steps = lines.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { target: program.target.clone(), lines, indices, steps })
    }

    pub(crate) fn line(&self, index: usize) -> Option<&Line> {
        self.lines.get(index)
    }

    /// Returns the index of the instruction at an address.
    pub(crate) fn index(&self, address: u64) -> Option<usize> {
        let index = *self.indices.get(usize::try_from(address / 4).ok()?)?;
        (address.is_multiple_of(4) && index != NO_INSTRUCTION).then_some(index as usize)
    }

    /// Returns an instruction, or the reason why it cannot be executed.
    #[inline]
    pub(crate) fn step(&self, index: usize) -> Option<&Decoded<Step>> {
        let step = self.steps.get(index)?;
        Some(step.get_or_init(|| decode::instruction(&self.target, &self.lines[index])))
    }

    fn unsupported(&self) -> Vec<String> {
        let mut found: Vec<String> = (0..self.lines.len())
            .filter_map(|index| Some(format!("{} ({})", self.lines[index].text, self.step(index)?.as_ref().err()?)))
            .collect();
        let mnemonic = |text: &String| text.split(' ').next().unwrap_or_default().to_owned();
        found.sort();
        found.dedup_by_key(|text| mnemonic(text));
        found
    }
}

impl Program {
    fn load(file: &[u8]) -> Result<Self, LoadError> {
        let elf = Elf::parse(file)?;
        let metadata = msgpack::decode(elf.metadata).ok_or(LoadError::Format("the metadata is not MessagePack"))?;
        let target = metadata.text("amdhsa.target").ok_or(LoadError::Format("the metadata names no target"))?;
        // "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"
        let target = target.split("--").last().and_then(|t| t.split(':').next()).unwrap_or(target);
        let kernels = metadata.list("amdhsa.kernels").iter().map(|k| Kernel::read(&elf, k));
        let kernels = kernels.collect::<Result<Vec<_>, _>>()?;
        let first = kernels.first().ok_or(LoadError::Format("it has no kernel"))?;
        if kernels.iter().any(|kernel| kernel.wavefront_size != first.wavefront_size) {
            return Err(LoadError::Format("its kernels have different wavefront sizes"));
        }
        let target = Target::new(target, first.wavefront_size)?;
        Ok(Self { target, kernels, image: elf.image, file: file.into(), code: OnceLock::new() })
    }
}

/// By the content of their files.
type Programs = HashMap<Arc<[u8]>, Arc<Program>>;

static LOADED: Mutex<Option<Programs>> = Mutex::new(None);

impl CodeObject {
    /// Reads an ELF code object.
    pub fn load(file: &[u8]) -> Result<Self, LoadError> {
        if !processor_is_supported() {
            return Err(LoadError::Processor);
        }
        let loaded = || LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = loaded().as_ref().and_then(|programs| programs.get(file)) {
            return Ok(Self(Arc::clone(program)));
        }
        // The lock is not held while a file is loaded, so that other files can be loaded meanwhile. Of two equal files
        // the first one is kept.
        let program = Arc::new(Program::load(file)?);
        let mut programs = loaded();
        let program = programs.get_or_insert_default().entry(Arc::clone(&program.file)).or_insert(program);
        Ok(Self(Arc::clone(program)))
    }

    /// Returns the target without its features: `gfx90a`, `gfx11-generic`.
    pub fn target(&self) -> &str {
        &self.0.target.name
    }

    /// Returns 32 or 64, the same for every kernel.
    pub fn wavefront_size(&self) -> u32 {
        self.0.target.lanes as u32
    }

    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.0.kernels.iter().find(|kernel| kernel.name == name)
    }

    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.0.kernels.iter()
    }

    /// Returns the instructions that the simulator cannot decode, each mnemonic with one reason. A kernel would stop at
    /// such an instruction.
    ///
    /// # Errors
    /// See [`LoadError`]: the file cannot be disassembled.
    pub fn unsupported(&self) -> Result<Vec<String>, &LoadError> {
        Ok(self.code()?.unsupported())
    }

    /// Returns the instructions. The first call disassembles the file with `llvm-objdump` (`ROCMFORGE_LLVM_OBJDUMP`,
    /// else version 22 or newer in the path).
    pub(crate) fn code(&self) -> Result<&Code, &LoadError> {
        self.0.code.get_or_init(|| Code::new(&self.0)).as_ref()
    }

    pub(crate) fn target_details(&self) -> &Target {
        &self.0.target
    }

    /// Returns the segments, as loaded from address 0.
    pub(crate) fn image(&self) -> &[u8] {
        &self.0.image
    }
}

#[cfg(target_arch = "x86_64")]
fn processor_is_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn processor_is_supported() -> bool {
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_code_object_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<super::CodeObject>();
    }
}
