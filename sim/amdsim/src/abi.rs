//! The initial state of a kernel: "Initial Kernel Execution State" in LLVM's AMDGPU usage document.

use crate::code_object::Code;
use crate::context::KERNARG_BASE;
use crate::operand::PRIVATE_APERTURE;
use crate::target::Target;
use crate::wave::{GROUP, Wave, sgpr};
use crate::{CodeObject, Fault, Launch};

/// The initial state of all waves of a launch.
pub(crate) struct Start<'a> {
    launch: &'a Launch<'a>,
    target: &'a Target,
    /// Index of the first instruction.
    pc: usize,
    /// Waves of a workgroup.
    pub waves: usize,
    items: u32,
    user_sgprs: Vec<u32>,
}

impl<'a> Start<'a> {
    pub(crate) fn new(object: &'a CodeObject, code: &Code, launch: &'a Launch<'a>) -> Result<Self, Fault> {
        let (kernel, refuse) = (launch.kernel, |text: String| Err(Fault::Launch(text)));
        let items = launch.block.iter().try_fold(1u32, |product, side| product.checked_mul(*side));
        let items = match items {
            Some(items) if items > 0 && items <= kernel.max_workgroup_size => items,
            _ => return refuse(format!("workgroup {:?} of at most {}", launch.block, kernel.max_workgroup_size)),
        };
        let lds = u64::from(kernel.group_segment_size) + u64::from(launch.dynamic_lds);
        if lds > MAX_LDS {
            return refuse(format!("{lds} bytes of LDS of at most {MAX_LDS}"));
        }
        if kernel.descriptor.kernarg_preload & 0x7f != 0 {
            return refuse("arguments preloaded into SGPRs are not supported".to_owned());
        }
        let entry = kernel.descriptor.entry;
        let Some(pc) = code.index(entry) else { return Err(Fault::Jump(entry)) };
        let user_sgprs = user_sgprs(launch)?;
        let waves = items.div_ceil(object.wavefront_size()) as usize;
        Ok(Self { launch, target: object.target_details(), pc, waves, items, user_sgprs })
    }

    /// Initialises the registers and the scratch memory of wave `number` of a workgroup.
    pub(crate) fn begin(&self, wave: &mut Wave, number: usize, workgroup: [u32; 3]) {
        let kernel = self.launch.kernel;
        wave.scratch_size = kernel.private_segment_size as usize;
        wave.scratch.resize(wave.scratch_size * wave.lanes, 0);
        wave.reset(kernel.vgprs as usize, kernel.agprs as usize);
        wave.pc = self.pc;
        wave.sgprs[..self.user_sgprs.len()].copy_from_slice(&self.user_sgprs);
        self.set_system_sgprs(wave, workgroup);
        self.set_work_item_ids(wave, number);
        let active = (self.items as usize - number * wave.lanes).min(wave.lanes);
        wave.set_mask(sgpr::EXEC, u64::MAX >> (64 - active));
    }

    fn set_system_sgprs(&self, wave: &mut Wave, [x, y, z]: [u32; 3]) {
        let rsrc2 = self.launch.kernel.descriptor.rsrc2;
        let mut next = self.user_sgprs.len();
        let mut push = |value| {
            wave.sgprs[next] = value;
            next += 1;
        };
        if self.target.generation >= 12 {
            let ttmp = usize::from(sgpr::TTMP);
            wave.sgprs[ttmp + 9] = x;
            wave.sgprs[ttmp + 7] = y & 0xffff | z << 16;
            return;
        }
        for (bit, id) in [(7, x), (8, y), (9, z)] {
            if rsrc2 >> bit & 1 != 0 {
                push(id);
            }
        }
        // The offset of this wave's scratch memory; in the simulator each wave has its own memory.
        if rsrc2 & 1 != 0 && !self.target.has_architected_scratch() {
            push(0);
        }
    }

    fn set_work_item_ids(&self, wave: &mut Wave, number: usize) {
        let [width, height, _] = self.launch.block;
        for lane in 0..wave.lanes {
            let item = (number * wave.lanes + lane) as u32;
            let (x, y, z) = (item % width, item / width % height, item / width / height);
            let (group, lane) = (lane / GROUP, lane % GROUP);
            if self.target.packs_work_item_ids() {
                wave.vgprs[0][group][lane] = x | y << 10 | z << 20;
            } else {
                for (register, id) in [x, y, z].into_iter().enumerate() {
                    wave.vgprs[register][group][lane] = id;
                }
            }
        }
    }
}

