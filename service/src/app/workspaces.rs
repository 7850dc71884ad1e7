//! What operators do with workspaces: register, look, forget.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use salaam_core::{
    event::{Draft, Kind},
    id::WorkspaceId,
    session,
};
use serde_json::{Value, json};

use super::service::{App, OPEN};
use crate::{
    operation::{Refusal, Who, view},
    store::{Change, OperationQuery, SessionQuery, WorkspaceRow},
    workspace::{Place, Registry, judge_place},
};

/// Longest name of a workspace, in bytes: it is shown in tables.
const MOST_NAME: usize = 64;
/// Workspaces at the most: each holds a descriptor on both sides.
const MOST_WORKSPACES: usize = 256;

impl App {
    /// Every registered workspace.
    pub async fn workspaces(&self) -> Result<Vec<Value>, Refusal> {
        Ok(self.rows().await?.iter().map(view::workspace).collect())
    }

    /// One workspace.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Value, Refusal> {
        let rows = self.rows().await?;
        rows.iter().find(|row| row.id == id).map(view::workspace).ok_or_else(|| Refusal::not_found("workspace", id))
    }

    /// Registers the directory at `path`. Both sides open it and must see the same one.
    pub async fn add_workspace(&self, path: &[u8], name: Option<String>, who: &Who) -> Result<Value, Refusal> {
        let resolved = resolve(path)?;
        let rows = self.rows().await?;
        if let Some(known) = rows.iter().find(|row| Path::new(std::ffi::OsStr::from_bytes(&row.path)) == resolved) {
            return Ok(view::workspace(known));
        }
        if rows.len() >= MOST_WORKSPACES {
            return Err(Refusal::new(
                "too-many-workspaces",
                429,
                format!("{MOST_WORKSPACES} workspaces are registered"),
                "remove one: `salaam workspace remove`",
            ));
        }
        judge_place(&resolved, &self.place(&rows)).map_err(|e| {
            Refusal::new(
                "workspace-refused",
                400,
                e.to_string(),
                "choose a directory of its own for the project, for instance below /srv",
            )
        })?;
        let name = self.name(name, &resolved, &rows)?;
        let bytes = resolved.as_os_str().as_bytes();
        let unusable = |e: crate::workspace::WorkspaceError| crate::operation::workspace_refusal(&e);
        let (root, stat) = Registry::open_root(bytes).map_err(unusable)?;
        let now = self.context.clock.now();
        let random = self
            .context
            .clock
            .random()
            .map_err(|e| Refusal::new("no-randomness", 503, e.to_string(), "check getrandom(2) on this host"))?;
        let id = WorkspaceId::new(now.unix_millis(), random);
        let link = self.context.executor.link().map_err(|e| crate::operation::bridge_refusal(&e))?;
        let opened = link.open_workspace(id, bytes).await.map_err(|e| self.tools_cannot(&resolved, &e.to_string()))?;
        if (opened.device, opened.inode) != (stat.st_dev, stat.st_ino) {
            drop(link.close_workspace(id).await);
            return Err(Refusal::new(
                "workspace-replaced",
                409,
                "the executor sees another directory there than the service",
                "add it again while nothing moves it",
            ));
        }
        if !opened.writable {
            drop(link.close_workspace(id).await);
            return Err(self.tools_cannot(&resolved, "it cannot write there"));
        }
        let row = WorkspaceRow {
            id,
            name,
            path: bytes.to_vec(),
            device: opened.device,
            inode: opened.inode,
            handle: opened.handle,
            added: now,
        };
        let data = json!({ "workspace": id, "path": salaam_core::canon::bytes(bytes), "name": row.name, "by": who.to_value() });
        let event = Draft::new(Kind::WorkspaceAdded, None, data).map_err(Refusal::journal)?;
        self.commit(vec![Change::PutWorkspace(row.clone())], vec![event]).await?;
        self.context.workspaces.hold(row.clone(), root);
        Ok(view::workspace(&row))
    }

    /// Forgets a workspace; nothing in it is touched.
    pub async fn remove_workspace(&self, id: WorkspaceId, who: &Who) -> Result<Value, Refusal> {
        let rows = self.rows().await?;
        let row = rows.iter().find(|row| row.id == id).ok_or_else(|| Refusal::not_found("workspace", id))?;
        let open = self
            .context
            .store
            .operations(OperationQuery {
                states: OPEN.to_vec(),
                workspace: Some(id),
                limit: 1,
                ..OperationQuery::default()
            })
            .await
            .map_err(Refusal::journal)?;
        if let Some(operation) = open.first() {
            return Err(Refusal::new(
                "workspace-in-use",
                409,
                format!("{} is {} in it", operation.id, operation.state),
                format!("wait for it, or `salaam operation cancel {}`", operation.id),
            ));
        }
        let mut changes = vec![Change::RemoveWorkspace(id)];
        let mut events = Vec::new();
        let live = SessionQuery { workspace: Some(id), live: true, ..SessionQuery::default() };
        for session in self.context.store.sessions(live).await.map_err(Refusal::journal)? {
            match session.kind {
                session::Kind::Worker => {
                    return Err(Refusal::new(
                        "workspace-in-use",
                        409,
                        format!("the session {} works in it", session.id),
                        format!("wait for its end, or `salaam session cancel {}`", session.id),
                    ));
                }
                session::Kind::Operator => {}
            }
            let data = json!({ "outcome": session::Outcome::Completed, "reason": "its workspace was removed" });
            events.push(Draft::new(Kind::SessionEnded, Some(session.id), data).map_err(Refusal::journal)?);
            changes.push(Change::PutSession(view::ended(session)));
        }
        events.push(
            Draft::new(Kind::WorkspaceRemoved, None, json!({ "workspace": id, "by": who.to_value() }))
                .map_err(Refusal::journal)?,
        );
        self.commit(changes, events).await?;
        self.context.workspaces.forget(id);
        self.context.readers.forget(id).await;
        if let Ok(link) = self.context.executor.link() {
            drop(link.close_workspace(id).await);
        }
        Ok(view::workspace(row))
    }

    async fn rows(&self) -> Result<Vec<WorkspaceRow>, Refusal> {
        self.context.store.workspaces().await.map_err(Refusal::journal)
    }

    fn place(&self, rows: &[WorkspaceRow]) -> Place {
        let dirs = &self.host.dirs;
        let mut own = vec![dirs.config.clone(), dirs.state.clone(), dirs.runtime.clone(), dirs.libexec.clone()];
        own.extend(self.host.tools.iter().map(|account| account.home.clone()));
        Place {
            read_paths: self.context.manifest.local_sandbox_read_paths.iter().map(PathBuf::from).collect(),
            homes: crate::host::people_homes(),
            own,
            workspaces: rows.iter().map(|row| PathBuf::from(std::ffi::OsStr::from_bytes(&row.path))).collect(),
        }
    }

    fn name(&self, name: Option<String>, path: &Path, rows: &[WorkspaceRow]) -> Result<String, Refusal> {
        let given = name.is_some();
        let name = name.unwrap_or_else(|| {
            path.file_name().map(|name| salaam_core::show::line(name.as_bytes())).unwrap_or_default()
        });
        let plain = !name.is_empty()
            && name.len() <= MOST_NAME
            && name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
            && !name.starts_with("ws_");
        if given && !plain {
            return Err(Refusal::new(
                "bad-name",
                400,
                format!(
                    "`{}` is not a name: letters, digits, `.`, `_` and `-`, at most {MOST_NAME} bytes, not like an id",
                    salaam_core::show::line(name.as_bytes())
                ),
                "choose another: --name",
            ));
        }
        let taken = rows.iter().any(|row| row.name == name);
        match (plain && !taken, given) {
            (true, _) => Ok(name),
            (false, true) => Err(Refusal::new(
                "name-taken",
                409,
                format!("another workspace is called {name}"),
                "choose another: --name",
            )),
            (false, false) => Err(Refusal::new(
                "bad-name",
                409,
                "no name can be taken from the path, or it is taken",
                "give one: --name",
            )),
        }
    }

    fn tools_cannot(&self, path: &Path, why: &str) -> Refusal {
        let shown = salaam_core::show::line(path.as_os_str().as_bytes());
        let user = &self.context.manifest.tools_user;
        Refusal::new(
            "workspace-not-usable",
            409,
            format!("{user} cannot use {shown}: {why}"),
            format!("sudo salaam host setup --service-user {} --workspace {shown}", self.host.service_user),
        )
    }
}

/// An absolute path with all links resolved.
fn resolve(path: &[u8]) -> Result<PathBuf, Refusal> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let shown = salaam_core::show::line(path.as_os_str().as_bytes());
    if !path.is_absolute() {
        return Err(Refusal::new(
            "workspace-refused",
            400,
            format!("{shown} is not an absolute path"),
            "give the whole path",
        ));
    }
    path.canonicalize().map_err(|error| {
        let id =
            if error.kind() == std::io::ErrorKind::NotFound { "workspace-missing" } else { "workspace-unreachable" };
        Refusal::new(
            id,
            400,
            format!("{shown} cannot be opened: {error}"),
            "check the path, and that the service user may reach it",
        )
    })
}
