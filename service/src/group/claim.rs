//! Taking possession of the service's own group, once, at its start.

use std::{fs, process::id, sync::Arc};

use nix::unistd::geteuid;
use salaam_core::{check::Check, limits::Limits};

use super::{
    bounds::{Bounds, bounds, host_memory},
    directory::Directory,
    error::{GroupError, step},
    held::{CONTROLLERS, Group, SERVICE, TOOLS},
    place::{Place, place},
};

/// Shares of processor time against the usual 100: the service answers while commands use all there is.
const SERVICE_WEIGHT: u32 = 400;

/// Whether the service has a group of its own.
#[derive(Debug, Clone)]
pub enum Claim {
    /// It has, and works in it from now on.
    Held(Arc<Group>),
    /// It was not given one; limits are those of processes.
    None {
        /// What was seen.
        evidence: String,
    },
}

impl Claim {
    /// The group, where there is one.
    pub fn group(&self) -> Option<&Arc<Group>> {
        match self {
            Self::Held(group) => Some(group),
            Self::None { .. } => None,
        }
    }

    /// As a row of the checks, with what is known of the executor: whether it is where it was started.
    pub fn to_check_with(&self, executor_is_inside: bool) -> Check {
        match self {
            Self::Held(group) if !executor_is_inside => Check::warn(
                "control-group",
                format!("the executor was moved out of {}/tools: its commands are in no group", group.name()),
                "see that sudo opens no session for it: write the drop-in again with `salaam host setup`",
            ),
            Self::Held(_) | Self::None { .. } => self.to_check(),
        }
    }

    /// As a row of the checks.
    pub fn to_check(&self) -> Check {
        match self {
            Self::Held(group) => group.to_check(),
            Self::None { evidence } => Check::warn(
                "control-group",
                format!("{evidence}: limits hold for each process, not for a command as a whole"),
                "run the service by its unit, which delegates one: systemctl enable --now salaam",
            ),
        }
    }
}

/// What the service found itself in.
#[derive(Debug)]
pub enum Ground {
    /// A group of its own, in the leaf of which it is from now on.
    Own(Own),
    /// None that is its own.
    None {
        /// What was seen.
        evidence: String,
    },
}

/// A group of the service's own that is not divided yet.
#[derive(Debug)]
pub struct Own {
    unit: Directory,
    place: Place,
    leaf: Directory,
}

/// Moves this process into a leaf, if its group is its own. To be called before anything is started: a child, or the
/// mailer of a sudo that complains, stays where it was born, and a group with a process in it cannot be divided.
///
/// # Errors
/// A group that was delegated and does not let the service make its leaf.
pub fn enter() -> Result<Ground, GroupError> {
    let none = |evidence: String| Ok(Ground::None { evidence });
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let Some(place) = place(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")) else {
        return none("this process is in no control group of version 2".into());
    };
    let unit = match Directory::at(&place.path) {
        Ok(unit) => unit,
        Err(error) => return none(format!("its control group {} cannot be opened: {error}", place.name)),
    };
    if let Some(evidence) = foreign(&unit, &place) {
        return none(evidence);
    }
    let leaf = unit.make(SERVICE).map_err(step("making", SERVICE))?;
    if !leaf.has("cgroup.kill") {
        return none("the kernel has no cgroup.kill (Linux 5.14)".into());
    }
    leaf.write("cgroup.procs", id()).map_err(step("moving the service into", SERVICE))?;
    Ok(Ground::Own(Own { unit, place, leaf }))
}

impl Ground {
    /// Ends what an earlier run left, and makes the groups of the tools account.
    ///
    /// # Errors
    /// What was there does not end, or the group does not take what must be set.
    pub async fn settle(self, limits: &Limits) -> Result<Claim, GroupError> {
        match self {
            Self::Own(own) => own.settle(limits).await,
            Self::None { evidence } => Ok(Claim::None { evidence }),
        }
    }
}