/// LDS of a workgroup: 64 KiB, or 160 KiB on gfx950.
const MAX_LDS: u64 = 160 << 10;

/// Returns the registers that the kernel descriptor asks for, in order.
fn user_sgprs(launch: &Launch<'_>) -> Result<Vec<u32>, Fault> {
    let descriptor = &launch.kernel.descriptor;
    let count = (descriptor.rsrc2 >> 1 & 31) as usize;
    let pair = |address: u64| [address as u32, (address >> 32) as u32];
    let mut registers = Vec::new();
    let asks = |bit: u32| descriptor.properties >> bit & 1 != 0;
    if asks(0) {
        // The descriptor of the scratch memory, which `decode::buffer` recognises by its address.
        registers.extend(pair(PRIVATE_APERTURE));
        registers.extend([u32::MAX, 0]);
    }
    for (bit, name) in [(1, "the dispatch packet"), (2, "the queue")] {
        if asks(bit) {
            return Err(Fault::Launch(format!("the kernel asks for {name}, which amdsim does not have")));
        }
    }
    if asks(3) {
        registers.extend(pair(KERNARG_BASE));
    }
    if asks(4) {
        registers.extend(pair(0));
    }
    if asks(5) {
        // flat_scratch_init: base and size. The base does not matter, since each wave has its own memory.
        registers.extend(pair(0));
    }
    if asks(6) {
        registers.push(launch.kernel.private_segment_size);
    }
    if registers.len() > count {
        return Err(Fault::Launch(format!("{} user SGPRs in {count} places", registers.len())));
    }
    registers.resize(count, crate::wave::POISON);
    Ok(registers)
}

/// The bytes after the arguments that a scalar load of a whole line may read.
const LINE: usize = 64;

/// Returns the arguments as the kernel sees them: the caller's, and the hidden ones.
pub(crate) fn kernarg_segment(launch: &Launch<'_>) -> Result<Vec<u8>, Fault> {
    let kernel = launch.kernel;
    let explicit = kernel.args.iter().filter(|arg| !arg.is_hidden()).map(|arg| arg.offset + arg.size).max();
    let explicit = explicit.unwrap_or(0) as usize;
    if launch.kernarg.len() < explicit {
        return Err(Fault::Launch(format!("{} bytes of arguments of {explicit}", launch.kernarg.len())));
    }
    let size = (kernel.kernarg_size as usize).max(explicit);
    let mut segment = vec![0xcd; size.next_multiple_of(LINE)];
    segment[..explicit].copy_from_slice(&launch.kernarg[..explicit]);
    for arg in kernel.args.iter().filter(|arg| arg.is_hidden()) {
        let value = hidden(launch, &arg.kind)?.to_le_bytes();
        let (start, size) = (arg.offset as usize, (arg.size as usize).min(8));
        let place = segment.get_mut(start..start + size).ok_or_else(|| Fault::Launch(arg.kind.clone()))?;
        place.copy_from_slice(&value[..size]);
    }
    Ok(segment)
}

fn hidden(launch: &Launch<'_>, kind: &str) -> Result<u64, Fault> {
    let side = |values: [u32; 3]| match kind.as_bytes().last() {
        Some(b'x') => values[0],
        Some(b'y') => values[1],
        _ => values[2],
    };
    Ok(match kind {
        _ if kind.starts_with("hidden_block_count_") => side(launch.grid),
        _ if kind.starts_with("hidden_group_size_") => side(launch.block),
        // Grids here consist of whole workgroups.
        _ if kind.starts_with("hidden_remainder_") || kind.starts_with("hidden_global_offset_") => 0,
        "hidden_grid_dims" => (1..=3).rev().find(|n| launch.grid[n - 1] * launch.block[n - 1] > 1).unwrap_or(1) as u32,
        "hidden_dynamic_lds_size" => launch.dynamic_lds,
        // Services of the runtime, which the simulator lacks: a kernel that uses one reads from address 0.
        _ => 0,
    }
    .into())
}
