//! The arguments, as types. What is not declared here is refused with exit code 2.

use std::{ffi::OsString, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand};
use salaam_core::policy::{Profile, Unsandboxed};

mod verbs;

pub(super) use verbs::{ApprovalVerb, Create, OperationVerb, SessionVerb, StreamName};

/// Lets people run AI coding agents on a shared host.
#[derive(Debug, Parser)]
#[command(name = "salaam", version = crate::version::BUILD.as_str(), disable_help_subcommand = true)]
pub(super) struct Arguments {
    /// The instance of /etc/salaam/NAME.toml to speak to (also SALAAM_INSTANCE).
    #[arg(long, global = true, value_name = "NAME")]
    pub instance: Option<String>,
    /// Print exactly one JSON object, or one a line.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Start, stop and see the service.
    #[command(subcommand)]
    Service(ServiceVerb),
    /// What the service says about itself and this host.
    Health,
    /// Try everything that a start tries, and print all of it with what mends it.
    Doctor(Doctor),
    /// The host's configuration and its set-up.
    #[command(subcommand)]
    Host(HostVerb),
    /// Directories that commands may run in.
    #[command(subcommand)]
    Workspace(WorkspaceVerb),
    /// Questions put to an operator.
    #[command(subcommand)]
    Approval(ApprovalVerb),
    /// The same as `approval list`.
    Approvals,
    /// Proposed effects, from proposal to receipt.
    #[command(subcommand)]
    Operation(OperationVerb),
    /// Sessions.
    #[command(subcommand)]
    Session(SessionVerb),
    /// Propose one command and wait for its result.
    Run(Run),
    /// The record of decisions and effects.
    #[command(subcommand)]
    Journal(JournalVerb),
}

/// `salaam service …`
#[derive(Debug, Subcommand)]
pub(super) enum ServiceVerb {
    /// Start the service; returns when it answers.
    Start(Start),
    /// Stop it; returns when the process is gone.
    Stop {
        /// Wait up to this many seconds for running commands before they are cancelled.
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MAX_DRAIN_SECONDS))]
        drain: u64,
    },
    /// Whether it runs: process, version, health.
    Status,
}

/// `salaam service start …`
#[derive(Debug, Args)]
pub(super) struct Start {
    /// Stay in the foreground.
    #[arg(long)]
    pub foreground: bool,
    /// The account that runs commands.
    #[arg(long, value_name = "USER")]
    pub tools_user: Option<String>,
    /// Paths that commands may read beside the system's; `toolchain` stands for the toolchains found.
    #[arg(long, value_name = "PATH", num_args = 1.., action = ArgAction::Append)]
    pub local_sandbox_read: Vec<PathBuf>,
    /// What happens to commands where no sandbox is usable.
    #[arg(long, value_name = "allow|refuse")]
    pub unsandboxed_commands: Option<Unsandboxed>,
    /// Set by `start` itself: leave the terminal and report the outcome as one line on standard output.
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
}

/// `salaam doctor …`
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The account that runs commands, as for `service start`; a service that runs has its own.
    #[arg(long, value_name = "USER")]
    pub tools_user: Option<String>,
    /// Carry out every attack that there is on the sandbox, first without it and then inside, and show what held.
    #[arg(long)]
    pub prove: bool,
}

/// `salaam host …`
#[derive(Debug, Subcommand)]
pub(super) enum HostVerb {
    /// Show the resolved host configuration and how it differs from the pinned one.
    Plan {
        /// Pin it: the next start accepts it.
        #[arg(long)]
        pin: bool,
    },
    /// Set up accounts, directories and the sudo rule, as root.
    Setup(Setup),
    /// Set-up's own child: become the service user, then give a workspace's entries to the work group.
    #[command(hide = true)]
    FitWorkspace(FitWorkspace),
}

/// `salaam host setup …`
#[derive(Debug, Args)]
pub(super) struct Setup {
    /// The account that the service runs as.
    #[arg(long, value_name = "USER")]
    pub service_user: String,
    /// The account that runs commands.
    #[arg(long, value_name = "USER", default_value = "salaam-tools")]
    pub tools_user: String,
    /// The group that shares the workspaces.
    #[arg(long, value_name = "GROUP", default_value = "salaam-work")]
    pub group: String,
    /// A workspace to share with that group.
    #[arg(long, value_name = "DIR", action = ArgAction::Append)]
    pub workspace: Vec<PathBuf>,
    /// The group whose members are operators.
    #[arg(long, value_name = "GROUP")]
    pub operators_group: Option<String>,
    /// A person to put into that group.
    #[arg(long, value_name = "USER", action = ArgAction::Append, requires = "operators_group")]
    pub operator: Vec<String>,
    /// Print the exact commands and change nothing.
    #[arg(long, conflicts_with = "undo")]
    pub dry_run: bool,
    /// Take away what an earlier set-up added.
    #[arg(long)]
    pub undo: bool,
    /// Answer yes to the question about very large workspaces.
    #[arg(long)]
    pub yes: bool,
}

/// `salaam host fit-workspace …`, run by root
#[derive(Debug, Args)]
pub(super) struct FitWorkspace {
    /// The account that owns the workspace.
    #[arg(long, value_name = "USER")]
    pub service_user: String,
    /// The group that shares it.
    #[arg(long, value_name = "GROUP")]
    pub group: String,
    /// Only count what would change.
    #[arg(long)]
    pub count: bool,
    /// Accepted as an answer given beforehand; counting is the asker's part.
    #[arg(long)]
    pub yes: bool,
    /// The workspace.
    pub dir: PathBuf,
}

