//! What operators do with sessions: make one, look, say something, end it, say what became of what is unknown, undo.

use std::time::Duration;

use salaam_core::{
    digest::Digest,
    event::{Draft, Kind},
    id::{OperationId, SessionId, WorkspaceId},
    operation::State,
    policy::{Network, Profile},
    script::{MAX_SCRIPT_BYTES, Script},
    session,
    tool::TOOLS,
    worker::{MAX_TASK_BYTES, MAX_TEXT_BYTES, Provider},
};
use serde_json::{Value, json};

use super::service::{App, MOST_LISTED};
use crate::{
    operation::{Refusal, Who},
    session::view,
    store::{BriefRow, Change, SessionQuery, SessionRow, Transaction, TurnQuery},
};

/// How long the answer to a cancel waits for what runs: TERM, its grace, KILL, the receipt. It goes on without.
const CANCEL_TAKES: Duration = Duration::from_secs(25);
/// Turns of one answer, in bytes.
const PAGE_BYTES: usize = 4 << 20;
/// Messages of one answer.
const PAGE_MESSAGES: u32 = 256;
/// Longest comment on a verdict, in bytes: it reaches a model's context.
const MOST_COMMENT: usize = 4096;

/// A session that is asked for.
#[derive(Debug)]
pub struct Wanted {
    /// Where.
    pub workspace: WorkspaceId,
    /// What is to be done.
    pub task: String,
    /// Who is asked.
    pub provider: String,
    /// What the scripted provider replays: the bytes of its file.
    pub script: Option<Vec<u8>>,
    /// Absent = `workspace-write`.
    pub profile: Option<Profile>,
    /// In the workspace itself, and not in a copy.
    pub in_place: bool,
    /// Makes a repeated call answer for the first one.
    pub request_id: Option<String>,
}

