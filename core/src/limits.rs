//! `limits.*`: what one command may use, each a number with its unit in the name.

use serde::{Deserialize, Serialize};

/// Limits of one command. All are enforced by toolsd; the service cannot lift them above [`Limits::CEILING`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Processes and threads at once (RLIMIT_NPROC inside the sandbox's own user namespace).
    pub processes: u64,
    /// Private writable memory per process in bytes (RLIMIT_DATA; RLIMIT_AS breaks the JVM and WebAssembly).
    pub memory_bytes: u64,
    /// One file in bytes (RLIMIT_FSIZE).
    pub file_bytes: u64,
    /// The private /tmp, and /dev/shm, in bytes each.
    pub tmp_bytes: u64,
    /// Open descriptors per process.
    pub open_files: u64,
    /// What is kept of each output stream in bytes; the rest is drained, counted and hashed.
    pub output_bytes: u64,
    /// How much the workspace may grow during one command in bytes; watched, not reserved.
    pub workspace_growth_bytes: u64,
    /// Wall-clock seconds.
    pub command_seconds: u64,
    /// Commands that one toolsd runs at once; more wait.
    pub concurrent_commands: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            processes: 512,
            memory_bytes: 3 << 30,
            file_bytes: 1 << 30,
            tmp_bytes: 1 << 30,
            open_files: 4096,
            output_bytes: 64 << 20,
            workspace_growth_bytes: 2 << 30,
            command_seconds: 600,
            concurrent_commands: 4,
        }
    }
}

/// A limit outside its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("limits.{name} is {given}; it must be from {least} to {most}")]
pub struct LimitOutOfRange {
    /// The key below `limits`.
    pub name: &'static str,
    /// What was given.
    pub given: u64,
    /// The least that is usable.
    pub least: u64,
    /// The most that toolsd accepts.
    pub most: u64,
}

impl Limits {
    /// What toolsd accepts at the most, whoever asks.
    pub const CEILING: Self = Self {
        processes: 65_536,
        memory_bytes: 1 << 46,
        file_bytes: 1 << 46,
        tmp_bytes: 1 << 40,
        open_files: 1 << 20,
        output_bytes: 4 << 30,
        workspace_growth_bytes: 1 << 46,
        command_seconds: 7 * 24 * 3600,
        concurrent_commands: 64,
    };

    /// The least with which a shell still starts.
    pub const FLOOR: Self = Self {
        processes: 4,
        memory_bytes: 8 << 20,
        file_bytes: 4096,
        tmp_bytes: 1 << 20,
        open_files: 16,
        output_bytes: 4096,
        workspace_growth_bytes: 1 << 20,
        command_seconds: 1,
        concurrent_commands: 1,
    };

    /// Checks every limit against [`Limits::FLOOR`] and [`Limits::CEILING`]; returns all that are outside.
    pub fn validate(&self) -> Result<(), Vec<LimitOutOfRange>> {
        let outside: Vec<_> = self
            .named()
            .into_iter()
            .zip(Self::FLOOR.named())
            .zip(Self::CEILING.named())
            .filter(|(((_, given), (_, least)), (_, most))| given < least || given > most)
            .map(|(((name, given), (_, least)), (_, most))| LimitOutOfRange { name, given, least, most })
            .collect();
        if outside.is_empty() { Ok(()) } else { Err(outside) }
    }

    /// Every limit with its key, in the order of the documentation.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("processes", self.processes),
            ("memory_bytes", self.memory_bytes),
            ("file_bytes", self.file_bytes),
            ("tmp_bytes", self.tmp_bytes),
            ("open_files", self.open_files),
            ("output_bytes", self.output_bytes),
            ("workspace_growth_bytes", self.workspace_growth_bytes),
            ("command_seconds", self.command_seconds),
            ("concurrent_commands", self.concurrent_commands),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_both_ends_are_valid() {
        for limits in [Limits::default(), Limits::FLOOR, Limits::CEILING] {
            assert_eq!(limits.validate(), Ok(()));
        }
    }

    #[test]
    fn all_that_are_outside_are_named() {
        let limits = Limits { processes: 3, command_seconds: Limits::CEILING.command_seconds + 1, ..Limits::default() };
        let names: Vec<_> = limits.validate().unwrap_err().into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["processes", "command_seconds"]);
    }
}
