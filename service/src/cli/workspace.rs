//! `salaam workspace …`, and which workspace a caller means.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use salaam_core::{canon, show};
use serde_json::{Value, json};

use super::{
    args::WorkspaceVerb,
    client::{Client, rows},
    terminal::{Out, at},
    trouble::Trouble,
};

/// Carries out one verb.
pub(super) async fn run(verb: WorkspaceVerb, client: &Client, out: Out) -> Result<(), Trouble> {
    match verb {
        WorkspaceVerb::Add { dir, name } => {
            // The service's current directory is not the caller's; links are the service's to resolve.
            let path = std::path::absolute(&dir).map_err(local("finding", &dir))?;
            let mut body = json!({ "path": canon::bytes(path.as_os_str().as_bytes()) });
            if let (Some(name), Some(map)) = (name, body.as_object_mut()) {
                map.insert("name".into(), name.into());
            }
            let added = client.post("/v1/workspaces", &body).await?;
            out.result(&added, |row| format!("added {} {} {}", id(row), at(row, "/name"), at(row, "/path")))
        }
        WorkspaceVerb::List => out.listing(
            &list(client).await?,
            &["WORKSPACE", "NAME", "PATH"],
            |row| vec![id(row), at(row, "/name"), at(row, "/path")],
            "no workspace is registered; salaam workspace add DIR",
        ),
        WorkspaceVerb::Show { workspace } => {
            let row = meant(client, workspace.as_deref()).await?;
            let whole = client.fetch(&format!("/v1/workspaces/{}", id(&row))).await?;
            out.result(&whole, super::terminal::fields)
        }
        WorkspaceVerb::Remove { workspace } => {
            let id = id(&meant(client, Some(&workspace)).await?);
            let removed = client.delete(&format!("/v1/workspaces/{id}")).await?;
            let removed = if removed.is_null() { json!({ "workspace": id }) } else { removed };
            out.result(&removed, |_| format!("removed {id}; its files are as they were"))
        }
    }
}

/// The row of the workspace that is meant: by id, name or path, or the one around the current directory.
pub(super) async fn meant(client: &Client, given: Option<&OsStr>) -> Result<Value, Trouble> {
    let rows = list(client).await?;
    let found = match given {
        Some(given) => named(&rows, given),
        None => {
            let here = env::current_dir().map_err(local("finding", Path::new(".")))?;
            around(&rows, &here)
        }
    };
    found.cloned().ok_or_else(|| {
        let what = match given {
            Some(given) => format!("no workspace has the id, name or path {}", show::line(given.as_bytes())),
            None => "no registered workspace is around the current directory".into(),
        };
        Trouble::refused("not-found", what, "salaam workspace list shows them; salaam workspace add DIR adds one")
    })
}

/// The id in a row.
pub(super) fn id(row: &Value) -> String {
    at(row, "/workspace")
}

async fn list(client: &Client) -> Result<Vec<Value>, Trouble> {
    rows(client.fetch("/v1/workspaces").await?, "workspaces")
}

fn named<'a>(rows: &'a [Value], given: &OsStr) -> Option<&'a Value> {
    let text = |row: &Value, key| row.get(key).and_then(Value::as_str).map(OsString::from);
    let by = |key| rows.iter().find(|row| text(row, key).as_deref() == Some(given));
    by("workspace").or_else(|| by("name")).or_else(|| {
        let real = fs::canonicalize(given).ok()?;
        rows.iter().find(|row| path(row).as_ref() == Some(&real))
    })
}

/// The innermost workspace that holds `here`.
fn around<'a>(rows: &'a [Value], here: &Path) -> Option<&'a Value> {
    let holding = rows.iter().filter_map(|row| Some((path(row)?, row))).filter(|(root, _)| here.starts_with(root));
    holding.max_by_key(|(root, _)| root.components().count()).map(|(_, row)| row)
}

fn path(row: &Value) -> Option<PathBuf> {
    canon::to_bytes(row.get("path")?).map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes)))
}

fn local(attempted: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Trouble {
    let path = path.to_owned();
    move |source| Trouble::Local { attempted, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_found_by_id_name_path_and_from_inside() {
        let rows = [
            json!({"workspace": "ws_1", "name": "one", "path": "/srv/a"}),
            json!({"workspace": "ws_2", "name": "two", "path": {"base64": "L3Nydi//"}}),
            json!({"workspace": "ws_3", "name": "three", "path": "/tmp"}),
        ];
        let found = |given: &str| named(&rows, OsStr::new(given)).map(id);
        assert_eq!(found("ws_2").unwrap(), "ws_2");
        assert_eq!(found("one").unwrap(), "ws_1");
        assert_eq!(found("/tmp/../tmp").unwrap(), "ws_3");
        assert_eq!(found("four"), None);
        let inside = |path: &[u8]| around(&rows, Path::new(OsStr::from_bytes(path))).map(id);
        assert_eq!(inside(b"/srv/a/b/c").unwrap(), "ws_1");
        assert_eq!(inside(b"/srv/\xff/x").unwrap(), "ws_2");
        assert_eq!(inside(b"/srv/ab"), None);
    }
}
