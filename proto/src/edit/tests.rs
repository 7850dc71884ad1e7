//! Edits there and back, and one over each bound.

use salaam_core::{
    edit::Method,
    id::{OperationId, WorkspaceId},
};

use super::*;
use crate::{MAX_PATH_BYTES, tests::round};

fn path(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn stamp(content: &[u8]) -> Option<Stamp> {
    Some(Image { content: content.to_vec(), mode: 0o644 }.stamp())
}

fn expected_files() -> Vec<Expected> {
    vec![
        Expected { path: path("a"), pre: stamp(b"x"), post: stamp(b"y") },
        Expected { path: path("b"), pre: None, post: stamp(b"") },
        Expected { path: b"c/\xff".to_vec(), pre: stamp(b"z"), post: None },
    ]
}

fn plan() -> EditPlan {
    EditPlan {
        operation: OperationId::new(1, [1; 10]),
        epoch: 3,
        workspace: WorkspaceId::new(1, [2; 10]),
        changes: vec![
            Change::Replace { path: path("a"), old: b"x".to_vec(), new: b"y\xff".to_vec(), all: true },
            Change::Create { path: path("b"), content: Vec::new() },
            Change::Delete { path: b"c/\xff".to_vec() },
            Change::Rename { path: path("d"), to: path("e") },
            Change::Mode { path: path("f"), mode: 0o777 },
            Change::Write { path: path("g"), content: b"all".to_vec(), mode: 0 },
        ],
        expected: expected_files(),
        protected_paths: vec![path(".env")],
        directories: vec![path("c"), path("d/e")],
    }
}

fn settle() -> Settle {
    let EditPlan { operation, epoch, workspace, expected, directories, .. } = plan();
    Settle { operation, epoch, workspace, expected, directories }
}

fn edited() -> Edited {
    let method = [Method::Exchange, Method::Create, Method::Delete];
    let file =
        |(file, method): (Expected, Method)| EditedFile { path: file.path, pre: file.pre, post: file.post, method };
    Edited { files: expected_files().into_iter().zip(method).map(file).collect(), made: vec![path("n"), path("n/m")] }
}

#[test]
fn every_value_comes_back_as_it_went() {
    round::<_, wire::EditPlan>(plan());
    round::<_, wire::EditReply>(edited());
    round::<_, wire::SettleRequest>(settle());
    round::<_, wire::SettleReply>(Settled::Finished(edited()));
    round::<_, wire::SettleReply>(Settled::RolledBack);
    round::<_, wire::SettleReply>(Settled::Undecided { evidence: "a moved on".into() });
    let paths = vec![path("a"), path("b/c")];
    let read = ReadFiles { workspace: plan().workspace, paths, protected_paths: vec![path("keys")] };
    round::<_, wire::ReadFilesRequest>(read);
    let image = Image { content: vec![0; MAX_FILE_BYTES], mode: 0o640 };
    round::<_, wire::FilesRead>(FilesRead { files: vec![(path("a"), None), (path("b"), Some(image))] });
}

#[test]
fn an_empty_message_never_means_allow() {
    let missing = |field| WireError::Missing { field };
    assert_eq!(EditPlan::try_from(wire::EditPlan::default()), Err(missing("changes")));
    assert_eq!(Settle::try_from(wire::SettleRequest::default()), Err(missing("operation")));
    assert_eq!(Settled::try_from(wire::SettleReply::default()), Err(missing("settled")));
    assert_eq!(Edited::try_from(wire::EditReply::default()), Err(missing("files")));
    assert_eq!(ReadFiles::try_from(wire::ReadFilesRequest::default()), Err(missing("paths")));
    assert!(Change::try_from(wire::Change::default()).is_err());
    assert!(Expected::try_from(wire::Expected::default()).is_err());
    assert!(Stamp::try_from(wire::Stamp::default()).is_err());
}

#[test]
fn a_plan_with_any_one_field_taken_away_or_spoilt_is_refused() {
    use wire::change::Change as Form;
    type Spoil = (&'static str, fn(&mut wire::EditPlan));
    let spoil: &[Spoil] = &[
        ("operation", |p| p.operation.clear()),
        ("operation of another noun", |p| p.operation = p.operation.replace("op_", "ws_")),
        ("epoch", |p| p.epoch = 0),
        ("workspace", |p| p.workspace.clear()),
        ("no changes", |p| p.changes.clear()),
        ("many changes", |p| p.changes = vec![p.changes[2].clone(); MAX_CHANGES + 1]),
        ("change without a form", |p| p.changes[0].change = None),
        ("absolute path", |p| p.changes[0].path = b"/a".to_vec().into()),
        ("path out", |p| p.changes[0].path = b"a/../../b".to_vec().into()),
        ("empty path", |p| p.changes[0].path = Vec::new().into()),
        ("path with NUL", |p| p.changes[0].path = b"a\0".to_vec().into()),
        ("long path", |p| p.changes[0].path = vec![b'a'; MAX_PATH_BYTES + 1].into()),
        ("new name out", |p| p.changes[3].change = Some(Form::Rename(wire::Rename { to: b"../e".to_vec().into() }))),
        ("mode above 0777", |p| p.changes[4].change = Some(Form::Mode(wire::Mode { mode: 0o1000 }))),
        ("written mode above 0777", |p| {
            p.changes[5].change = Some(Form::Write(wire::Image { content: Vec::new().into(), mode: 0o4755 }));
        }),
        ("large content", |p| {
            let content = vec![0; MAX_FILE_BYTES + 1].into();
            p.changes[1].change = Some(Form::Create(wire::Create { content }));
        }),
        ("large old", |p| {
            let old = vec![0; MAX_FILE_BYTES + 1].into();
            p.changes[0].change = Some(Form::Replace(wire::Replace { old, new: Vec::new().into(), all: false }));
        }),
        ("large together", |p| {
            let content = wire::Create { content: vec![0; MAX_EDIT_BYTES / 2].into() };
            p.changes = vec![wire::Change { path: b"n".to_vec().into(), change: Some(Form::Create(content)) }; 3];
        }),
        ("nothing expected", |p| p.expected.clear()),
        ("too much expected", |p| p.expected = vec![p.expected[0].clone(); MAX_FILES + 1]),
        ("expected twice", |p| p.expected = vec![p.expected[0].clone(), p.expected[0].clone()]),
        ("expected out of order", |p| p.expected.reverse()),
        ("no change expected", |p| p.expected[0].post = p.expected[0].pre.clone()),
        ("short digest", |p| p.expected[0].pre.as_mut().unwrap().sha256 = vec![0; 31].into()),
        ("large file expected", |p| p.expected[0].pre.as_mut().unwrap().bytes = MAX_FILE_BYTES as u64 + 1),
        ("mode expected above 0777", |p| p.expected[0].post.as_mut().unwrap().mode = 0o2755),
        ("protected path out", |p| p.protected_paths = vec![b"..".to_vec().into()]),
        ("directory out", |p| p.directories = vec![b"../a".to_vec().into()]),
        ("directory twice", |p| p.directories = vec![b"a".to_vec().into(); 2]),
        ("many directories", |p| {
            p.directories = (0..=MAX_EDIT_DIRECTORIES).map(|n| format!("d{n:04}").into_bytes().into()).collect();
        }),
        ("many protected paths", |p| p.protected_paths = vec![b"a".to_vec().into(); 1025]),
    ];
    assert!(EditPlan::try_from(wire::EditPlan::from(plan())).is_ok());
    for (what, spoil) in spoil {
        let mut wire = wire::EditPlan::from(plan());
        spoil(&mut wire);
        assert!(EditPlan::try_from(wire).is_err(), "{what}");
    }
}

#[test]
fn hostile_requests_and_answers_are_refused() {
    let read = |paths: Vec<Vec<u8>>| {
        let protected_paths = Vec::new();
        ReadFiles::try_from(wire::ReadFilesRequest::from(ReadFiles {
            workspace: plan().workspace,
            paths,
            protected_paths,
        }))
    };
    assert!(read(vec![path("a"), path("a")]).is_err() && read(vec![path("b"), path("a")]).is_err());
    assert!(read((0..=MAX_FILES).map(|n| path(&format!("f{n:03}"))).collect()).is_err());
    let image = |size| Some(Image { content: vec![0; size], mode: 0 });
    let files = |files| FilesRead::try_from(wire::FilesRead::from(FilesRead { files }));
    assert!(files(vec![(path("a"), image(MAX_FILE_BYTES + 1))]).is_err());
    assert!(files(["a", "b", "c"].map(|name| (path(name), image(MAX_EDIT_BYTES / 2))).to_vec()).is_err());
    assert!(files((0..=MAX_FILES).map(|n| (path(&format!("f{n:03}")), None)).collect()).is_err());
    assert!(files(vec![(path("b"), None), (path("a"), None)]).is_err());
    let mut reply = wire::EditReply::from(edited());
    reply.files[0].method = "copy".into();
    assert!(Edited::try_from(reply).is_err());
    let mut reply = wire::EditReply::from(edited());
    reply.files.reverse();
    assert!(Edited::try_from(reply).is_err());
    let mut reply = wire::EditReply::from(edited());
    reply.files[1].file = None;
    assert!(Edited::try_from(reply).is_err());
    let mut request = wire::SettleRequest::from(settle());
    request.epoch = 0;
    assert!(Settle::try_from(request).is_err());
    let mut request = wire::SettleRequest::from(settle());
    request.expected.clear();
    assert!(Settle::try_from(request).is_err());
    let evidence = "e".repeat(MAX_SENTENCE_BYTES + 1);
    let form = wire::settle_reply::Settled::Undecided(wire::Undecided { evidence });
    assert!(Settled::try_from(wire::SettleReply { settled: Some(form) }).is_err());
}
