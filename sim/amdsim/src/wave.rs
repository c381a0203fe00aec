//! The state of one wave: its registers, its execution mask, its program counter.

use crate::coherence::WaveCache;

/// Lanes that are processed together: a wave32 is one group, a wave64 two.
pub(crate) const GROUP: usize = 32;
pub(crate) const MAX_LANES: usize = 64;

/// Content of a register that was never written, to make such reads visible. As a float it is a NaN.
pub(crate) const POISON: u32 = 0x7fc0_dead;

/// One vector register.
pub(crate) type Vgpr = [[u32; GROUP]; MAX_LANES / GROUP];

/// Indices in the scalar register file. Registers above 105 have other encodings in the hardware, which differ between
/// generations; the disassembly prints their names.
pub(crate) mod sgpr {
    pub(crate) const VCC: u16 = 106;
    pub(crate) const TTMP: u16 = 108;
    pub(crate) const M0: u16 = 124;
    /// Nothing is ever stored here.
    pub(crate) const NULL: u16 = 125;
    pub(crate) const EXEC: u16 = 126;
    pub(crate) const FLAT_SCRATCH: u16 = 128;
    pub(crate) const XNACK_MASK: u16 = 130;
    pub(crate) const COUNT: usize = 132;
}

/// Indices in the vector register file.
pub(crate) mod vgpr {
    /// The accumulation registers of GFX9 (`a0`) follow the 256 ordinary ones.
    pub(crate) const ACC: u16 = 256;
    /// Registers that no instruction can name: results between the parts of one instruction.
    pub(crate) const TEMP: u16 = 512;
    pub(crate) const COUNT: usize = 520;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    AtBarrier,
    Ended,
}

pub(crate) struct Wave {
    pub sgprs: [u32; sgpr::COUNT],
    pub vgprs: Vec<Vgpr>,
    /// Number of lanes: 32 or 64.
    pub lanes: usize,
    /// The execution mask, one bit per lane. A copy of the registers EXEC, updated by [`Wave::set_sgpr`].
    pub exec: u64,
    /// The execution mask again, all ones or all zeros per lane.
    pub lane_masks: Vgpr,
    pub scc: bool,
    /// Index of the next instruction.
    pub pc: usize,
    pub state: State,
    pub executed: u64,
    /// Scratch memory: one segment of `scratch_size` bytes per lane.
    pub scratch: Vec<u8>,
    pub scratch_size: usize,
    /// The wave's part of the caches; unused if workgroups see each other's stores at once.
    pub cache: WaveCache,
}

impl Wave {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            sgprs: [POISON; sgpr::COUNT],
            vgprs: vec![[[POISON; GROUP]; MAX_LANES / GROUP]; vgpr::COUNT],
            lanes,
            exec: 0,
            lane_masks: [[0; GROUP]; MAX_LANES / GROUP],
            scc: false,
            pc: 0,
            state: State::Running,
            executed: 0,
            scratch: Vec::new(),
            scratch_size: 0,
            cache: WaveCache::default(),
        }
    }

    /// Resets the wave to the start of a kernel that uses `vgprs` and `agprs` registers.
    pub(crate) fn reset(&mut self, vgprs: usize, agprs: usize) {
        self.sgprs = [POISON; sgpr::COUNT];
        self.sgprs[usize::from(sgpr::NULL)] = 0;
        let acc = usize::from(vgpr::ACC);
        let poison = [[POISON; GROUP]; MAX_LANES / GROUP];
        self.vgprs[..vgprs.min(acc)].fill(poison);
        self.vgprs[acc..acc + agprs.min(acc)].fill(poison);
        self.scc = false;
        self.state = State::Running;
        self.executed = 0;
        self.scratch.fill(0xcd);
        self.cache = WaveCache::default();
    }

    pub(crate) fn groups(&self) -> usize {
        self.lanes / GROUP
    }

    /// Returns a mask with a bit for every lane of the wave.
    pub(crate) fn all_lanes(&self) -> u64 {
        u64::MAX >> (64 - self.lanes)
    }

    pub(crate) fn sgpr(&self, register: u16) -> u32 {
        self.sgprs[usize::from(register)]
    }

    pub(crate) fn sgpr64(&self, register: u16) -> u64 {
        u64::from(self.sgpr(register)) | u64::from(self.sgpr(register + 1)) << 32
    }

    pub(crate) fn set_sgpr(&mut self, register: u16, value: u32) {
        if register == sgpr::NULL {
            return;
        }
        self.sgprs[usize::from(register)] = value;
        if register & !1 == sgpr::EXEC {
            self.refresh_exec();
        }
    }

    pub(crate) fn set_sgpr64(&mut self, register: u16, value: u64) {
        if register == sgpr::NULL {
            return;
        }
        self.sgprs[usize::from(register)] = value as u32;
        self.sgprs[usize::from(register) + 1] = (value >> 32) as u32;
        if register == sgpr::EXEC {
            self.refresh_exec();
        }
    }

    /// Returns the lane mask in a register, or in a pair of registers if the wave has 64 lanes.
    pub(crate) fn mask(&self, register: u16) -> u64 {
        if self.lanes == 64 { self.sgpr64(register) } else { u64::from(self.sgpr(register)) }
    }

    pub(crate) fn set_mask(&mut self, register: u16, mask: u64) {
        if self.lanes == 64 { self.set_sgpr64(register, mask) } else { self.set_sgpr(register, mask as u32) }
    }

    fn refresh_exec(&mut self) {
        self.use_mask(self.mask(sgpr::EXEC));
    }

    /// Executes the next instructions under `mask`, without changing the registers EXEC.
    pub(crate) fn use_mask(&mut self, mask: u64) {
        self.exec = mask;
        for (group, masks) in self.lane_masks.iter_mut().enumerate() {
            let bits = (mask >> (GROUP * group)) as u32;
            for (lane, mask) in masks.iter_mut().enumerate() {
                *mask = 0u32.wrapping_sub(bits >> lane & 1);
            }
        }
    }

    pub(crate) fn vgpr(&self, register: u16) -> &Vgpr {
        &self.vgprs[usize::from(register)]
    }

    pub(crate) fn lane(&self, register: u16, lane: usize) -> u32 {
        self.vgpr(register)[lane / GROUP][lane % GROUP]
    }

    /// Writes one lane, active or not.
    pub(crate) fn set_lane(&mut self, register: u16, lane: usize, value: u32) {
        self.vgprs[usize::from(register)][lane / GROUP][lane % GROUP] = value;
    }

    /// Writes the active lanes of a register.
    #[inline]
    pub(crate) fn set_group(&mut self, register: u16, group: usize, values: &[u32; GROUP]) {
        let old = &mut self.vgprs[usize::from(register)][group];
        let masks = &self.lane_masks[group];
        for lane in 0..GROUP {
            old[lane] = values[lane] & masks[lane] | old[lane] & !masks[lane];
        }
    }

    /// Returns the scratch memory of one lane.
    pub(crate) fn scratch_of(&self, lane: usize) -> &[u8] {
        &self.scratch[lane * self.scratch_size..][..self.scratch_size]
    }

    pub(crate) fn scratch_of_mut(&mut self, lane: usize) -> &mut [u8] {
        &mut self.scratch[lane * self.scratch_size..][..self.scratch_size]
    }

    /// Returns the active lanes, in ascending order.
    pub(crate) fn active(&self) -> Lanes {
        Lanes(self.exec)
    }
}

/// The lanes of a mask, in ascending order.
pub(crate) struct Lanes(pub u64);

impl Iterator for Lanes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lane)
    }
}