impl App {
    /// Sessions, the newest first.
    pub async fn sessions(&self) -> Result<Vec<Value>, Refusal> {
        let store = &self.context.store;
        let query = SessionQuery { limit: MOST_LISTED, ..SessionQuery::default() };
        let rows = store.sessions(query).await.map_err(Refusal::journal)?;
        let asking = store.asking_sessions().await.map_err(Refusal::journal)?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let asks = asking.contains(&row.id);
                view::session(row, asks)
            })
            .collect())
    }

    /// One session, with what was said in it from turn `from` on, as much as fits.
    pub async fn session(&self, id: SessionId, from: u64) -> Result<Value, Refusal> {
        let store = &self.context.store;
        let row = self.session_row(id).await?;
        let kind = row.kind;
        let mut value = self.session_value(row).await?;
        let Some(map) = value.as_object_mut() else { return Ok(value) };
        match kind {
            session::Kind::Operator => {}
            session::Kind::Worker => {
                let query = TurnQuery { session: id, from, bytes: PAGE_BYTES };
                let turns = store.turns(query).await.map_err(Refusal::journal)?;
                let taken = map.get("turns_taken").and_then(Value::as_u64).unwrap_or(0);
                let more = turns.last().is_some_and(|last| last.number + 1 < taken);
                let messages = store.messages(id, 0, PAGE_MESSAGES).await.map_err(Refusal::journal)?;
                map.insert("task".into(), store.task(id).await.map_err(Refusal::journal)?.into());
                map.insert("turns".into(), turns.iter().map(view::turn).collect());
                map.insert("more".into(), more.into());
                map.insert("messages".into(), messages.iter().map(view::message).collect());
            }
        }
        Ok(value)
    }

    /// Makes a session: checks what is asked, records it, and starts it.
    pub async fn make_session(&self, wanted: Wanted, who: &Who) -> Result<Value, Refusal> {
        let script = checked(&wanted)?;
        let fingerprint = fingerprint(&wanted);
        if let Some(known) = self.known_request(wanted.request_id.as_deref()).await? {
            let same = known.fingerprint == fingerprint;
            let id = known.subject.parse().ok().filter(|_| same).ok_or_else(crate::operation::request_id_reused)?;
            return self.session_value(self.session_row(id).await?).await;
        }
        if *self.context.stopping.borrow() {
            return Err(crate::operation::stopping());
        }
        if self.is_draining() {
            return Err(Refusal::new(
                "draining",
                503,
                "the service takes no new sessions",
                "try again when it is back",
            ));
        }
        let script = tokio::task::spawn_blocking(move || Script::parse(&script).map(|_| script))
            .await
            .map_err(|_| crate::operation::stopping())?
            .map_err(|error| Refusal::new("bad-script", 400, error.to_string(), "mend the script"))?;
        let rows = self.context.store.workspaces().await.map_err(Refusal::journal)?;
        let workspace = rows.iter().find(|row| row.id == wanted.workspace);
        let workspace = workspace.ok_or_else(|| Refusal::not_found("workspace", wanted.workspace))?;
        self.context.workspaces.identity(workspace).map_err(|error| crate::operation::workspace_refusal(&error))?;
        let row = self.new_session(&wanted)?;
        let id = row.id;
        let made = self.creation(&row, wanted, script, fingerprint, who)?;
        self.sessions.make(id, made).await?;
        Ok(view::session(row, false))
    }

    fn new_session(&self, wanted: &Wanted) -> Result<SessionRow, Refusal> {
        let context = &self.context;
        let now = context.clock.now();
        let random = context
            .clock
            .random()
            .map_err(|e| Refusal::new("no-randomness", 503, e.to_string(), "check getrandom(2) on this host"))?;
        let id = SessionId::new(now.unix_millis(), random);
        let profile = wanted.profile.unwrap_or_default();
        let fixed = view::Fixed {
            id,
            workspace: wanted.workspace,
            profile,
            route: json!({ "provider": Provider::Scripted, "model": null, "endpoint": null, "tools": TOOLS }),
            network: match profile {
                Profile::ReadOnly | Profile::WorkspaceWrite => context.manifest.command_network,
                Profile::FullAccess => Network::Host,
            },
            tool_uid: context.tool_uid,
            isolation: context.isolation(profile),
            created: now,
        };
        Ok(SessionRow {
            id,
            kind: session::Kind::Worker,
            workspace: wanted.workspace,
            document: view::made(&fixed),
            created: now,
        })
    }

    fn creation(
        &self,
        row: &SessionRow,
        wanted: Wanted,
        script: Vec<u8>,
        fingerprint: Digest,
        who: &Who,
    ) -> Result<Transaction, Refusal> {
        let document = &row.document;
        let data = json!({
            "kind": row.kind, "route": document.get("route"), "workspace": row.workspace,
            "profile": document.get("profile"), "network": document.get("network"), "in_place": true,
            "manifest": self.context.manifest_digest, "tool_uid": self.context.tool_uid,
            "isolation": document.get("isolation"), "task": wanted.task,
            "script": { "bytes": script.len(), "sha256": Digest::of(&script) }, "by": who.to_value(),
        });
        let event = Draft::new(Kind::SessionCreated, Some(row.id), data).map_err(Refusal::journal)?;
        let brief = BriefRow { session: row.id, task: wanted.task, script: Some(script) };
        let mut changes = vec![Change::PutSession(row.clone()), Change::PutBrief(brief)];
        changes.extend(wanted.request_id.map(|request_id| Change::RememberRequest {
            request_id,
            fingerprint,
            subject: row.id.to_string(),
        }));
        Ok(Transaction { changes, events: vec![event] })
    }

    /// Says something to a session's agent. It is told when it asks for it.
    pub async fn say(
        &self,
        id: SessionId,
        text: String,
        request_id: Option<String>,
        who: &Who,
    ) -> Result<Value, Refusal> {
        bounded("text", &text, MAX_TEXT_BYTES)?;
        let content = Digest::of(json!(["message", id, text]).to_string().as_bytes());
        if let Some(known) = self.known_request(request_id.as_deref()).await? {
            if known.fingerprint != content {
                return Err(crate::operation::request_id_reused());
            }
            return self.session_value(self.session_row(id).await?).await;
        }
        let request = request_id.map(|id| (id, content));
        match self.sessions.message(id, text, who, request).await {
            Some(told) => told?,
            None => return Err(self.not_live(id).await),
        }
        self.session_value(self.session_row(id).await?).await
    }

    /// Ends a session, and what runs in it before.
    pub async fn cancel_session(&self, id: SessionId, who: &Who) -> Result<Value, Refusal> {
        match self.sessions.cancel(id, who, CANCEL_TAKES).await {
            Some(told) => told?,
            None => return Err(self.not_live(id).await),
        }
        let mut value = self.session_value(self.session_row(id).await?).await?;
        if let Some(map) = value.as_object_mut() {
            let notice = "what was dispatched may have taken effect; effects outside the workspace are not undone";
            map.insert("notice".into(), notice.into());
        }
        Ok(value)
    }

    /// Takes a person's word on an operation of which nobody knows the end.
    pub async fn reconcile(
        &self,
        id: SessionId,
        operation: OperationId,
        verdict: session::Verdict,
        comment: Option<String>,
        who: &Who,
    ) -> Result<Value, Refusal> {
        if let Some(comment) = &comment {
            bounded("comment", comment, MOST_COMMENT)?;
        }
        self.session_row(id).await?;
        let row = self.operation_row(operation).await?;
        if row.session != id {
            return Err(Refusal::not_found("operation of this session", operation));
        }
        if row.state != State::Unknown {
            return Err(Refusal::new(
                "not-unknown",
                409,
                format!("{operation} is {}: only what is unknown is reconciled", row.state),
                "`salaam operation show` says what it came to",
            ));
        }
        if row.reconciled.is_some() {
            return Err(Refusal::new(
                "already-reconciled",
                409,
                format!("somebody has said what became of {operation}"),
                "`salaam operation show` says what",
            ));
        }
        let word = json!({ "verdict": verdict, "comment": comment, "by": who.to_value() });
        match self.sessions.reconcile(id, operation, word.clone()).await {
            Some(told) => told?,
            // Nobody owns the session: it is an operator's, or over.
            None => {
                let event = crate::session::reconciled(&row, &word).map_err(Refusal::journal)?;
                self.commit(vec![Change::Reconcile { id: operation, word }], vec![event]).await?;
            }
        }
        self.session_value(self.session_row(id).await?).await
    }

    pub(super) async fn session_row(&self, id: SessionId) -> Result<SessionRow, Refusal> {
        let row = self.context.store.session(id).await.map_err(Refusal::journal)?;
        row.ok_or_else(|| Refusal::not_found("session", id))
    }

    async fn session_value(&self, row: SessionRow) -> Result<Value, Refusal> {
        let asking = self.context.store.asking_sessions().await.map_err(Refusal::journal)?;
        let asks = asking.contains(&row.id);
        Ok(view::session(row, asks))
    }

    /// Why a session takes no orders.
    async fn not_live(&self, id: SessionId) -> Refusal {
        match self.session_row(id).await {
            Err(refusal) => refusal,
            Ok(row) if view::is_over(&row.document) => Refusal::new(
                "session-over",
                409,
                format!("the session {id} is over"),
                "make another one: `salaam session create`",
            ),
            Ok(row) => match row.kind {
                session::Kind::Operator => Refusal::new(
                    "operator-session",
                    409,
                    format!("{id} is the operators' own session: there is no agent in it"),
                    "`salaam operation cancel` ends one of its operations",
                ),
                session::Kind::Worker => crate::operation::stopping(),
            },
        }
    }
}

