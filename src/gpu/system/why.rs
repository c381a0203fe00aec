//! Says why AMD's library finds no GPU, with the remedy for each case.

use super::System;
use super::files::{Access, DeviceFile};
use super::nodes::arch_of_override;
use crate::config::{HIDES_GPUS, RENAMES_GPUS};

/// Options that give AMD's GPUs to a container.
const CONTAINER_OPTIONS: &str =
    "`--device /dev/kfd --device /dev/dri --group-add $(getent group render | cut -d: -f3)`";

impl System {
    /// Says why a library that was found and opened has no device, with the remedy.
    pub(crate) fn why_no_device(&self) -> String {
        if self.kfd.access == Access::Missing {
            return self.without_kfd();
        }
        if let Some(problem) = self.denied(&self.kfd) {
            return problem;
        }
        let gpus: Vec<&str> = self.nodes.iter().map(|node| node.arch.as_str()).collect();
        let gpus = gpus.join(", ");
        if gpus.is_empty() {
            return format!(
                "amdgpu of kernel {} has no GPU for computing: a newer kernel may know this one \
                 (`sudo dmesg | grep amdgpu`)",
                self.kernel
            );
        }
        let hides = |(name, _): &&(&'static str, String)| HIDES_GPUS.contains(name);
        if let Some((name, value)) = self.variables.iter().find(hides) {
            return format!("{name}={value:?} hides the GPU that the kernel driver has ({gpus}): `unset {name}`");
        }
        if self.render_nodes.is_empty() {
            return match self.in_container {
                true => format!("this container has no /dev/dri/renderD*: start it with {CONTAINER_OPTIONS}"),
                false => "there is no /dev/dri/renderD*: load amdgpu anew (`sudo modprobe amdgpu`)".to_owned(),
            };
        }
        if let Some(problem) = self.render_nodes.iter().find_map(|node| self.denied(node)) {
            return problem;
        }
        let as_another = match self.variables.iter().find(|(name, _)| *name == RENAMES_GPUS) {
            Some((name, value)) => format!("; {name}={value} may be to blame: `unset {name}`"),
            None => "; a newer ROCm may".to_owned(),
        };
        format!(
            "kernel {} offers {gpus} and lets this process use it, but the library does not{as_another}",
            self.kernel
        )
    }

    fn without_kfd(&self) -> String {
        if self.in_wsl {
            return match self.has_dxg {
                true => "WSL has no /dev/kfd: install ROCm for WSL with librocdxg, and set HSA_ENABLE_DXG_DETECTION=1",
                false => "WSL passes no GPU on (no /dev/dxg): run `wsl --update` and update the driver on Windows",
            }
            .to_owned();
        }
        if self.has_gpu == Some(false) {
            return "this machine has no AMD GPU (there is none on the PCI bus)".to_owned();
        }
        if self.in_container {
            return format!("this container has no /dev/kfd: start it with {CONTAINER_OPTIONS}");
        }
        if self.has_module {
            return format!(
                "amdgpu is loaded, but there is no /dev/kfd: pass it to a container with {CONTAINER_OPTIONS}; \
                 elsewhere this kernel ({}) was built without it",
                self.kernel
            );
        }
        "there is no /dev/kfd: the kernel driver amdgpu is not loaded (`sudo modprobe amdgpu`)".to_owned()
    }

    /// Says why a device file does not open, with the remedy; `None` if it opens.
    fn denied(&self, file: &DeviceFile) -> Option<String> {
        let path = &file.path;
        let owner = match (&file.access, &file.owner) {
            (Access::Opens, _) => return None,
            (Access::Fails(error), _) => return Some(format!("{path} does not open: {error}")),
            (Access::Missing, _) | (_, None) => return Some(format!("{path} is gone")),
            (Access::Denied, Some(owner)) => owner,
        };
        Some(if owner.id == 0 || !file.is_groups {
            format!("{path} is root's alone: install AMD's udev rules, which give it to the group render")
        } else if self.process.is_in(owner) {
            format!(
                "{path} is forbidden although its group {owner} is yours: pass the device to the container \
                 (`--device {path}`) or the service (`DeviceAllow={path} rw`)"
            )
        } else if self.process.joins_at_next_login(owner) {
            format!("{path} belongs to group {owner}, whose member you became after this login: log in again")
        } else if self.in_container {
            format!("{path} belongs to group {owner}: start the container with `--group-add {}`", owner.id)
        } else {
            format!(
                "{path} belongs to group {owner}, and you are not a member: `sudo usermod -aG {owner} $USER`, then \
                 log in again"
            )
        })
    }

    /// Names the architecture that GPUs are made to report, and says if that is needed. `has_code`: true for those that
    /// this build has code for.
    pub(super) fn masquerade(&self, has_code: impl Fn(&str) -> bool) -> Option<String> {
        let (name, value) = self.variables.iter().find(|(name, _)| *name == RENAMES_GPUS)?;
        let Some(shown) = arch_of_override(value) else {
            return Some(format!("{name}={value:?} is no version like 11.0.0: `unset {name}`"));
        };
        let others: Vec<&str> =
            self.nodes.iter().map(|node| node.arch.as_str()).filter(|&arch| arch != shown).collect();
        let [first, ..] = others[..] else {
            return Some(format!("{name}={value}: every GPU is driven as {shown}"));
        };
        let note = match others.iter().all(|arch| has_code(arch)) {
            true => format!("; rocmforge has code for {first} and needs no override: `unset {name}`"),
            false => String::new(),
        };
        Some(format!("{name}={value}: {} is driven as {shown}{note}", others.join(", ")))
    }
}
