//! Where a process is in the hierarchy, by the kernel's word.

use std::path::PathBuf;

/// A group by its two names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// As the kernel names it in /proc/PID/cgroup.
    pub(super) name: String,
    /// Where its directory is.
    pub(super) path: PathBuf,
}

/// The name of the group of version 2 in this /proc/PID/cgroup.
pub(super) fn name(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where the process of this /proc/self/cgroup is, by this /proc/self/mountinfo; nothing = in no group below the top
/// of a whole hierarchy that is mounted.
pub(super) fn place(cgroup: &str, mounts: &str) -> Option<Place> {
    let name = name(cgroup)?;
    let mounted = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // Only the whole hierarchy: in another one the path means something else.
        (right.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(at))
    })?;
    let inside = name.strip_prefix('/')?;
    // In a group outside of one's own namespace it begins with `..`.
    let plain = !inside.is_empty() && inside.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    plain.then(|| Place { name: name.to_owned(), path: mounted.join(inside) })
}
