//! What the supervisor of the bridge reports.

/// A change in the executor's life; the app journals each before anything else is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A verified executor serves.
    Started {
        /// The account that it runs as.
        uid: u32,
        /// Its epoch.
        epoch: u64,
        /// Its process.
        pid: i32,
        /// Why it was started.
        reason: String,
    },
    /// The bridge is closed; every command in flight is unknown.
    Lost {
        /// The account that it ran as.
        uid: u32,
        /// Its epoch.
        epoch: u64,
        /// Its process.
        pid: i32,
        /// What was seen.
        reason: String,
    },
    /// The old executor could not be proven gone: no new grants, no new executor.
    ControlFailed {
        /// `executor-not-gone`.
        id: String,
        /// What was seen.
        evidence: String,
    },
}
