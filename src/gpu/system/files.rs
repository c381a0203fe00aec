//! The device files of the kernel driver, and the permission to open them.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::text;

/// The bits of a file's mode by which its group reads and writes.
const GROUP_READS_AND_WRITES: u32 = 0o060;

/// A group, by its number in files and its name for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub id: u32,
    name: Option<String>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.id),
        }
    }
}

/// The user and the groups of this process.
#[derive(Debug, Clone)]
pub(super) struct Process {
    groups: Vec<u32>,
    /// The groups of the system.
    known: Vec<Group>,
    /// Groups that the process' user belongs to, even if they were joined after this session began.
    user_groups: Vec<u32>,
}

impl Process {
    pub(super) fn under(root: &Path) -> Self {
        let status = text(&root.join("proc/self/status"));
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // The real id comes first, the effective one second.
        let effective = |name| numbers(name).get(1).copied();
        let user = effective("Uid:").and_then(|id| user_name(&text(&root.join("etc/passwd")), id));
        let (mut known, mut user_groups) = (Vec::new(), Vec::new());
        for line in text(&root.join("etc/group")).lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, id, members, ..] = fields[..] else { continue };
            let Ok(id) = id.parse() else { continue };
            known.push(Group { id, name: Some(name.to_owned()) });
            if user.as_deref().is_some_and(|user| members.split(',').any(|member| member == user)) {
                user_groups.push(id);
            }
        }
        let groups = numbers("Groups:").into_iter().chain(effective("Gid:")).collect();
        Self { groups, known, user_groups }
    }

    /// True if the process is in the group.
    pub(super) fn is_in(&self, group: &Group) -> bool {
        self.groups.contains(&group.id)
    }

    /// True if the user became a member after this session began.
    pub(super) fn joins_at_next_login(&self, group: &Group) -> bool {
        !self.is_in(group) && self.user_groups.contains(&group.id)
    }

    fn group(&self, id: u32) -> Group {
        self.known.iter().find(|group| group.id == id).cloned().unwrap_or(Group { id, name: None })
    }
}

fn user_name(passwd: &str, id: u32) -> Option<String> {
    let id = id.to_string();
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&id.as_str())).then(|| fields[0].to_owned())
    })
}

/// A device file, from the view of this process.
#[derive(Debug, Clone)]
pub(super) struct DeviceFile {
    /// Its usual path, independent of the root folder.
    pub path: String,
    pub access: Access,
    /// The group that owns it; `None` if there is no such file.
    pub owner: Option<Group>,
    /// True if that group may read and write.
    pub is_groups: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Opens,
    Missing,
    /// The permission is missing.
    Denied,
    /// It does not open for another reason.
    Fails(String),
}

impl DeviceFile {
    pub(super) fn look(root: &Path, name: &str, process: &Process, open: &dyn Fn(&Path) -> io::Result<()>) -> Self {
        let file = root.join(name);
        let access = match open(&file) {
            Ok(()) => Access::Opens,
            Err(error) if error.kind() == ErrorKind::NotFound => Access::Missing,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Access::Denied,
            Err(error) => Access::Fails(error.to_string()),
        };
        let about = fs::metadata(&file).ok();
        let is_groups =
            about.as_ref().is_some_and(|about| about.mode() & GROUP_READS_AND_WRITES == GROUP_READS_AND_WRITES);
        Self { path: format!("/{name}"), access, owner: about.map(|about| process.group(about.gid())), is_groups }
    }
}

impl fmt::Display for DeviceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &self.access {
            Access::Opens => write!(f, "{path} opens"),
            Access::Missing => write!(f, "no {path}"),
            Access::Denied => write!(f, "{path} is denied"),
            Access::Fails(error) => write!(f, "{path} fails ({error})"),
        }
    }
}
