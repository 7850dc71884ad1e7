//! What toolsd and salaam-launch say to each other: the plan that goes in, the report that comes back.
//!
//! Invariant: nothing here acts. The program (main.rs) is static, has one thread, and does what the plan says.

pub mod attack;
pub mod plan;
pub mod report;

/// Where launch finds its descriptors; 0, 1 and 2 are the command's.
pub mod descriptor {
    /// The encoded plan, a sealed memfd.
    pub const PLAN: i32 = 3;
    /// Where the report goes, a pipe.
    pub const REPORT: i32 = 4;
    /// Where [`super::control`] bytes come from, a pipe.
    pub const CONTROL: i32 = 5;
    /// Shell text that is too long for an argument, a sealed memfd; the command keeps it.
    pub const SCRIPT: i32 = 6;
    /// The list of processes of the command's control group, which launch adds itself to.
    pub const CGROUP: i32 = 7;
}

/// The priority of a command, and of what toolsd does for one that nobody waits for: below what services and shells
/// have, above what is meant to run only when nothing else does.
pub const COMMAND_NICENESS: i32 = 5;

/// What toolsd writes on the control pipe, a byte each. Its end closing means: end everything.
pub mod control {
    /// Go on: toolsd holds the namespace by descriptor now.
    pub const GO: u8 = b'G';
    /// Send TERM to everything inside.
    pub const TERM: u8 = b'T';
    /// Kill everything inside.
    pub const KILL: u8 = b'K';
}
