//! The groups of the tools account, as the service holds them: room for an executor, proof that one is gone.

use std::{
    fs,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::fcntl::OFlag;
use salaam_core::check::Check;

use super::{
    bounds::Bounds,
    directory::Directory,
    error::{GroupError, step},
    place::name,
};

pub(super) const SERVICE: &str = "service";
pub(super) const TOOLS: &str = "tools";
const EXECUTOR: &str = "executor";
/// What is made use of where it is delegated.
pub(super) const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Shares of processor time against the usual 100 of a command: a cancel is heard while commands use all there is.
const EXECUTOR_WEIGHT: u32 = 400;
/// For killed processes to be gone: milliseconds, or what a device takes that one of them waits for.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);
/// How often that is looked at, first and at the most.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// A group that is the service's own.
#[derive(Debug)]
pub struct Group {
    /// As the kernel names the unit's.
    name: String,
    tools: Directory,
    controllers: Vec<&'static str>,
    bounds: Bounds,
}

/// Where one executor is started, and the doors that it is handed.
#[derive(Debug)]
pub struct Room {
    executor: OwnedFd,
    doors: Vec<OwnedFd>,
}

impl Room {
    /// The directory of the executor's group.
    pub fn executor(&self) -> BorrowedFd<'_> {
        self.executor.as_fd()
    }

    /// Three descriptors for each command that may run at once: the group, its `cgroup.procs` and its `cgroup.kill`. The
    /// kernel judges a move by who opened the file, so whoever holds the second may move itself in, and nothing else.
    pub fn doors(&self) -> Vec<BorrowedFd<'_>> {
        self.doors.iter().map(OwnedFd::as_fd).collect()
    }
}

impl Group {
    pub(super) const fn new(name: String, tools: Directory, controllers: Vec<&'static str>, bounds: Bounds) -> Self {
        Self { name, tools, controllers, bounds }
    }

    /// The unit's group, as the kernel names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The controllers that hold.
    pub fn controllers(&self) -> &[&'static str] {
        &self.controllers
    }

    /// `memory.max` and `pids.max` of everything of the tools account, where their controllers hold.
    pub fn most(&self) -> (Option<u64>, Option<u64>) {
        let held = |controller, most| self.controllers.contains(&controller).then_some(most);
        (held("memory", self.bounds.memory), held("pids", self.bounds.tasks))
    }

    /// Ends what is still there and makes everything below `tools` anew, so that nothing of an earlier executor's
    /// commands counts against those of the next one.
    ///
    /// # Errors
    /// What is there does not end, or the kernel does not take what must be made.
    pub async fn room(&self) -> Result<Room, GroupError> {
        end(&self.tools).await?;
        for old in self.tools.children().map_err(step("listing", TOOLS))? {
            self.tools.remove(&old).map_err(step("removing", &old))?;
        }
        let executor = self.tools.make(EXECUTOR).map_err(step("making", EXECUTOR))?;
        if self.controllers.contains(&"cpu") {
            executor.write("cpu.weight", EXECUTOR_WEIGHT).map_err(step("setting", "executor/cpu.weight"))?;
        }
        let mut doors = Vec::new();
        for number in 1..=self.bounds.commands {
            let name = format!("command-{number}");
            let command = self.tools.make(&name).map_err(step("making", &name))?;
            self.limit(&command, &name)?;
            // The executor asks whether it is empty, and whether memory ended what was in it.
            command.show().map_err(step("showing", &name))?;
            let procs =
                command.open("cgroup.procs", OFlag::O_WRONLY).map_err(step("opening cgroup.procs of", &name))?;
            let kill = command.open("cgroup.kill", OFlag::O_WRONLY).map_err(step("opening cgroup.kill of", &name))?;
            doors.extend([command.into_fd(), procs, kill]);
        }
        Ok(Room { executor: executor.into_fd(), doors })
    }

    fn limit(&self, command: &Directory, name: &str) -> Result<(), GroupError> {
        let mut settings = Vec::new();
        if self.controllers.contains(&"memory") {
            settings.push(("memory.max", self.bounds.command_memory));
            // What is swapped out is not counted: there is none.
            settings.push(("memory.swap.max", 0));
            // All of it or nothing: half a command is of no use.
            settings.push(("memory.oom.group", 1));
        }
        if self.controllers.contains(&"pids") {
            settings.push(("pids.max", self.bounds.command_tasks));
        }
        for (file, value) in settings {
            match command.write(file, value) {
                Ok(()) => {}
                // A kernel that accounts for no swap has no limit of it either, and none is needed then.
                Err(error) if file == "memory.swap.max" && error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(step("setting", &format!("{name}/{file}"))(error)),
            }
        }
        Ok(())
    }

    /// Whether this process is in the executor's group now.
    pub fn holds(&self, pid: i32) -> bool {
        let wanted = format!("{}/{TOOLS}/{EXECUTOR}", self.name);
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|is| name(&is) == Some(wanted.as_str()))
    }

    /// Kills everything of the tools account, stopped and wedged processes too, and waits until it is gone: the
    /// kernel's own word that nothing is left in the group or below.
    ///
    /// # Errors
    /// It is not gone in time, or could not be killed.
    pub async fn end(&self) -> Result<(), GroupError> {
        end(&self.tools).await
    }

    pub(super) fn to_check(&self) -> Check {
        let missing: Vec<_> = ["memory", "pids"].into_iter().filter(|c| !self.controllers.contains(c)).collect();
        if missing.is_empty() {
            let Bounds { memory, tasks, .. } = self.bounds;
            let evidence = format!(
                "{}/tools holds all commands: {memory} bytes, {tasks} tasks, and a lever that ends all",
                self.name
            );
            return Check::pass("control-group", evidence);
        }
        let evidence = format!(
            "{}/tools holds all commands, but not their {}: the controller is not delegated",
            self.name,
            missing.join(" and ")
        );
        Check::warn("control-group", evidence, "systemctl edit salaam, [Service], Delegate=memory pids cpu")
    }
}

/// Kills all that is in this group or below, and waits for it to be empty.
pub(super) async fn end(tools: &Directory) -> Result<(), GroupError> {
    let began = Instant::now();
    let (mut pause, longest) = LOOK_EVERY;
    while tools.is_populated().map_err(step("looking into", TOOLS))? {
        if began.elapsed() >= EMPTY_WITHIN {
            return Err(GroupError::Populated { name: TOOLS, seconds: EMPTY_WITHIN.as_secs() });
        }
        // Each time: what root moved in meanwhile is killed too.
        tools.write("cgroup.kill", 1).map_err(step("killing what is in", TOOLS))?;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
    Ok(())
}
