//! How much all commands together may use, and each of them.

use salaam_core::limits::Limits;

/// What sudo and the executor use themselves, with edits, scans and kept output: far more than was ever seen (40 MiB).
const EXECUTOR_MEMORY: u64 = 1 << 30;
/// sudo, the executor with its threads, and two processes of bwrap for each command that may run.
const EXECUTOR_TASKS: u64 = 256;
/// What is left to the service of the tasks that the unit may have: 64 connections need none, workers and readers one
/// each.
const SERVICE_TASKS: u64 = 256;
/// Fewer than these and not even the executor starts.
const LEAST_TASKS: u64 = 64;

/// Numbers to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Groups for commands: one for each that may run at once, and one for the probe.
    pub(super) commands: usize,
    /// `memory.max` of one command.
    pub(super) command_memory: u64,
    /// `pids.max` of one command.
    pub(super) command_tasks: u64,
    /// `memory.max` of everything of the tools account.
    pub(super) memory: u64,
    /// `pids.max` of everything of the tools account.
    pub(super) tasks: u64,
}

/// By these limits, on a host with so much memory, in a unit that may have so many tasks.
pub(super) fn bounds(limits: &Limits, host_memory: Option<u64>, unit_tasks: Option<u64>) -> Bounds {
    // /tmp and /dev/shm are memory as well, and have limits of their own.
    let command_memory = limits.memory_bytes.saturating_add(limits.tmp_bytes.saturating_mul(2));
    // salaam-launch counts too.
    let command_tasks = limits.processes.saturating_add(1);
    let together = limits.concurrent_commands.saturating_mul(command_memory).saturating_add(EXECUTOR_MEMORY);
    // An eighth of the host stays for the service and everybody else, whatever is promised to commands.
    let host = host_memory.map_or(u64::MAX, |memory| memory - memory / 8);
    let tasks = limits.concurrent_commands.saturating_mul(command_tasks).saturating_add(EXECUTOR_TASKS);
    let unit = unit_tasks.map_or(u64::MAX, |tasks| tasks.saturating_sub(SERVICE_TASKS));
    Bounds {
        commands: usize::try_from(limits.concurrent_commands).unwrap_or(1).saturating_add(1),
        command_memory,
        command_tasks,
        memory: together.min(host),
        tasks: tasks.min(unit).max(LEAST_TASKS),
    }
}

/// The bytes of `MemTotal` in this /proc/meminfo.
pub(super) fn host_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
