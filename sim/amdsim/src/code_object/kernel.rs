//! A kernel of a code object: the metadata for a caller, and the descriptor for the launch.

use super::elf::{Elf, number};
use super::msgpack::Value;
use crate::LoadError;

/// One kernel of a code object.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    /// Bytes of the arguments, hidden ones included.
    pub kernarg_size: u32,
    /// Bytes of statically allocated LDS.
    pub group_segment_size: u32,
    /// Bytes of scratch per lane.
    pub private_segment_size: u32,
    pub max_workgroup_size: u32,
    pub wavefront_size: u32,
    pub vgprs: u32,
    pub agprs: u32,
    pub sgprs: u32,
    pub vgpr_spills: u32,
    pub sgpr_spills: u32,
    pub args: Vec<KernelArg>,
    pub(crate) descriptor: Descriptor,
}

/// One argument.
#[derive(Clone, Debug)]
pub struct KernelArg {
    pub offset: u32,
    pub size: u32,
    /// `by_value`, `global_buffer`, `hidden_block_count_x`, ...
    pub kind: String,
}

impl KernelArg {
    /// True if the runtime, not the caller, fills the argument. The simulator does so: see [`Launch`](crate::Launch).
    pub fn is_hidden(&self) -> bool {
        self.kind.starts_with("hidden_")
    }
}

/// The kernel descriptor: 64 bytes, "Kernel Descriptor" in LLVM's AMDGPU usage document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    /// Address of the first instruction in the code object.
    pub entry: u64,
    pub rsrc2: u32,
    pub properties: u16,
    pub kernarg_preload: u16,
}

impl Kernel {
    pub(crate) fn read(elf: &Elf<'_>, metadata: &Value<'_>) -> Result<Self, LoadError> {
        let text = |key| metadata.text(key).ok_or(LoadError::Format("a kernel's metadata has no name"));
        let integer = |key| metadata.integer(key).unwrap_or(0);
        let symbol = elf.symbol(text(".symbol")?).ok_or(LoadError::Format("a kernel has no descriptor"))?;
        let field = |offset: u64| symbol.wrapping_add(offset);
        let descriptor = Descriptor {
            entry: field(number::<8>(&elf.image, field(16))?),
            rsrc2: number::<4>(&elf.image, field(52))? as u32,
            properties: number::<2>(&elf.image, field(56))? as u16,
            kernarg_preload: number::<2>(&elf.image, field(58))? as u16,
        };
        let arg = |arg: &Value<'_>| {
            Some(KernelArg {
                offset: arg.integer(".offset")?,
                size: arg.integer(".size")?,
                kind: arg.text(".value_kind")?.to_owned(),
            })
        };
        let args = metadata.list(".args").iter().map(arg).collect::<Option<Vec<_>>>();
        Ok(Self {
            name: text(".name")?.to_owned(),
            kernarg_size: integer(".kernarg_segment_size"),
            group_segment_size: integer(".group_segment_fixed_size"),
            private_segment_size: integer(".private_segment_fixed_size"),
            max_workgroup_size: integer(".max_flat_workgroup_size"),
            wavefront_size: integer(".wavefront_size"),
            vgprs: integer(".vgpr_count"),
            agprs: integer(".agpr_count"),
            sgprs: integer(".sgpr_count"),
            vgpr_spills: integer(".vgpr_spill_count"),
            sgpr_spills: integer(".sgpr_spill_count"),
            args: args.ok_or(LoadError::Format("a kernel's argument has no offset, size or kind"))?,
            descriptor,
        })
    }
}
