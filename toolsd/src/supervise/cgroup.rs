//! A control group for each command, where the service was given a subtree: the one limit that counts memory which
//! belongs to no process (tmpfs, memfds, shared mappings), and the whole tree.
//!
//! The groups, their names and their limits are the service's; this account can change none of them, and neither can
//! what it runs. It holds three descriptors of each, handed over with the answer to its hello: the group to look at,
//! the place where a process moves itself in, and the lever that ends all in it. Where none came there are no groups,
//! and limits are those of processes. Where they came, a command without one does not run.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::{
        stat::Mode,
        statfs::{CGROUP2_SUPER_MAGIC, fstatfs},
    },
};

/// The group, its `cgroup.procs`, its `cgroup.kill`.
const EACH: usize = 3;
/// A command that is proven gone has left its group, or is about to within this time.
const LEAVES_WITHIN: Duration = Duration::from_millis(500);
/// The files that are read here have a line or a dozen.
const MOST_READ: u64 = 4096;

/// The groups that commands are put into, each empty or used by one.
#[derive(Debug, Clone)]
pub struct Cgroups(Arc<Places>);

#[derive(Debug)]
struct Places {
    controllers: Vec<&'static str>,
    free: Mutex<Vec<Place>>,
}

#[derive(Debug)]
struct Place {
    group: OwnedFd,
    door: Arc<OwnedFd>,
    lever: OwnedFd,
}

impl Cgroups {
    /// The groups of these descriptors; none were handed = there are none.
    ///
    /// # Errors
    /// What is no control group, or not three descriptors for each.
    pub fn handed(doors: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if doors.is_empty() {
            return Ok(None);
        }
        if !doors.len().is_multiple_of(EACH) {
            return Err(wrong("not three descriptors for each group"));
        }
        for door in &doors {
            if fstatfs(door)?.filesystem_type() != CGROUP2_SUPER_MAGIC {
                return Err(wrong("what was handed over is no control group"));
            }
        }
        let mut doors = doors.into_iter();
        let mut free = Vec::new();
        while let (Some(group), Some(door), Some(lever)) = (doors.next(), doors.next(), doors.next()) {
            free.push(Place { group, door: Arc::new(door), lever });
        }
        let controllers = free.first().map(Place::controllers).unwrap_or_default();
        Ok(Some(Self(Arc::new(Places { controllers, free: Mutex::new(free) }))))
    }

    /// A group for one command, in which nobody is.
    ///
    /// # Errors
    /// `WouldBlock` where each is used.
    pub fn leaf(&self) -> io::Result<Leaf> {
        let until = Instant::now() + LEAVES_WITHIN;
        loop {
            let place = {
                let mut free = self.0.lock();
                let empty = free.iter().position(|place| !place.is_populated());
                empty.map(|empty| free.swap_remove(empty))
            };
            if let Some(place) = place {
                let before = place.killed_for_memory();
                return Ok(Leaf { place: Some(place), places: Arc::clone(&self.0), before });
            }
            if Instant::now() >= until {
                let why = "no control group is free: one of an earlier command still holds a process";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn read(&self, name: &str) -> io::Result<String> {
        let file = openat(&self.group, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(file).take(MOST_READ).read_to_string(&mut text)?;
        Ok(text)
    }

    /// What cannot be read may hold somebody.
    fn is_populated(&self) -> bool {
        !self.read("cgroup.events").is_ok_and(|events| events.lines().any(|line| line == "populated 0"))
    }

    /// How many processes of it the kernel has ended because memory was used up.
    fn killed_for_memory(&self) -> u64 {
        let events = self.read("memory.events").unwrap_or_default();
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// The controllers that limit it: what is set, not what there is.
    fn controllers(&self) -> Vec<&'static str> {
        let set = |name: &str| self.read(name).is_ok_and(|value| value.trim() != "max");
        let known = [("memory", "memory.max"), ("pids", "pids.max"), ("cpu", "cpu.weight")];
        known.into_iter().filter(|(_, file)| set(file)).map(|(controller, _)| controller).collect()
    }

    fn kill(&self) -> io::Result<()> {
        match nix::unistd::write(self.lever.as_fd(), b"1") {
            Ok(_) => Ok(()),
            Err(Errno::ENODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The group of one command; free again when dropped.
#[derive(Debug)]
pub struct Leaf {
    place: Option<Place>,
    places: Arc<Places>,
    before: u64,
}

impl Leaf {
    /// What launch writes itself into, before anything of the command is. The kernel judges by who opened it, so it
    /// lets in also who could not open it.
    ///
    /// # Errors
    /// None is known.
    pub fn door(&self) -> io::Result<Arc<OwnedFd>> {
        self.place.as_ref().map(|place| Arc::clone(&place.door)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The controllers by which it is limited.
    pub fn controllers(&self) -> &[&'static str] {
        &self.places.controllers
    }

    /// Kills everything in it at once.
    pub fn kill(&self) {
        if let Some(place) = &self.place
            && let Err(error) = place.kill()
        {
            tracing::warn!(%error, "the control group of a command cannot be killed");
        }
    }

    /// Whether the kernel has ended it because its memory was used up.
    pub fn ran_out_of_memory(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.killed_for_memory() > self.before)
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            // Whoever is still in it was to be gone.
            if place.is_populated() {
                drop(place.kill());
            }
            self.places.lock().push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_control_group_is_not_taken_for_one() {
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(Cgroups::handed(Vec::new()).unwrap().is_none());
        for number in [1, 2, 4] {
            let error = Cgroups::handed((0..number).map(|_| file()).collect()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        assert!(Cgroups::handed(vec![file(), file(), file()]).unwrap_err().to_string().contains("no control group"));
    }
}