/// Why the group is not this process's own to change, if it is not. What belongs to the account but has others in it,
/// as a session in which somebody works, is none either.
fn foreign(unit: &Directory, place: &Place) -> Option<String> {
    let name = &place.name;
    let own = geteuid().as_raw();
    match unit.owner() {
        Ok(owner) if owner == own => {}
        Ok(owner) => return Some(format!("the control group {name} belongs to uid {owner}, so it is not delegated")),
        Err(error) => return Some(format!("the control group {name} cannot be looked at: {error}")),
    }
    if !unit.has("cgroup.procs") || !unit.has("cgroup.subtree_control") {
        return Some(format!("the control group {name} is not delegated"));
    }
    match unit.read("cgroup.procs") {
        Ok(alone) if alone.trim() == id().to_string() => {}
        Ok(_) => return Some(format!("others work in the control group {name}")),
        Err(error) => return Some(format!("the control group {name} cannot be read: {error}")),
    }
    let others = unit.children().and_then(|below| {
        for child in below.iter().filter(|child| *child != TOOLS) {
            if unit.child(child)?.is_populated()? {
                return Ok(true);
            }
        }
        Ok(false)
    });
    match others {
        Ok(false) => None,
        Ok(true) => Some(format!("others work below the control group {name}")),
        Err(error) => Some(format!("the groups below {name} cannot be looked at: {error}")),
    }
}

impl Own {
    async fn settle(self, limits: &Limits) -> Result<Claim, GroupError> {
        let Self { unit, place, leaf } = self;
        // What an earlier run left, before anything else: nobody watches over it.
        if let Ok(tools) = unit.child(TOOLS) {
            super::held::end(&tools).await?;
            unit.remove(TOOLS).map_err(step("removing", TOOLS))?;
        }
        let given = enable(&unit, "cgroup.subtree_control")?;
        if given.contains(&"cpu") {
            leaf.write("cpu.weight", SERVICE_WEIGHT).map_err(step("setting", "service/cpu.weight"))?;
        }
        let memory = host_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let tasks = unit.read("pids.max").ok().and_then(|most| most.trim().parse().ok());
        let bounds = bounds(limits, memory, tasks);
        let tools = unit.make(TOOLS).map_err(step("making", TOOLS))?;
        limit(&tools, &given, &bounds)?;
        enable(&tools, "tools/cgroup.subtree_control")?;
        let group = Group::new(place.name, tools, given, bounds);
        // Once now, so that what cannot be made is known before anything is started.
        group.room().await?;
        Ok(Claim::Held(Arc::new(group)))
    }
}

/// Hands the controllers that are there down to the groups below; says which.
fn enable(group: &Directory, name: &str) -> Result<Vec<&'static str>, GroupError> {
    let there = group.read("cgroup.controllers").map_err(step("reading the controllers for", name))?;
    let there: Vec<_> = there.split_ascii_whitespace().collect();
    let given: Vec<_> = CONTROLLERS.into_iter().filter(|wanted| there.contains(wanted)).collect();
    for controller in &given {
        group
            .write("cgroup.subtree_control", format!("+{controller}"))
            .map_err(step("handing controllers to", name))?;
    }
    Ok(given)
}

fn limit(tools: &Directory, given: &[&str], bounds: &Bounds) -> Result<(), GroupError> {
    if given.contains(&"memory") {
        tools.write("memory.max", bounds.memory).map_err(step("setting", "tools/memory.max"))?;
    }
    if given.contains(&"pids") {
        tools.write("pids.max", bounds.tasks).map_err(step("setting", "tools/pids.max"))?;
    }
    // Nothing but the service makes groups here; this bounds the service itself.
    let most = bounds.commands.saturating_add(1);
    tools.write("cgroup.max.descendants", most).map_err(step("setting", "tools/cgroup.max.descendants"))?;
    tools.write("cgroup.max.depth", 1).map_err(step("setting", "tools/cgroup.max.depth"))
}
