//! The cores of the host's CPU, each of which may have several logical CPUs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the number of cores on which the process may run; `None` if the system does not tell.
pub(super) fn physical_cores() -> Option<usize> {
    cores_under(Path::new("/"))
}

/// Returns the number of cores, read from the files under `root`.
fn cores_under(root: &Path) -> Option<usize> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let folder = root.join("sys/devices/system/cpu");
    let siblings = |cpu: usize| fs::read_to_string(folder.join(format!("cpu{cpu}/topology/thread_siblings_list"))).ok();
    let cores = numbers(allowed.trim())?.into_iter().map(siblings).collect::<Option<BTreeSet<String>>>()?;
    Some(cores.len()).filter(|cores| *cores > 0)
}

/// Returns the numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Option<BTreeSet<usize>> {
    let ranges = list.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores with two CPUs each, of which the process may use three CPUs of two cores.
    #[test]
    fn cpus_of_a_core_count_once() {
        let root = std::env::temp_dir().join(format!("rocmforge-cores-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/self")).unwrap();
        let allow = |list: &str| {
            fs::write(root.join("proc/self/status"), format!("Name:\tx\nCpus_allowed_list:\t{list}\n")).unwrap();
        };
        for cpu in 0..8 {
            let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("thread_siblings_list"), format!("{},{}\n", cpu % 4, cpu % 4 + 4)).unwrap();
        }
        for (list, cores) in [("0-7", Some(4)), ("1,2,5", Some(2)), ("3", Some(1)), ("0-8", None), ("", None)] {
            allow(list);
            assert_eq!(cores_under(&root), cores, "{list}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
