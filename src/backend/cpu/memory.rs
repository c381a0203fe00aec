//! How much memory the process may still take: what the system has available, or less where a control group limits it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Left to the rest of the process (tokenizer, requests, Python) and of the machine.
const MARGIN: u64 = 256 << 20;

/// Bytes available, less a margin of 256 MiB.
///
/// # Errors
/// `Device` where the system does not tell.
pub(super) fn available() -> Result<u64> {
    available_under(Path::new("/")).map(|bytes| bytes.saturating_sub(MARGIN)).ok_or_else(|| Error::Device {
        device: "cpu".to_owned(),
        problem: "the system does not tell how much memory is available (/proc/meminfo); give kv_cache_memory"
            .to_owned(),
    })
}

/// With the system's files under `root`.
fn available_under(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let system = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let system = system?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    Some(control_group_room(root).map_or(system, |room| room.min(system)))
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
    let (mount, limit, usage, inactive) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    } else {
        return None;
    };
    let mount = root.join(mount);
    // Inside a container the path may be the host's, which is not mounted: the mount point itself is then the group.
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let room_of = |folder: &Path| {
        let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // Pages of files that nobody has used lately count as usage, but give way.
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let reclaimable = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
        Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(reclaimable.unwrap_or(0))))
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
                ("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 20000\n"),
            ],
        );
        assert_eq!(available_under(&root.0), Some(60_000));
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
    fn nothing_known_is_none() {
        let root = Root::new("none", &[("proc/meminfo", "MemTotal: 5 kB\n")]);
        assert_eq!(available_under(&root.0), None);
    }
}
