//! The system around AMD's GPUs: the kernel driver, its device files and their permissions, and the variables of AMD's
//! libraries. Most failures of a first installation have their cause here instead of in the library.

mod files;
mod nodes;
#[cfg(test)]
mod tests;
mod why;

use std::fs;
use std::io;
use std::path::Path;

use files::{Access, DeviceFile, Process};
use nodes::Node;

use crate::config::GpuOptions;

/// Files that container engines put into a container.
const CONTAINER_MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];
/// The first kernel on which releases of ROCm before 7.2 crash.
const FIRST_KERNEL_OF_ROCM_7_2: [u32; 3] = [6, 18, 4];
/// The PCI vendor number of AMD, and the first digits of the classes of displays and of processing accelerators.
const AMD_VENDOR: &str = "0x1002";
const GPU_CLASSES: [&str; 2] = ["0x03", "0x12"];

/// Facts of the system that decide if AMD's library finds a GPU.
#[derive(Debug, Clone)]
pub(super) struct System {
    /// Release of the kernel: `6.8.0-45-generic`.
    kernel: String,
    kfd: DeviceFile,
    render_nodes: Vec<DeviceFile>,
    process: Process,
    variables: Vec<(&'static str, String)>,
    /// GPUs that the kernel driver offers for computing.
    nodes: Vec<Node>,
    /// True if an AMD GPU is on the PCI bus; `None` if the bus cannot be read.
    has_gpu: Option<bool>,
    /// True if the kernel driver amdgpu is loaded.
    has_module: bool,
    in_container: bool,
    /// True if the system is WSL.
    in_wsl: bool,
    /// True if WSL passes a GPU of Windows on.
    has_dxg: bool,
}

impl System {
    /// Inspects this machine.
    pub(super) fn look(options: &GpuOptions) -> Self {
        let open = |path: &Path| fs::File::options().read(true).write(true).open(path).map(drop);
        Self::under(Path::new("/"), &options.driver_variables, &open)
    }

    /// Inspects the files under a root folder; `open` opens a file for reading and writing.
    fn under(root: &Path, variables: &[(&'static str, String)], open: &dyn Fn(&Path) -> io::Result<()>) -> Self {
        let process = Process::under(root);
        let file = |name: &str| DeviceFile::look(root, name, &process, open);
        let exists = |name: &str| root.join(name).exists();
        let kernel = Some(text(&root.join("proc/sys/kernel/osrelease"))).filter(|kernel| !kernel.is_empty());
        let kernel = kernel.unwrap_or_else(|| "unknown".to_owned());
        Self {
            in_wsl: kernel.to_lowercase().contains("microsoft"),
            kernel,
            kfd: file("dev/kfd"),
            render_nodes: names(&root.join("dev/dri"))
                .iter()
                .filter(|name| name.starts_with("renderD"))
                .map(|name| file(&format!("dev/dri/{name}")))
                .collect(),
            process,
            variables: variables.to_vec(),
            nodes: nodes::under(root),
            has_gpu: has_gpu(root),
            has_module: exists("sys/module/amdgpu"),
            in_container: CONTAINER_MARKS.into_iter().any(exists),
            has_dxg: exists("dev/dxg"),
        }
    }

    /// Returns the release of the kernel.
    pub(super) fn kernel(&self) -> &str {
        &self.kernel
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the variables of AMD's libraries that are set.
    pub(super) fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }

    /// True if an AMD GPU may be present: on the bus, by its kernel driver, through WSL, or because nothing tells.
    pub(super) fn may_have_gpu(&self) -> bool {
        self.has_gpu != Some(false) || self.kfd.access != Access::Missing || self.has_dxg
    }

    /// Returns a note on a pair of releases that is known not to work, if this machine may have it.
    pub(super) fn known_pairs(&self) -> Option<&'static str> {
        let numbers: Vec<u32> = self.kernel.split(['.', '-']).map_while(|number| number.parse().ok()).collect();
        if self.nodes.iter().any(|node| node.arch.starts_with("gfx115")) {
            Some("gfx1150 and gfx1151 are known to crash with ROCm older than 7.2")
        } else if numbers[..] >= FIRST_KERNEL_OF_ROCM_7_2[..] {
            Some("kernels from 6.18.4 on are known to crash with ROCm older than 7.2")
        } else {
            None
        }
    }

    /// Returns the facts for people, one per line. `has_code`: true for the architectures that this build has code for.
    pub(super) fn lines(&self, has_code: impl Fn(&str) -> bool) -> Vec<String> {
        let shown = |files: &[DeviceFile]| match files {
            [] => "no /dev/dri/renderD*".to_owned(),
            files => files.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let mut lines = vec![
            format!("kernel {}{}", self.kernel, if self.has_module { " with amdgpu" } else { ", amdgpu not loaded" }),
            format!("device files: {}, {}", self.kfd, shown(&self.render_nodes)),
        ];
        lines.extend(self.groups());
        let set = self.variables.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>();
        lines.push(format!(
            "variables of AMD's libraries: {}",
            if set.is_empty() { "none".into() } else { set.join(", ") }
        ));
        lines.extend(self.nodes.iter().map(ToString::to_string));
        lines.extend(self.masquerade(has_code));
        lines.extend(self.known_pairs().map(str::to_owned));
        lines
    }

    /// Says which groups own the device files, and if this process is in them.
    fn groups(&self) -> Option<String> {
        let files = [&self.kfd].into_iter().chain(&self.render_nodes);
        let mut owners: Vec<_> = files.filter_map(|file| file.owner.as_ref()).collect();
        owners.sort_by_key(|group| group.id);
        owners.dedup();
        let shown = |group: &files::Group| {
            format!("{group} ({})", if self.process.is_in(group) { "member" } else { "not a member" })
        };
        let shown: Vec<_> = owners.into_iter().map(shown).collect();
        (!shown.is_empty()).then(|| format!("groups of the device files: {}", shown.join(", ")))
    }
}

/// True if the PCI bus has an AMD GPU; `None` if the bus cannot be read.
fn has_gpu(root: &Path) -> Option<bool> {
    let bus = root.join("sys/bus/pci/devices");
    let devices = names(&bus);
    let is_gpu = |name: &String| {
        let class = text(&bus.join(name).join("class"));
        text(&bus.join(name).join("vendor")) == AMD_VENDOR && GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu))
    };
    (!devices.is_empty()).then(|| devices.iter().any(is_gpu))
}

/// Returns the free bytes of a card's memory, from the kernel driver's files. `bus` is its place on the PCI bus:
/// `0000:03:00.0`.
pub(super) fn free_memory(root: &Path, bus: &str) -> Option<u64> {
    let folder = root.join("sys/bus/pci/devices").join(bus);
    let bytes = |name: &str| text(&folder.join(name)).parse::<u64>().ok();
    bytes("mem_info_vram_total")?.checked_sub(bytes("mem_info_vram_used")?)
}

/// Returns the text of a small file, empty if it cannot be read.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the names in a folder, sorted, the shorter first; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names
}
