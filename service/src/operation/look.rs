//! What a piece of work comes to on this host now: looked at when it is proposed, and again at dispatch.

use salaam_core::{
    bound::{Arguments, Bound, BoundFile, WorkspaceIdentity},
    bridge::{Prepare, Prepared},
    command::Command,
    digest::Digest,
    edit::{Change, Expected},
    limits::Limits,
    policy::{Isolation, Network, Policy, Profile},
    show,
};

use super::{
    Work,
    edits::{self, Sketch, View},
    owner::Owner,
    refuse::{Unseen, below_required, bridge_refusal, no_sandbox, read_only, timeout, workspace_refusal},
    session::is_in_place,
};
use crate::{
    executor::Link,
    operation::Refusal,
    store::{SessionRow, WorkspaceRow},
};

/// What was seen. Whatever of it is bound must be the same at dispatch.
#[derive(Debug)]
pub(super) struct Look {
    pub identity: WorkspaceIdentity,
    pub link: Link,
    pub policy: Policy,
    pub arguments: Arguments,
    pub files: Vec<BoundFile>,
    /// What a person is shown, whole.
    pub display: String,
    /// What a person should look at twice; bound as a set, so that a new one makes a grant stale.
    pub flags: Vec<String>,
    /// Why the host cannot have it done, if it cannot.
    pub forbidden: Option<Refusal>,
    /// What an edit or an undo comes to.
    pub sketch: Option<Sketch>,
}

/// Where and under what the work is done.
pub(super) struct Place<'a> {
    pub row: &'a WorkspaceRow,
    pub session: &'a SessionRow,
    pub profile: Profile,
}

impl Owner {
    /// Looks at everything that is bound. `hold`: the executor keeps what it read for this operation. `bound`: what
    /// was bound before, if it was.
    pub(super) async fn look(
        &self,
        place: &Place<'_>,
        work: &Work,
        hold: bool,
        bound: Option<&Bound>,
    ) -> Result<Look, Unseen> {
        let context = &self.context;
        let identity = context.workspaces.identity(place.row).map_err(|e| workspace_refusal(&e))?;
        let link = context.executor.link().map_err(|e| bridge_refusal(&e))?;
        context.workspaces.open_on(&link, &identity).await.map_err(|e| workspace_refusal(&e))?;
        let mut look = match work {
            Work::Command { command, stdin, timeout_seconds } => {
                let timeout = timeout(&context.manifest.limits, *timeout_seconds)?;
                let prepare = Prepare { operation: self.id, workspace: place.row.id, command: command.clone(), hold };
                let prepared = link.prepare(prepare).await.map_err(|e| bridge_refusal(&e))?;
                let policy = Policy {
                    control_group: context.control_group(&link),
                    ..self.policy(place.profile, context.isolation(place.profile), timeout)
                };
                let stdin = stdin.as_deref().filter(|bytes| !bytes.is_empty());
                Look {
                    arguments: Arguments::Command {
                        command: command.clone(),
                        stdin: stdin.map(|bytes| (Digest::of(bytes), bytes.len() as u64)),
                        timeout_seconds: timeout,
                    },
                    display: command.display(),
                    flags: flags(command, &policy, &prepared, context.lacks_landlock()),
                    files: prepared.files,
                    forbidden: no_sandbox(context, place.profile),
                    sketch: None,
                    identity,
                    link,
                    policy,
                }
            }
            Work::Edit { changes } => {
                let view =
                    View { link: &link, row: place.row, session: place.session.id, bound: bound.and_then(expected) };
                let sketch = edits::edit(context, &view, changes).await?;
                let arguments = Arguments::Edit {
                    changes: changes.iter().map(Change::named).collect(),
                    files: sketch.planned.expected(),
                    diff: sketch.planned.diff(),
                };
                self.look_of_edit(place, sketch, arguments, changes, identity, link)
            }
            Work::Undo { operation } => {
                let view =
                    View { link: &link, row: place.row, session: place.session.id, bound: bound.and_then(expected) };
                let sketch = edits::undo(context, &view, *operation).await?;
                let arguments = Arguments::Undo {
                    operation: *operation,
                    files: sketch.planned.expected(),
                    diff: sketch.planned.diff(),
                };
                self.look_of_edit(place, sketch, arguments, &[], identity, link)
            }
        };
        look.forbidden = below_required(context).or(look.forbidden);
        if self.worker.is_some() && is_in_place(place.session) {
            look.flags.push("in-place".into());
        }
        Ok(look)
    }

    fn look_of_edit(
        &self,
        place: &Place<'_>,
        sketch: Sketch,
        arguments: Arguments,
        proposed: &[Change],
        identity: WorkspaceIdentity,
        link: Link,
    ) -> Look {
        let context = &self.context;
        let hidden = sketch.planned.has_hidden(proposed);
        // The executor changes the files itself, outside of any sandbox; it enters no network.
        let isolation = Isolation::of(context.mode(), false);
        let limits = context.manifest.limits;
        let policy = Policy { network: Network::None, ..self.policy(place.profile, isolation, limits.command_seconds) };
        Look {
            files: BoundFile::before(&identity.path, &sketch.planned.expected()),
            display: sketch.planned.display.clone(),
            flags: if hidden { vec!["hidden-characters".into()] } else { Vec::new() },
            forbidden: read_only(place.profile),
            sketch: Some(sketch),
            identity,
            link,
            policy,
            arguments,
        }
    }

    fn policy(&self, profile: Profile, isolation: Isolation, timeout: u64) -> Policy {
        let manifest = &self.context.manifest;
        let network = match profile {
            Profile::ReadOnly | Profile::WorkspaceWrite => manifest.command_network,
            Profile::FullAccess => Network::Host,
        };
        Policy {
            manifest: self.context.manifest_digest,
            profile,
            isolation,
            network,
            limits: Limits { command_seconds: timeout, ..manifest.limits },
            control_group: Vec::new(),
        }
    }
}

/// What was bound of each file.
fn expected(bound: &Bound) -> Option<&[Expected]> {
    match &bound.arguments {
        Arguments::Edit { files, .. } | Arguments::Undo { files, .. } => Some(files),
        Arguments::Command { .. } => None,
    }
}

/// What a person should look at twice.
fn flags(command: &Command, policy: &Policy, prepared: &Prepared, lacks_landlock: bool) -> Vec<String> {
    let sandboxed = policy.isolation.has_sandbox();
    let mut flags: Vec<String> = command.flags().into_iter().map(str::to_owned).collect();
    if !sandboxed {
        flags.push("unsandboxed".into());
    } else if lacks_landlock {
        flags.push("landlock-not-enforced".into());
    }
    // A linked worktree: git would find none of its own directories. Which one it is stands beside, so that a person
    // can add that workspace instead.
    if let Some(outside) = prepared.git_outside.as_deref().filter(|_| sandboxed) {
        flags.push(format!("git-outside: {}", show::line(outside.as_bytes())));
    }
    // Bare, bytes cannot be bound over their paths: nothing that is run from the workspace is pinned.
    if prepared.unpinned || (!sandboxed && !prepared.files.is_empty()) {
        flags.push("operand-unpinned".into());
    }
    flags
}
