use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::*;
use crate::config::{HIDES_GPUS, RENAMES_GPUS};

/// An invented root folder, and its device files that do not open.
struct Root {
    folder: tempfile::TempDir,
    closed: Vec<(&'static str, ErrorKind)>,
    variables: Vec<(&'static str, String)>,
}

/// Returns a machine with a card and its kernel driver, and a user who may use it.
fn root() -> Root {
    let root = Root { folder: tempfile::tempdir().unwrap(), closed: Vec::new(), variables: Vec::new() };
    root.add("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
    root.add("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n");
    root.groups_of_the_process(&[root.id() + 2]);
    root.add("sys/module/amdgpu/version", "6.8\n");
    root.add("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
    root.add("sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n");
    root.add("dev/kfd", "");
    root.add("dev/dri/renderD128", "");
    root.add("dev/dri/card0", "");
    root.node("0", "simd_count 0\nsimd_per_cu 0\ngfx_target_version 0\n");
    root.node("1", "cpu_cores_count 0\nsimd_count 24\nsimd_per_cu 2\ngfx_target_version 110003\nlocation_id 768\n");
    root.group("");
    root
}

impl Root {
    fn add(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        // Only root can do this; other users have no files of root's group.
        let _ = chown(&path, None, Some(992));
    }

    fn remove(&self, name: &str) {
        let path = self.folder.path().join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    fn node(&self, number: &str, properties: &str) {
        self.add(&format!("sys/class/kfd/kfd/topology/nodes/{number}/properties"), properties);
    }

    /// Returns the number of the group that owns the device files here.
    fn id(&self) -> u32 {
        fs::metadata(self.folder.path().join("etc/passwd")).unwrap().gid()
    }

    fn groups_of_the_process(&self, groups: &[u32]) {
        let own = self.id() + 1;
        let groups: Vec<_> = groups.iter().map(ToString::to_string).collect();
        let text = format!("Name:\tx\nUid:\t0\t1000\t1000\nGid:\t{own}\t{own}\nGroups:\t{}\n", groups.join(" "));
        self.add("proc/self/status", &text);
    }

    /// Names the group of the device files `render`, with these members.
    fn group(&self, members: &str) {
        self.add("etc/group", &format!("adm:x:4:ann\nrender:x:{}:{members}\n", self.id()));
    }

    fn look(&self) -> System {
        System::under(self.folder.path(), &self.variables, &|path| {
            let name = path.strip_prefix(self.folder.path()).unwrap().to_str().unwrap();
            match self.closed.iter().find(|(closed, _)| *closed == name) {
                Some((_, kind)) => Err((*kind).into()),
                None => fs::metadata(path).map(drop),
            }
        })
    }

    fn why(&self) -> String {
        self.look().why_no_device()
    }
}

#[test]
fn nobody_told_the_kernel_driver_to_load() {
    let root = root();
    for gone in ["dev/kfd", "sys/module/amdgpu", "sys/class/kfd"] {
        root.remove(gone);
    }
    let expected = "there is no /dev/kfd: the kernel driver amdgpu is not loaded (`sudo modprobe amdgpu`)";
    assert_eq!(root.why(), expected);
    // Another vendor's card does not count.
    root.add("sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n");
    assert_eq!(root.why(), "this machine has no AMD GPU (there is none on the PCI bus)");
    // A processing accelerator is a GPU, too; an audio controller is none.
    root.add("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
    root.add("sys/bus/pci/devices/0000:03:00.0/class", "0x120000\n");
    assert_eq!(root.why(), expected);
    root.add("sys/bus/pci/devices/0000:03:00.0/class", "0x040300\n");
    assert!(root.why().contains("no AMD GPU"));
    // An unreadable bus tells nothing.
    root.remove("sys/bus");
    assert_eq!(root.why(), expected);
}

#[test]
fn a_container_without_devices_is_started_with_them() {
    let root = root();
    root.remove("dev/kfd");
    assert!(root.why().contains("amdgpu is loaded, but there is no /dev/kfd"), "{}", root.why());
    for mark in CONTAINER_MARKS {
        root.add(mark, "");
        let why = root.why();
        assert!(why.starts_with("this container has no /dev/kfd: start it with `--device /dev/kfd --device"), "{why}");
        root.remove(mark);
    }
    // The container got only one of the two devices.
    root.add(".dockerenv", "");
    root.add("dev/kfd", "");
    root.remove("dev/dri");
    assert!(root.why().starts_with("this container has no /dev/dri/renderD*: start it with `--device /dev/kfd"));
}

#[test]
fn windows_own_linux_has_another_driver() {
    let root = root();
    root.remove("dev/kfd");
    root.add("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
    assert!(root.why().starts_with("WSL passes no GPU on (no /dev/dxg): run `wsl --update`"));
    root.add("dev/dxg", "");
    let why = root.why();
    assert!(why.starts_with("WSL has no /dev/kfd: install ROCm for WSL"));
    assert!(why.ends_with("HSA_ENABLE_DXG_DETECTION=1"));
}

#[test]
fn a_user_outside_the_group_becomes_a_member() {
    let mut root = root();
    for (file, path) in [("dev/kfd", "/dev/kfd"), ("dev/dri/renderD128", "/dev/dri/renderD128")] {
        root.closed = vec![(file, ErrorKind::PermissionDenied)];
        root.group("");
        let expected = format!(
            "{path} belongs to group render, and you are not a member: `sudo usermod -aG render $USER`, then log in again"
        );
        assert_eq!(root.why(), expected);
        root.group("bob,ann");
        assert!(root.why().contains("whose member you became after this login: log in again"), "{}", root.why());
        root.group("");
        root.add(".dockerenv", "");
        let expected = format!("{path} belongs to group render: start the container with `--group-add {}`", root.id());
        assert_eq!(root.why(), expected);
        root.remove(".dockerenv");
    }
    // A group of the host without a name here.
    root.add("etc/group", "adm:x:4:\n");
    root.add(".dockerenv", "");
    assert!(root.why().contains(&format!("belongs to group {}: start the container", root.id())));
}

#[test]
fn a_member_who_is_denied_looks_elsewhere() {
    let mut root = root();
    root.closed = vec![("dev/kfd", ErrorKind::PermissionDenied)];
    root.groups_of_the_process(&[root.id()]);
    let why = root.why();
    assert!(why.starts_with("/dev/kfd is forbidden although its group render is yours"), "{why}");
    assert!(why.contains("`DeviceAllow=/dev/kfd rw`"));
    let kfd = root.folder.path().join("dev/kfd");
    fs::set_permissions(kfd, fs::Permissions::from_mode(0o600)).unwrap();
    let expected = "/dev/kfd is root's alone: install AMD's udev rules, which give it to the group render";
    assert_eq!(root.why(), expected);
    root.closed = vec![("dev/kfd", ErrorKind::ResourceBusy)];
    assert_eq!(root.why(), "/dev/kfd does not open: resource busy");
}

#[test]
fn a_variable_that_hides_the_card_is_named() {
    let mut root = root();
    for name in HIDES_GPUS {
        root.variables = vec![(RENAMES_GPUS, "11.0.0".to_owned()), (name, "7".to_owned())];
        let expected = format!("{name}=\"7\" hides the GPU that the kernel driver has (gfx1103): `unset {name}`");
        assert_eq!(root.why(), expected);
    }
    root.variables = vec![(HIDES_GPUS[0], String::new())];
    assert!(root.why().starts_with("HIP_VISIBLE_DEVICES=\"\" hides"));
}

#[test]
fn cards_that_only_the_library_does_not_see() {
    let mut root = root();
    let expected = "kernel 6.8.0-45-generic offers gfx1103 and lets this process use it, but the library does not; a newer ROCm may";
    assert_eq!(root.why(), expected);
    root.variables = vec![(RENAMES_GPUS, "9.9.9".to_owned())];
    assert!(root.why().ends_with("HSA_OVERRIDE_GFX_VERSION=9.9.9 may be to blame: `unset HSA_OVERRIDE_GFX_VERSION`"));
    root.remove("sys/class/kfd/kfd/topology/nodes/1");
    assert!(root.why().starts_with("amdgpu of kernel 6.8.0-45-generic has no GPU for computing: a newer kernel may"));
}

/// From the kernel's documentation of KFD: a processor has no SIMDs, a gfx90a has 4 in each of its 104 units.
#[test]
fn nodes_are_as_the_kernel_driver_says() {
    let root = root();
    root.node("2", "cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\ngfx_target_version 90010\n");
    root.node("10", "simd_count 64\nsimd_per_cu 2\ngfx_target_version 110501\nlocation_id 49408 x\n");
    let shown: Vec<_> = root.look().nodes().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "node 1 of the kernel driver: gfx1103, 12 compute units",
            "node 2 of the kernel driver: gfx90a, 104 compute units",
            "node 10 of the kernel driver: gfx1151, 32 compute units",
        ]
    );
}

#[test]
fn facts_are_a_few_lines() {
    let mut root = root();
    root.variables = vec![(HIDES_GPUS[1], "0".to_owned()), (RENAMES_GPUS, "11.0.0".to_owned())];
    root.closed = vec![("dev/dri/renderD129", ErrorKind::PermissionDenied)];
    root.add("dev/dri/renderD129", "");
    let lines = root.look().lines(|arch| arch == "gfx1103");
    assert_eq!(
        lines,
        [
            "kernel 6.8.0-45-generic with amdgpu",
            "device files: /dev/kfd opens, /dev/dri/renderD128 opens, /dev/dri/renderD129 is denied",
            "groups of the device files: render (not a member)",
            "variables of AMD's libraries: ROCR_VISIBLE_DEVICES=\"0\", HSA_OVERRIDE_GFX_VERSION=\"11.0.0\"",
            "node 1 of the kernel driver: gfx1103, 12 compute units",
            "HSA_OVERRIDE_GFX_VERSION=11.0.0: gfx1103 is driven as gfx1100; rocmforge has code for gfx1103 and needs no \
             override: `unset HSA_OVERRIDE_GFX_VERSION`",
        ]
    );
    root.groups_of_the_process(&[root.id()]);
    assert_eq!(root.look().lines(|_| true)[2], "groups of the device files: render (member)");
    let bare = tempfile::tempdir().unwrap();
    let lines = System::under(bare.path(), &[], &|path| fs::metadata(path).map(drop)).lines(|_| true);
    let expected = [
        "kernel unknown, amdgpu not loaded",
        "device files: no /dev/kfd, no /dev/dri/renderD*",
        "variables of AMD's libraries: none",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn masquerading_is_told_as_it_is() {
    let mut root = root();
    let told = |root: &Root| root.look().masquerade(|_| false);
    assert_eq!(told(&root), None);
    for (value, expected) in [
        ("11.0.0", "HSA_OVERRIDE_GFX_VERSION=11.0.0: gfx1103 is driven as gfx1100"),
        // It changes nothing on this machine, but would on another card.
        ("11.0.3", "HSA_OVERRIDE_GFX_VERSION=11.0.3: every GPU is driven as gfx1103"),
        ("9.0.10", "HSA_OVERRIDE_GFX_VERSION=9.0.10: gfx1103 is driven as gfx90a"),
        ("gfx1100", "HSA_OVERRIDE_GFX_VERSION=\"gfx1100\" is no version like 11.0.0: `unset HSA_OVERRIDE_GFX_VERSION`"),
    ] {
        root.variables = vec![(RENAMES_GPUS, value.to_owned())];
        assert_eq!(told(&root).as_deref(), Some(expected));
    }
}

#[test]
fn pairs_that_crash_are_known() {
    let root = root();
    let pair = |kernel: &str| {
        root.add("proc/sys/kernel/osrelease", kernel);
        root.look().known_pairs()
    };
    for (kernel, expected) in
        [("6.8.0-45-generic", false), ("6.18.3", false), ("6.18.4-arch1-1", true), ("7.0.0", true)]
    {
        assert_eq!(pair(kernel).is_some_and(|note| note.starts_with("kernels from 6.18.4 on")), expected, "{kernel}");
    }
    root.node("1", "simd_count 80\nsimd_per_cu 2\ngfx_target_version 110501\n");
    let note = pair("6.8.0").unwrap();
    assert!(note.starts_with("gfx1150 and gfx1151 are known to crash"));
    assert_eq!(root.look().lines(|_| true).last().map(String::as_str), Some(note));
}

/// If there can be no GPU, no driver is tried.
#[test]
fn a_machine_may_have_a_gpu_until_it_is_told_otherwise() {
    let root = root();
    root.remove("dev/kfd");
    assert!(root.look().may_have_gpu());
    root.add("sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n");
    assert!(!root.look().may_have_gpu());
    for file in ["dev/kfd", "dev/dxg"] {
        root.add(file, "");
        assert!(root.look().may_have_gpu(), "{file}");
        root.remove(file);
    }
    root.remove("sys/bus");
    assert!(root.look().may_have_gpu());
}