/// What can be checked of a wanted session without the host.
fn checked(wanted: &Wanted) -> Result<Vec<u8>, Refusal> {
    let bad = |message: String, fix: &str| Err(Refusal::new("bad-request", 400, message, fix));
    if !wanted.in_place {
        return Err(Refusal::new(
            "in-place-only",
            400,
            "a session works in the workspace itself for now: copies of workspaces are not there",
            "say so: --in-place (\"in_place\": true); every approval then says it too",
        ));
    }
    if wanted.provider.parse::<Provider>().is_err() {
        let known: Vec<_> = Provider::ALL.iter().map(|provider| provider.as_str()).collect();
        return Err(Refusal::new(
            "unknown-provider",
            400,
            format!("there is no provider `{}`", salaam_core::show::line(wanted.provider.as_bytes())),
            format!("those there are: {}", known.join(", ")),
        ));
    }
    bounded("task", &wanted.task, MAX_TASK_BYTES)?;
    match &wanted.script {
        Some(script) if script.len() > MAX_SCRIPT_BYTES => {
            bad(format!("script: {} bytes; {MAX_SCRIPT_BYTES} is the most", script.len()), "split it")
        }
        Some(script) => Ok(script.clone()),
        None => bad("script: the scripted provider needs one".to_owned(), "--script FILE"),
    }
}

fn bounded(field: &str, text: &str, most: usize) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > most {
        return Err(Refusal::new(
            "bad-request",
            400,
            format!("{field}: has {} bytes; it must have from 1 to {most}", text.len()),
            "say something, and not more than that",
        ));
    }
    Ok(())
}

fn fingerprint(wanted: &Wanted) -> Digest {
    let script = wanted.script.as_deref().map(Digest::of);
    let whole = json!(["session", wanted.workspace, wanted.task, wanted.provider, script, wanted.profile]);
    Digest::of(whole.to_string().as_bytes())
}
