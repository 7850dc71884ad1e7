//! How a start ends for whoever waits for it: ready, refused with every failed check, or failed.

use std::{
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::PathBuf,
    process::ExitCode,
};

use salaam_core::check::Check;
use serde_json::{Value, json};

use super::{Log, detach};
use crate::host::HostError;

/// Exit codes of the service process.
pub(super) mod exit {
    pub(in crate::app) const FAILED: u8 = 1;
    pub(in crate::app) const CONFIGURATION: u8 = 2;
    pub(in crate::app) const REFUSED: u8 = 3;
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Where the outcome of the start is told: the parent's pipe, or the terminal.
pub(super) struct Report {
    pipe: Option<OwnedFd>,
    log: Option<(Log, PathBuf)>,
}

impl Report {
    /// `pipe` as the parent of a detached start reads it; `log` is then its log and where that is kept.
    pub(super) fn new(pipe: Option<OwnedFd>, log: Option<(Log, PathBuf)>) -> Self {
        Self { pipe, log }
    }

    /// Whether to go on: a start whose caller went away before it was told leaves nothing behind.
    pub(super) fn ready(mut self, health: &Value) -> bool {
        let log = self.log.take();
        let told = self.tell(&json!({ "ready": health }));
        let Some((log, directory)) = log else { return true };
        let left = told.and_then(|()| detach::leave(&log, &directory));
        left.inspect_err(|error| tracing::error!(%error, "the start cannot be finished")).is_ok()
    }

    pub(super) fn refused(self, checks: &[Check]) -> ExitCode {
        let checks: Vec<_> = checks
            .iter()
            .map(|check| json!({ "id": check.id, "evidence": check.evidence, "fix": check.fix }))
            .collect();
        let _ = self.tell(&json!({ "error": { "id": "start-refused", "message": "the service was not started", "fix": "mend each check below, then start again", "checks": checks } }));
        ExitCode::from(exit::REFUSED)
    }

    pub(super) fn configuration(self, error: &HostError) -> ExitCode {
        if let HostError::Closed(checks) = error {
            return self.refused(checks);
        }
        self.failed(exit::CONFIGURATION, "configuration", &chain(error), "correct the key that is named")
    }

    pub(super) fn failed(self, code: u8, id: &str, message: &str, fix: &str) -> ExitCode {
        let _ = self.tell(&json!({ "error": { "id": id, "message": message, "fix": fix } }));
        ExitCode::from(code)
    }

    fn tell(self, value: &Value) -> io::Result<()> {
        let line = format!("{value}\n");
        let written = match self.pipe {
            Some(pipe) => std::fs::File::from(pipe).write_all(line.as_bytes()),
            None => io::stdout().write_all(line.as_bytes()),
        };
        written.inspect_err(|error| tracing::warn!(%error, "nobody waits for the outcome of the start"))
    }
}
