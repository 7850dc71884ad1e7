//! The verbs on approvals, operations and sessions.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use salaam_core::policy::Profile;

/// `salaam approval …`
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ApprovalVerb {
    /// List the open questions.
    List {
        /// The decided ones too.
        #[arg(long)]
        all: bool,
    },
    /// Show one whole.
    Show {
        /// Its id.
        approval: String,
    },
    /// Say yes to exactly what is bound.
    Grant {
        /// Its id.
        approval: String,
        /// At least the first 12 hex digits of the binding that was shown.
        #[arg(long, value_name = "HEX")]
        binding: String,
        /// A word to go with it into the journal.
        #[arg(long)]
        comment: Option<String>,
    },
    /// Say no.
    Deny {
        /// Its id.
        approval: String,
        /// Why; whoever proposed it is told.
        #[arg(long)]
        comment: Option<String>,
    },
    /// Wait for questions, show each and ask.
    Watch,
}

/// `salaam operation …`
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum OperationVerb {
    /// List the latest ones.
    List {
        /// At most this many.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: Option<u32>,
    },
    /// Show one.
    Show {
        /// Its id.
        operation: String,
    },
    /// Print what is kept of its output.
    Output {
        /// Its id.
        operation: String,
        /// Which stream.
        #[arg(long, value_enum, default_value_t = StreamName::Stdout)]
        stream: StreamName,
    },
    /// Stop it; effects outside this host are not undone.
    Cancel {
        /// Its id.
        operation: String,
    },
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl StreamName {
    /// As the interface writes it.
    pub(in crate::cli) const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// `salaam session …`
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum SessionVerb {
    /// Let an agent work on a task.
    Create(Create),
    /// List them.
    List,
    /// Show one.
    Show {
        /// Its id.
        session: String,
    },
    /// Watch one until it ends: what is said, proposed, asked, printed and done.
    Follow {
        /// Its id.
        session: String,
    },
    /// Say something to it.
    Message {
        /// Its id.
        session: String,
        /// What.
        text: String,
    },
    /// End it; effects outside this host are not undone.
    Cancel {
        /// Its id.
        session: String,
    },
    /// Say what became of an operation that nobody saw end; the session goes on then.
    Reconcile {
        /// Its id.
        session: String,
        /// The operation that is unknown.
        operation: String,
        /// What a look at the host showed.
        #[arg(long, value_enum)]
        verdict: Verdict,
        /// What the agent is told about it.
        #[arg(long)]
        comment: Option<String>,
    },
    /// Take an edit back; an undo can be taken back too.
    Undo {
        /// Its id.
        session: String,
        /// The operation to take back; by default the last one that is not taken back.
        operation: Option<String>,
        /// Propose and grant in one step.
        #[arg(long)]
        yes: bool,
    },
}

/// `salaam session create …`
#[derive(Debug, Args)]
pub(in crate::cli) struct Create {
    /// Id, name or path; by default the one around the current directory.
    #[arg(long, value_name = "WORKSPACE")]
    pub workspace: Option<OsString>,
    /// Who proposes.
    #[arg(long, value_name = "PROVIDER", default_value = "scripted")]
    pub provider: String,
    /// The turns that the scripted provider replays.
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// What of the host its commands see.
    #[arg(long)]
    pub profile: Option<Profile>,
    /// Work in the workspace itself.
    #[arg(long)]
    pub in_place: bool,
    /// Watch it until it ends; exit code 0 only if it completed.
    #[arg(long)]
    pub follow: bool,
    /// What is to be done.
    pub task: String,
}

/// What became of an operation that nobody saw end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Verdict {
    /// It did what it was to do.
    TookEffect,
    /// It changed nothing.
    NoEffect,
}

impl Verdict {
    /// As the interface writes it.
    pub(in crate::cli) const fn as_str(self) -> &'static str {
        match self {
            Self::TookEffect => "took-effect",
            Self::NoEffect => "no-effect",
        }
    }
}
