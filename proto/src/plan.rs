//! What the service sends into `Run`: the plan, standard input, a cancel.

use salaam_core::{
    bridge::{CHUNK_BYTES, MAX_STDIN_BYTES, RunInput, RunPlan},
    limits::Limits,
};

use crate::{
    bounds::{self, MAX_VALUE_BYTES, WireError},
    command, wire,
};

/// An inode's number and the largest file handle of the kernel, in hex.
const MAX_IDENTITY_BYTES: usize = 512;

impl From<Limits> for wire::Limits {
    fn from(limits: Limits) -> Self {
        Self {
            processes: limits.processes,
            memory_bytes: limits.memory_bytes,
            file_bytes: limits.file_bytes,
            tmp_bytes: limits.tmp_bytes,
            open_files: limits.open_files,
            output_bytes: limits.output_bytes,
            workspace_growth_bytes: limits.workspace_growth_bytes,
            command_seconds: limits.command_seconds,
            concurrent_commands: limits.concurrent_commands,
        }
    }
}

impl TryFrom<wire::Limits> for Limits {
    type Error = WireError;

    fn try_from(limits: wire::Limits) -> Result<Self, WireError> {
        let limits = Self {
            processes: limits.processes,
            memory_bytes: limits.memory_bytes,
            file_bytes: limits.file_bytes,
            tmp_bytes: limits.tmp_bytes,
            open_files: limits.open_files,
            output_bytes: limits.output_bytes,
            workspace_growth_bytes: limits.workspace_growth_bytes,
            command_seconds: limits.command_seconds,
            concurrent_commands: limits.concurrent_commands,
        };
        match limits.validate() {
            Ok(()) => Ok(limits),
            Err(_) => Err(WireError::Form { field: "limits", form: "within the floor and the ceiling, each of them" }),
        }
    }
}

impl From<RunPlan> for wire::RunPlan {
    fn from(plan: RunPlan) -> Self {
        Self {
            operation: plan.operation.to_string(),
            epoch: plan.epoch,
            workspace: plan.workspace.to_string(),
            command: Some(plan.command.into()),
            stdin: plan.stdin.map(|(sha256, bytes)| wire::Stdin { sha256: sha256.as_bytes().to_vec().into(), bytes }),
            profile: plan.profile.as_str().into(),
            network: plan.network.as_str().into(),
            landlock: plan.landlock.as_str().into(),
            allow_unsandboxed: plan.allow_unsandboxed,
            limits: Some(plan.limits.into()),
            files: plan.files.into_iter().map(Into::into).collect(),
            read_paths: plan.read_paths.into_iter().map(Into::into).collect(),
            read_identities: plan.read_identities,
            protected_paths: plan.protected_paths.into_iter().map(Into::into).collect(),
            environment: plan
                .environment
                .into_iter()
                .map(|(name, value)| wire::EnvironmentEntry { name, value })
                .collect(),
            whole_output: plan.whole_output,
        }
    }
}

impl TryFrom<wire::RunPlan> for RunPlan {
    type Error = WireError;

    fn try_from(plan: wire::RunPlan) -> Result<Self, WireError> {
        if plan.epoch == 0 {
            return Err(WireError::Missing { field: "epoch" });
        }
        let stdin = plan.stdin.map(|stdin| {
            if stdin.bytes > MAX_STDIN_BYTES {
                return Err(WireError::Form { field: "stdin.bytes", form: "at most MAX_STDIN_BYTES" });
            }
            Ok((bounds::digest("stdin.sha256", &stdin.sha256)?, stdin.bytes))
        });
        Ok(Self {
            operation: bounds::id("operation", &plan.operation)?,
            epoch: plan.epoch,
            workspace: bounds::id("workspace", &plan.workspace)?,
            command: bounds::present("command", plan.command)?.try_into()?,
            stdin: stdin.transpose()?,
            profile: bounds::word("profile", &plan.profile)?,
            network: bounds::word("network", &plan.network)?,
            landlock: bounds::word("landlock", &plan.landlock)?,
            allow_unsandboxed: plan.allow_unsandboxed,
            limits: bounds::present("limits", plan.limits)?.try_into()?,
            files: command::files(plan.files)?,
            read_paths: bounds::plan_list("read_paths", plan.read_paths, |path| {
                bounds::absolute_path("read_paths", &path)
            })?,
            read_identities: bounds::plan_list("read_identities", plan.read_identities, |identity| {
                bounds::text("read_identities", identity, MAX_IDENTITY_BYTES)
            })?,
            protected_paths: bounds::plan_list("protected_paths", plan.protected_paths, |path| {
                bounds::relative_path("protected_paths", &path)
            })?,
            environment: bounds::plan_list("environment", plan.environment, environment)?,
            whole_output: plan.whole_output,
        })
    }
}

fn environment(entry: wire::EnvironmentEntry) -> Result<(String, String), WireError> {
    let name = bounds::name("environment.name", entry.name)?;
    if name.starts_with(|c: char| c.is_ascii_digit()) || name.contains('-') {
        return Err(WireError::Form { field: "environment.name", form: "the name of a variable" });
    }
    let value = bounds::text("environment.value", entry.value, MAX_VALUE_BYTES)?;
    if value.contains('\0') {
        return Err(WireError::Form { field: "environment.value", form: "free of NUL" });
    }
    Ok((name, value))
}

impl From<RunInput> for wire::RunInput {
    fn from(input: RunInput) -> Self {
        let input = match input {
            RunInput::Plan(plan) => wire::run_input::Input::Plan((*plan).into()),
            RunInput::Stdin(bytes) => wire::run_input::Input::Stdin(bytes.into()),
            RunInput::Cancel => wire::run_input::Input::Cancel(wire::Cancel {}),
        };
        Self { input: Some(input) }
    }
}

impl TryFrom<wire::RunInput> for RunInput {
    type Error = WireError;

    fn try_from(input: wire::RunInput) -> Result<Self, WireError> {
        match bounds::present("input", input.input)? {
            wire::run_input::Input::Plan(plan) => Ok(Self::Plan(Box::new(plan.try_into()?))),
            wire::run_input::Input::Stdin(bytes) if bytes.is_empty() => Err(WireError::Missing { field: "stdin" }),
            wire::run_input::Input::Stdin(bytes) => Ok(Self::Stdin(bounds::bytes("stdin", &bytes, CHUNK_BYTES)?)),
            wire::run_input::Input::Cancel(wire::Cancel {}) => Ok(Self::Cancel),
        }
    }
}
