//! Differences between targets.

use crate::LoadError;

#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `gfx90a`, `gfx11-generic`, ...
    pub name: String,
    /// 9, 10, 11 or 12.
    pub generation: u32,
    /// Lanes of a wave.
    pub lanes: usize,
}

impl Target {
    pub(crate) fn new(name: &str, lanes: u32) -> Result<Self, LoadError> {
        let unknown = || LoadError::Target(name.to_owned());
        let generation = match name.strip_prefix("gfx").ok_or_else(unknown)? {
            rest if rest.starts_with("10") => 10,
            rest if rest.starts_with("11") => 11,
            // gfx1250 and similar targets are another family with another wave launch.
            rest if rest.starts_with("120") || rest == "12-generic" => 12,
            rest if rest.starts_with('9') => 9,
            _ => return Err(unknown()),
        };
        if lanes != 32 && lanes != 64 {
            return Err(LoadError::Format("the wavefront size is neither 32 nor 64"));
        }
        Ok(Self { name: name.to_owned(), generation, lanes: lanes as usize })
    }

    /// True if work-item ids arrive in v0, ten bits each, instead of in v0, v1, v2.
    pub(crate) fn packs_work_item_ids(&self) -> bool {
        self.generation >= 11 || self.has_unified_registers()
    }

    /// True for gfx90a and later of GFX9.
    fn has_unified_registers(&self) -> bool {
        matches!(self.name.as_str(), "gfx90a" | "gfx940" | "gfx941" | "gfx942" | "gfx950" | "gfx9-4-generic")
    }

    /// True if `scratch_` instructions address scratch memory without any set-up in SGPRs.
    pub(crate) fn has_architected_scratch(&self) -> bool {
        self.generation >= 11 || self.has_scopes()
    }

    /// True for GFX940 and later of GFX9: accesses have scopes (`sc0`, `sc1`), and each part of the chip has its own L2
    /// cache.
    pub(crate) fn has_scopes(&self) -> bool {
        self.has_unified_registers() && self.name != "gfx90a"
    }

    /// True if the 8-bit floats are FNUZ instead of OCP.
    pub(crate) fn has_fnuz(&self) -> bool {
        matches!(self.name.as_str(), "gfx940" | "gfx941" | "gfx942")
    }

    /// True if a 16-bit result clears the upper half of its register. Later generations keep it.
    pub(crate) fn clears_upper_half(&self) -> bool {
        self.generation == 9
    }
}
