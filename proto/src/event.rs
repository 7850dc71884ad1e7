//! What the executor tells while a command runs.

use salaam_core::{
    bridge::{Beyond, CHUNK_BYTES, Exit, RunEvent, Stream},
    result::{Changed, Guard, Usage},
};

use crate::{
    bounds::{self, MAX_CHANGED_PATHS, MAX_SIGNAL, WireError},
    wire,
};

impl From<RunEvent> for wire::RunEvent {
    fn from(event: RunEvent) -> Self {
        let event = match event {
            RunEvent::Spawned(sandbox) => wire::run_event::Event::Spawned(sandbox.into()),
            RunEvent::Output(stream, bytes) => {
                wire::run_event::Event::Output(wire::Output { stream: stream.as_str().into(), bytes: bytes.into() })
            }
            RunEvent::Beyond(beyond) => wire::run_event::Event::Beyond(beyond.into()),
            RunEvent::Failed(failure) => wire::run_event::Event::Failed(failure.into()),
            RunEvent::Exited(exit) => wire::run_event::Event::Exited((*exit).into()),
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<wire::RunEvent> for RunEvent {
    type Error = WireError;

    fn try_from(event: wire::RunEvent) -> Result<Self, WireError> {
        match bounds::present("event", event.event)? {
            wire::run_event::Event::Spawned(sandbox) => Ok(Self::Spawned(sandbox.try_into()?)),
            wire::run_event::Event::Output(output) => {
                let stream: Stream = bounds::word("output.stream", &output.stream)?;
                if output.bytes.is_empty() {
                    return Err(WireError::Missing { field: "output.bytes" });
                }
                Ok(Self::Output(stream, bounds::bytes("output.bytes", &output.bytes, CHUNK_BYTES)?))
            }
            wire::run_event::Event::Beyond(beyond) => Ok(Self::Beyond(beyond.try_into()?)),
            wire::run_event::Event::Failed(failure) => Ok(Self::Failed(failure.try_into()?)),
            wire::run_event::Event::Exited(exit) => Ok(Self::Exited(Box::new(exit.try_into()?))),
        }
    }
}

impl From<Beyond> for wire::Beyond {
    fn from(beyond: Beyond) -> Self {
        Self {
            stream: beyond.stream.as_str().into(),
            bytes: beyond.bytes,
            sha256: beyond.sha256.map(|sha256| sha256.as_bytes().to_vec().into()),
        }
    }
}

impl TryFrom<wire::Beyond> for Beyond {
    type Error = WireError;

    fn try_from(beyond: wire::Beyond) -> Result<Self, WireError> {
        let sha256 = beyond.sha256.map(|sha256| bounds::digest("beyond.sha256", &sha256));
        Ok(Self {
            stream: bounds::word("beyond.stream", &beyond.stream)?,
            bytes: beyond.bytes,
            sha256: sha256.transpose()?,
        })
    }
}

impl From<Exit> for wire::Exit {
    fn from(exit: Exit) -> Self {
        Self {
            exit_code: exit.exit_code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            cancelled: exit.cancelled,
            limit: exit.limit.unwrap_or_default(),
            proven_gone: exit.proven_gone,
            left_processes: exit.left_processes,
            usage: Some(wire::Usage {
                cpu_ms: exit.usage.cpu_ms,
                peak_memory_bytes: exit.usage.peak_memory_bytes,
                wall_ms: exit.usage.wall_ms,
            }),
            changed: Some(wire::Changed {
                count: exit.changed.count,
                paths: exit.changed.paths.into_iter().map(Into::into).collect(),
                complete: exit.changed.complete,
                mounts: exit.changed.guard.mounts,
                scanned: exit.changed.guard.scanned,
                guarded: exit.changed.guard.complete,
            }),
            quarantined: exit.quarantined.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::Exit> for Exit {
    type Error = WireError;

    fn try_from(exit: wire::Exit) -> Result<Self, WireError> {
        if exit.exit_code.is_some() && exit.signal.is_some() {
            return Err(WireError::Form { field: "exit", form: "an exit code or a signal, not both" });
        }
        if exit.exit_code.is_some_and(|code| !(0..=255).contains(&code)) {
            return Err(WireError::Form { field: "exit.exit_code", form: "from 0 to 255" });
        }
        if exit.signal.is_some_and(|signal| !(1..=MAX_SIGNAL).contains(&signal)) {
            return Err(WireError::Form { field: "exit.signal", form: "a signal" });
        }
        let usage = bounds::present("exit.usage", exit.usage)?;
        let changed = bounds::present("exit.changed", exit.changed)?;
        Ok(Self {
            exit_code: exit.exit_code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            cancelled: exit.cancelled,
            limit: match exit.limit {
                none if none.is_empty() => None,
                limit => Some(bounds::name("exit.limit", limit)?),
            },
            proven_gone: exit.proven_gone,
            left_processes: exit.left_processes,
            usage: Usage { cpu_ms: usage.cpu_ms, peak_memory_bytes: usage.peak_memory_bytes, wall_ms: usage.wall_ms },
            changed: Changed {
                count: changed.count,
                paths: bounds::list("changed.paths", changed.paths, MAX_CHANGED_PATHS, |path| {
                    bounds::relative_path("changed.paths", &path)
                })?,
                complete: changed.complete,
                guard: Guard { mounts: changed.mounts, scanned: changed.scanned, complete: changed.guarded },
            },
            quarantined: bounds::plan_list("quarantined", exit.quarantined, |path| {
                bounds::relative_path("quarantined", &path)
            })?,
        })
    }
}
