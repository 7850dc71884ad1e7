//! A control group for each command, where the service was given a subtree and has put the executor into it: the one
//! limit that counts memory which belongs to no process (tmpfs, memfds, shared mappings), and the whole tree.
//!
//! The executor's own group is a leaf; the group above it is the account's to make more leaves in. Where that is not
//! so there are none, and limits are those of processes. Where it is, a leaf that cannot be made is an error.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::{AccessFlags, access};
use salaam_core::{id::OperationId, limits::Limits};

/// Where leaves are made.
#[derive(Debug, Clone)]
pub struct Cgroups {
    above: PathBuf,
}

impl Cgroups {
    /// The group above this process's own, if leaves can be made in it.
    pub fn find() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = place(&own, &mounts)?;
        Self::at(own.parent()?)
    }

    /// The group at `above`, if leaves can be made in it.
    pub fn at(above: &Path) -> Option<Self> {
        let write = |path: &Path| access(path, AccessFlags::W_OK).is_ok();
        (write(above) && write(&above.join("cgroup.procs"))).then(|| Self { above: above.to_owned() })
    }

    /// A leaf for one command with its limits. Controllers that were not given are not there, and what was set is said.
    pub fn leaf(&self, operation: OperationId, limits: &Limits) -> io::Result<Leaf> {
        let path = self.above.join(operation.to_string());
        fs::create_dir(&path)?;
        // From here on it is removed whatever happens.
        let mut leaf = Leaf { path, controllers: Vec::new() };
        // /tmp and /dev/shm are memory as well, and have limits of their own.
        let memory = limits.memory_bytes.saturating_add(limits.tmp_bytes.saturating_mul(2));
        if leaf.set("memory.max", memory)? {
            leaf.controllers.push("memory");
            // What is swapped out is not counted: there is none.
            leaf.set("memory.swap.max", 0)?;
            // All of it or nothing: half a command is of no use.
            leaf.set("memory.oom.group", 1)?;
        }
        // salaam-launch counts too.
        if leaf.set("pids.max", limits.processes.saturating_add(1))? {
            leaf.controllers.push("pids");
        }
        Ok(leaf)
    }
}

/// Where the process of this /proc/self/cgroup is, by this /proc/self/mountinfo.
fn place(own: &str, mounts: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounted = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // Only the whole hierarchy: in another one the path above means something else.
        (right.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(at))
    })?;
    let inside = own.strip_prefix('/')?;
    // In a group outside of one's own namespace it begins with `..`.
    (!inside.is_empty() && !inside.split('/').any(|part| part == "..")).then(|| mounted.join(inside))
}

/// The group of one command; removed when dropped.
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
    /// The controllers by which it is limited.
    pub controllers: Vec<&'static str>,
}

impl Leaf {
    /// What launch writes itself into, before anything of the command is.
    pub fn door(&self) -> io::Result<Arc<OwnedFd>> {
        let procs = OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?;
        Ok(Arc::new(procs.into()))
    }

    /// Kills everything in it at once; an older kernel has no such lever, and then others are pulled.
    pub fn kill(&self) {
        drop(self.set("cgroup.kill", 1));
    }

    /// Whether the kernel has ended it because its memory was used up.
    pub fn ran_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|count| count.trim().parse::<u64>().ok()).is_some_and(|count| count > 0)
    }

    /// Writes a setting; false where the file is not there.
    fn set(&self, name: &str, value: u64) -> io::Result<bool> {
        let mut file: File = match OpenOptions::new().write(true).open(self.path.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        file.write_all(value.to_string().as_bytes())?;
        Ok(true)
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if fs::remove_dir(&self.path).is_err() {
            // Somebody is still in it.
            self.kill();
            drop(fs::remove_dir(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_group_is_found_only_where_the_whole_hierarchy_is() {
        let mounts = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let of = |own: &str, mounts: &str| place(own, mounts);
        let unit = "1:cpu:/x\n0::/system.slice/salaam.service/tools/executor\n";
        let wanted = "/sys/fs/cgroup/system.slice/salaam.service/tools/executor";
        assert_eq!(of(unit, mounts), Some(wanted.into()));
        assert_eq!(of("0::/\n", mounts), None);
        assert_eq!(of("0::/../x\n", mounts), None);
        assert_eq!(of("1:cpu:/x\n", mounts), None);
        assert_eq!(of(unit, &mounts.replace("0:26 / ", "0:26 /container ")), None);
    }

    #[test]
    fn limits_are_set_where_their_controllers_are_and_said() {
        let above = std::env::temp_dir().join(format!("salaam-cgroup-{}", std::process::id()));
        fs::create_dir_all(&above).unwrap();
        assert!(Cgroups::at(&above).is_none(), "no group");
        fs::write(above.join("cgroup.procs"), "").unwrap();
        let groups = Cgroups::at(&above).unwrap();
        // The kernel fills a new group; here nobody does, so nothing is found and nothing said.
        let limits = Limits { memory_bytes: 1 << 30, tmp_bytes: 1 << 20, processes: 100, ..Limits::default() };
        let operation = OperationId::new(1, [9; 10]);
        let leaf = groups.leaf(operation, &limits).unwrap();
        assert_eq!(leaf.controllers, [] as [&str; 0]);
        assert!(groups.leaf(operation, &limits).is_err(), "one a command");
        for file in ["memory.max", "memory.swap.max", "pids.max", "cgroup.kill", "cgroup.procs"] {
            fs::write(leaf.path.join(file), "").unwrap();
        }
        assert!(leaf.set("memory.max", 5).unwrap() && !leaf.set("memory.oom.group", 1).unwrap());
        assert_eq!(fs::read_to_string(leaf.path.join("memory.max")).unwrap(), "5");
        assert!(!leaf.ran_out_of_memory());
        fs::write(leaf.path.join("memory.events"), "low 0\noom 1\noom_kill 2\n").unwrap();
        assert!(leaf.ran_out_of_memory());
        leaf.kill();
        assert_eq!(fs::read_to_string(leaf.path.join("cgroup.kill")).unwrap(), "1");
        drop(leaf);
        fs::remove_dir_all(&above).unwrap();
    }
}
