//! Bytes of the host's memory that the process may still take: those that the system has available, or fewer where a
//! control group or a limit of the process says so.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes left to the rest of the process (tokenizer, requests, Python) and of the machine.
const MARGIN: u64 = 256 << 20;
/// Bytes left to the machine where a device takes of its memory: such memory is pinned, so nothing can be swapped out
/// to make room for it.
const PINNED_MARGIN: u64 = 2 << 30;

/// The machine's memory, as the system's files under a root folder tell of it.
#[derive(Debug, Clone)]
pub(super) struct HostMemory {
    root: PathBuf,
}

impl Default for HostMemory {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl HostMemory {
    #[cfg(test)]
    pub(super) fn under(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Bytes that the process may take, less a margin of 256 MiB.
    ///
    /// # Errors
    /// `Device` where the system does not tell.
    pub(super) fn available(&self) -> Result<u64> {
        available_under(&self.root).map(|bytes| bytes.saturating_sub(MARGIN)).ok_or_else(|| Error::Device {
            device: "cpu".to_owned(),
            problem: "the system does not tell how much memory is available (/proc/meminfo)".to_owned(),
        })
    }

    /// Bytes that a device may take of the host's memory, less a reserve of 2 GiB; `None` where the system does not
    /// tell. Control groups are not charged for what a driver pins, so they say nothing of it.
    pub(super) fn available_to_device(&self) -> Option<u64> {
        Some(system_available(&self.root)?.saturating_sub(PINNED_MARGIN))
    }
}

/// Bytes that the process may still take, by the system's files under `root`.
fn available_under(root: &Path) -> Option<u64> {
    let limits = control_group_room(root).into_iter().chain(process_room(root));
    Some(limits.fold(system_available(root)?, u64::min))
}

fn system_available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    kilobytes(&meminfo, "MemAvailable:")
}

/// Bytes that a line such as `name   8000 kB` of `text` gives.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"))?;
    value.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least room within the limits on the process's address space and data (`ulimit -v`, `ulimit -d`); `None` without.
fn process_room(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let room = |(limit, used)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit stands first; "unlimited" is no number.
        let limit = line.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(limit.saturating_sub(kilobytes(&status, used)?))
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")].into_iter().filter_map(room).min()
}

/// The least room in the process's memory control groups and the groups above them; `None` without a limit.
fn control_group_room(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| group_room(root, line)).min()
}

/// `line`: `hierarchy:controllers:path`; version 2 has hierarchy 0 and no controllers.
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
    // Inside a container the path may be the host's, which is not mounted: the mount point itself is then the group.
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let room_of = |folder: &Path| {
        let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // Pages of files (those of the model itself may be the most) count as usage, but give way before anybody is
        // killed.
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
        // Memory that a device takes is in nobody's address space.
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