/// `salaam workspace …`
#[derive(Debug, Subcommand)]
pub(super) enum WorkspaceVerb {
    /// Register a directory.
    Add {
        /// The directory.
        dir: PathBuf,
        /// A short name for it.
        #[arg(long)]
        name: Option<String>,
    },
    /// List the registered directories.
    List,
    /// Show one.
    Show {
        /// Id, name or path; by default the one around the current directory.
        workspace: Option<OsString>,
    },
    /// Forget one; its files stay.
    Remove {
        /// Id, name or path.
        workspace: OsString,
    },
}

/// `salaam run …`
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Id, name or path; by default the one around the current directory.
    #[arg(long, value_name = "WORKSPACE")]
    pub workspace: Option<OsString>,
    /// What of the host the command sees.
    #[arg(long)]
    pub profile: Option<Profile>,
    /// Its time limit in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
    /// Read standard input whole and hand it to the command.
    #[arg(long)]
    pub stdin: bool,
    /// Propose and grant in one step.
    #[arg(long)]
    pub yes: bool,
    /// Let the command go on if this process goes away.
    #[arg(long)]
    pub detach: bool,
    /// The program and its arguments, without a shell.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `salaam journal …`
#[derive(Debug, Subcommand)]
pub(super) enum JournalVerb {
    /// Print the events.
    List(Select),
    /// Print the events and go on with new ones.
    Follow(Select),
    /// Print one event whole.
    Show {
        /// Its number.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        seq: u64,
    },
    /// Recompute the chain.
    Verify {
        /// An export instead of this service's journal.
        #[arg(long, value_name = "EXPORT")]
        file: Option<PathBuf>,
    },
    /// Print every event as its canonical line.
    Export,
}

/// Which events.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Select {
    /// Those after this number.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Those of this kind.
    #[arg(long)]
    pub kind: Option<String>,
    /// Those of this session.
    #[arg(long)]
    pub session: Option<String>,
}

/// A day: whoever waits longer wants no drain.
const MAX_DRAIN_SECONDS: u64 = 86_400;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_declaration_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_form_of_the_contract_parses() {
        for line in [
            "salaam service start",
            "salaam service start --foreground --tools-user salaam-tools --local-sandbox-read toolchain /opt/x --unsandboxed-commands allow",
            "salaam service start --local-sandbox-read /a --local-sandbox-read /b --unsandboxed-commands refuse",
            "salaam service stop",
            "salaam service stop --drain 30",
            "salaam service status --json",
            "salaam --instance salaam health --json",
            "salaam health --instance salaam",
            "salaam doctor --json",
            "salaam doctor --prove --json",
            "salaam doctor --tools-user t",
            "salaam host plan",
            "salaam host plan --pin",
            "salaam host setup --service-user s --tools-user t --group g --workspace /a --workspace /b --operators-group o --dry-run",
            "salaam host setup --service-user s --undo",
            "salaam workspace add /srv/x --name x",
            "salaam workspace list --json",
            "salaam workspace show x",
            "salaam workspace remove ws_00000000000000000000000000000000",
            "salaam approval list",
            "salaam approvals --json",
            "salaam approval show ap_1",
            "salaam approval grant ap_1 --binding 0123456789ab",
            "salaam approval deny ap_1 --comment no",
            "salaam approval watch",
            "salaam operation list --json",
            "salaam operation show op_1",
            "salaam operation output op_1 --stream stderr",
            "salaam operation cancel op_1",
            "salaam session list",
            "salaam session show ses_1",
            "salaam session create --workspace w --provider scripted --script s.json --profile read-only --in-place --follow do",
            "salaam session create task",
            "salaam session follow ses_1 --json",
            "salaam session message ses_1 text",
            "salaam session cancel ses_1",
            "salaam session reconcile ses_1 op_1 --verdict no-effect --comment seen",
            "salaam session undo ses_1",
            "salaam session undo ses_1 op_1 --yes",
            "salaam run --workspace w --profile read-only --timeout 5 --stdin --yes --detach --json -- ls -l --json",
            "salaam journal list --after 3 --kind operation.result --session ses_1",
            "salaam journal follow",
            "salaam journal show 17",
            "salaam journal verify",
            "salaam journal verify --file export.jsonl",
            "salaam journal export",
        ] {
            assert!(parsed(line).is_ok(), "{line}: {}", parsed(line).unwrap_err());
        }
    }

    #[test]
    fn what_is_not_declared_is_refused() {
        for line in [
            "salaam",
            "salaam run ls",
            "salaam run --",
            "salaam run --profile everything -- ls",
            "salaam run --timeout 0 -- ls",
            "salaam service start --detached",
            "salaam service start --unsandboxed-commands maybe",
            "salaam approval grant ap_1",
            "salaam journal show 0",
            "salaam doctor now",
            "salaam session create",
            "salaam session reconcile ses_1 op_1",
            "salaam session reconcile ses_1 op_1 --verdict perhaps",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn words_after_the_dashes_belong_to_the_command() {
        let Verb::Run(run) = parsed("salaam run --yes -- ls --json --yes").unwrap().verb else { panic!("not a run") };
        assert!(run.yes && !parsed("salaam run -- ls --json").unwrap().json);
        assert_eq!(run.command, ["ls", "--json", "--yes"]);
    }
}
