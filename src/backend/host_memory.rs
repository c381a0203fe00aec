//! The bytes of host memory that the process may still allocate. They are the least of the available memory of the
//! system, the room in the process's control groups, and the room within its own limits.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes reserved for the rest of the process (tokenizer, requests, Python) and of the machine.
const MARGIN: u64 = 256 << 20;
/// Bytes reserved for the machine when a device allocates host memory. Such memory is pinned, so the system cannot swap
/// anything out to make room.
const PINNED_MARGIN: u64 = 2 << 30;

/// The machine's memory, read from the system's files under a root folder.
#[derive(Debug, Clone)]
pub struct HostMemory {
    root: PathBuf,
}

impl Default for HostMemory {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl HostMemory {
    /// Returns the memory that the system's files under `root` describe.
    pub fn under(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the folder that contains the system's files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the bytes that the process may allocate, less a margin of 256 MiB.
    ///
    /// # Errors
    /// `Device` if the system does not report them.
    pub fn available(&self) -> Result<u64> {
        available_under(&self.root).map(|bytes| bytes.saturating_sub(MARGIN)).ok_or_else(|| Error::Device {
            device: "cpu".to_owned(),
            problem: "the system does not tell how much memory is available (/proc/meminfo)".to_owned(),
        })
    }

    /// Returns the bytes of host memory that a device may allocate, less a reserve of 2 GiB. `None` if the system does
    /// not report them. Control groups do not count memory that a driver pins, so their limits are ignored here.
    pub fn available_to_device(&self) -> Option<u64> {
        Some(system_available(&self.root)?.saturating_sub(PINNED_MARGIN))
    }

    /// Returns the bytes of page-locked memory available for a model, less a reserve of 2 GiB; 0 if the system does not
    /// report them. Control groups and limits of the process count, since some drivers charge such memory to them.
    pub fn available_for_weights(&self) -> u64 {
        available_under(&self.root).map_or(0, |bytes| bytes.saturating_sub(PINNED_MARGIN))
    }
}

/// Returns the bytes that the process may still allocate, read from the files under `root`.
fn available_under(root: &Path) -> Option<u64> {
    let limits = control_group_room(root).into_iter().chain(process_room(root));
    Some(limits.fold(system_available(root)?, u64::min))
}

fn system_available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    kilobytes(&meminfo, "MemAvailable:")
}

/// Returns the bytes in a line of `text` such as `name   8000 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"))?;
    value.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the least room within the limits on the address space and data (`ulimit -v`, `ulimit -d`); `None` without
/// limits.
fn process_room(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let room = |(limit, used)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit comes first; "unlimited" does not parse as a number.
        let limit = line.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(limit.saturating_sub(kilobytes(&status, used)?))
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")].into_iter().filter_map(room).min()
}

/// Returns the least room in the process's memory control groups and their ancestors; `None` without a limit.
fn control_group_room(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| group_room(root, line)).min()
}

/// Returns the room in the group of a line `hierarchy:controllers:path`. Version 2 has hierarchy 0 and no controllers.
fn group_room(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, limit, usage, files) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file", "active_file"])
    } else if controllers.split(',').any(|name| name == "memory") {
        let files = ["total_inactive_file", "total_active_file"];
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", files)
    } else {
        return None;
    };
    let mount = root.join(mount);
    // In a container the path may be the host's, which is not mounted. The group is then the mount point.
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let room_of = |folder: &Path| {
        let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // File pages, such as those of the model, count as usage. The kernel reclaims them before it kills a process.
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let pages = |name: &&str| stat.lines().find_map(|line| line.strip_prefix(*name)?.trim().parse::<u64>().ok());
        let reclaimable: u64 = files.iter().filter_map(pages).sum();
        Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(reclaimable)))
    };
    group.ancestors().take_while(|folder| folder.starts_with(&mount)).filter_map(room_of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root folder with the given files, removed on drop.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("rocmforge-memory-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n");

    #[test]
    fn system_without_groups() {
        let root = Root::new("plain", &[MEMINFO]);
        assert_eq!(available_under(&root.0), Some(8000 * 1024));
    }

    #[test]
    fn version_2_takes_the_tightest_group_on_the_path() {
        let root = Root::new(
            "v2",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/inner/memory.current", "500\n"),
                ("sys/fs/cgroup/outer/memory.max", "100000\n"),
                ("sys/fs/cgroup/outer/memory.current", "60000\n"),
                ("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 20000\nactive_file 7000\n"),
            ],
        );
        assert_eq!(available_under(&root.0), Some(67_000));
    }

    /// Weights in the host's memory keep the machine's reserve and stay within a container's limit.
    #[test]
    fn weights_stay_within_the_system_and_the_group() {
        let of = |name, megabytes: u64, limit: &str| {
            let meminfo = format!("MemAvailable: {} kB\n", megabytes << 10);
            let files = [
                ("proc/meminfo", meminfo.as_str()),
                ("proc/self/cgroup", "0::/group\n"),
                ("sys/fs/cgroup/group/memory.max", limit),
                ("sys/fs/cgroup/group/memory.current", "0\n"),
            ];
            let root = Root::new(name, &files);
            HostMemory::under(&root.0).available_for_weights() >> 20
        };
        assert_eq!(of("free", 5000, "max\n"), 5000 - 2048);
        assert_eq!(of("limited", 5000, "4194304000\n"), 4000 - 2048);
        assert_eq!(of("small", 1000, "max\n"), 0);
    }

    #[test]
    fn version_1_and_a_path_of_the_host() {
        let root = Root::new(
            "v1",
            &[
                MEMINFO,
                ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
            ],
        );
        assert_eq!(available_under(&root.0), Some(2000));
    }

    #[test]
    fn limits_of_the_process_count() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max data size             5000000              unlimited            bytes\n\
                      Max address space         6000000              6000000              bytes\n\
                      Max open files            1                    1                    files\n";
        let status = "Name:\tx\nVmPeak:\t  9000 kB\nVmSize:\t  4000 kB\nVmData:\t  1000 kB\n";
        let files = [MEMINFO, ("proc/self/limits", limits), ("proc/self/status", status)];
        let root = Root::new("limits", &files);
        assert_eq!(available_under(&root.0), Some(6_000_000 - 4000 * 1024));
        // The limits of the address space do not apply to memory that a device takes.
        let host = HostMemory::under(&root.0);
        assert_eq!(host.available_to_device(), Some(0));
        assert_eq!(host.available().unwrap(), 0);
        let unlimited = limits.replace("6000000", "unlimited");
        let root = Root::new("unlimited", &[MEMINFO, ("proc/self/limits", &unlimited), files[2]]);
        assert_eq!(available_under(&root.0), Some(5_000_000 - 1000 * 1024));
    }

    #[test]
    fn nothing_known_is_none() {
        let root = Root::new("none", &[("proc/meminfo", "MemTotal: 5 kB\n")]);
        assert_eq!(available_under(&root.0), None);
    }
}
