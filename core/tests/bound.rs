//! What an approval of an edit or an undo binds, against golden forms that another implementation made.

use salaam_core::{
    bound::{Arguments, Bound, BoundFile, WorkspaceIdentity},
    canon,
    digest::Digest,
    edit::{Change, Expected, Image, Named, Stamp},
    id::{OperationId, WorkspaceId},
    limits::Limits,
    operation::Kind,
    policy::{Isolation, Network, Policy, Profile},
    time::Timestamp,
};
use serde_json::Value;

fn golden(name: &str) -> (String, String) {
    let lines = include_str!("vectors.jsonl").lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let vector = lines.into_iter().find(|vector| vector.get("name").is_some_and(|found| found == name));
    let text = |key: &str| -> String {
        vector.as_ref().and_then(|vector| vector.get(key)).and_then(Value::as_str).unwrap_or_default().into()
    };
    (text("canonical"), text("sha256"))
}

fn stamp(content: &[u8], mode: u32) -> Option<Stamp> {
    Some(Image { content: content.to_vec(), mode }.stamp())
}

fn file(path: &[u8], pre: Option<Stamp>, post: Option<Stamp>) -> Expected {
    Expected { path: path.to_vec(), pre, post }
}

fn files() -> Vec<Expected> {
    vec![
        file(b"a.rs", stamp(b"one\n", 0o644), stamp("zwei \u{fc}\n".as_bytes(), 0o644)),
        file(b"caf\xe9", stamp(b"x", 0o600), None),
        file(b"d", stamp(b"d", 0o664), None),
        file(b"e", None, stamp(b"d", 0o664)),
        file(b"f.sh", stamp(b"#!", 0o644), stamp(b"#!", 0o755)),
        file(b"n/b", None, stamp(b"", 0o664)),
    ]
}

fn bound(kind: Kind, operation: OperationId, arguments: Arguments, files: &[Expected], worker_epoch: u64) -> Bound {
    Bound {
        operation,
        kind,
        workspace: WorkspaceIdentity {
            id: WorkspaceId::new(1, [2; 10]),
            path: b"/srv/x".to_vec(),
            device: 2049,
            inode: u64::MAX,
            handle: "0102".into(),
        },
        arguments,
        files: BoundFile::before(b"/srv/x", files),
        policy: Policy {
            manifest: Digest::ZERO,
            profile: Profile::WorkspaceWrite,
            isolation: Isolation::ToolsUserBubblewrap,
            network: Network::None,
            limits: Limits::default(),
            control_group: Vec::new(),
        },
        worker_epoch,
        expires: Timestamp::from_micros(0),
    }
}

fn edit() -> Bound {
    let changes = [
        Change::Replace { path: b"a.rs".to_vec(), old: b"one".to_vec(), new: "zwei \u{fc}".into(), all: false },
        Change::Create { path: b"n/b".to_vec(), content: Vec::new() },
        Change::Delete { path: b"caf\xe9".to_vec() },
        Change::Rename { path: b"d".to_vec(), to: b"e".to_vec() },
        Change::Mode { path: b"f.sh".to_vec(), mode: 0o755 },
    ];
    let arguments = Arguments::Edit {
        changes: changes.iter().map(Change::named).collect(),
        files: files(),
        diff: Digest::of(b"shown"),
    };
    bound(Kind::Edit, OperationId::new(1, [1; 10]), arguments, &files(), 3)
}

fn undo() -> Bound {
    let back: Vec<Expected> = files().into_iter().map(|f| file(&f.path, f.post, f.pre)).collect();
    let arguments = Arguments::Undo {
        operation: OperationId::new(1, [1; 10]),
        files: back.clone(),
        diff: Digest::of(b"shown back"),
    };
    bound(Kind::Undo, OperationId::new(2, [3; 10]), arguments, &back, 0)
}

#[test]
fn edit_and_undo_have_the_golden_form_and_binding() {
    for (name, bound) in [("bound edit", edit()), ("bound undo", undo())] {
        let (canonical, sha256) = golden(name);
        let ours = canon::to_vec(&bound.to_value().unwrap()).unwrap();
        assert_eq!(String::from_utf8(ours).unwrap(), canonical, "{name}");
        assert_eq!(bound.binding().unwrap().to_string(), sha256, "{name}");
    }
}

#[test]
fn one_byte_of_a_change_a_mode_or_what_was_shown_makes_another_binding() {
    type Spoil = fn(&mut Vec<Named>, &mut Vec<Expected>, &mut Digest);
    let spoil: &[Spoil] = &[
        |changes, _, _| drop(changes.pop()),
        |changes, _, _| changes.swap(0, 1),
        |changes, _, _| {
            changes[0] =
                Change::Replace { path: b"a.rs".to_vec(), old: b"one".to_vec(), new: b"z".to_vec(), all: false }
                    .named();
        },
        |changes, _, _| {
            let new = "zwei \u{fc}".into();
            changes[0] = Change::Replace { path: b"a.rs".to_vec(), old: b"one".to_vec(), new, all: true }.named();
        },
        |_, files, _| files[4].post = files[4].pre,
        |_, files, _| files[0].pre.as_mut().unwrap().mode = 0o640,
        |_, files, _| files[3].pre = files[3].post,
        |_, _, diff| *diff = Digest::of(b"shown "),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut other = edit();
        if let Arguments::Edit { changes, files, diff } = &mut other.arguments {
            spoil(changes, files, diff);
        }
        assert_ne!(other.binding(), edit().binding(), "{index}");
        assert_eq!(edit().changed(&other), ["arguments"], "{index}");
    }
    let mut moved_on = edit();
    moved_on.files[0].sha256 = Digest::of(b"something else");
    assert_eq!(edit().changed(&moved_on), ["files"]);
    assert_ne!(moved_on.binding(), edit().binding());
}

#[test]
fn a_file_that_must_not_be_there_is_bound_as_absent() {
    let absent: Vec<Vec<u8>> =
        edit().files.into_iter().filter(|file| file.sha256 == BoundFile::ABSENT).map(|file| file.path).collect();
    assert_eq!(absent, [b"/srv/x/e".to_vec(), b"/srv/x/n/b".to_vec()]);
}
