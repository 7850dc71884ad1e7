//! Edits over the bridge of the real executor: honest ones, impossible ones, and one whose executor dies.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use salaam_core::{
    bridge::{EditPlan, FilesRead, ReadFiles, Settle, Settled},
    edit::{self, Change, Expected, Image},
};
use tokio_stream::StreamExt as _;

use super::*;

/// More than one message carries; hashing is slow in a build for debugging.
const LARGE: usize = 5 << 20;
/// Longer than that takes where much else runs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A workspace of the account that the test runs as.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("salaam-hostile-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.0.join(name), content).unwrap();
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }

    async fn open(&self, client: &mut ExecutorClient<Channel>) {
        let path = self.0.as_os_str().as_encoded_bytes().to_vec().into();
        client.open_workspace(wire::OpenWorkspaceRequest { workspace: workspace().to_string(), path }).await.unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn workspace() -> WorkspaceId {
    WorkspaceId::new(1, [1; 10])
}

fn edit_plan(number: u8, before: &[(&str, &[u8])], changes: &[Change]) -> EditPlan {
    let image = |content: &[u8]| Some(Image { content: content.to_vec(), mode: 0o644 });
    let mut images: std::collections::BTreeMap<_, _> =
        edit::paths(changes).unwrap().into_iter().map(|path| (path, None)).collect();
    images.extend(before.iter().map(|(path, content)| (path.as_bytes().to_vec(), image(content))));
    EditPlan {
        operation: OperationId::new(1, [number; 10]),
        epoch: 7,
        workspace: workspace(),
        changes: changes.to_vec(),
        expected: edit::expected(&edit::apply(changes, &images).unwrap()),
        protected_paths: vec![],
        directories: vec![],
    }
}

fn settle_of(plan: &EditPlan, epoch: u64) -> wire::SettleRequest {
    Settle {
        operation: plan.operation,
        epoch,
        workspace: plan.workspace,
        expected: plan.expected.clone(),
        directories: vec![],
    }
    .into()
}

fn parts(plan: EditPlan) -> Vec<wire::Part> {
    salaam_proto::parted(&wire::EditPlan::from(plan)).unwrap()
}

async fn edit_with(client: &mut ExecutorClient<Channel>, parts: Vec<wire::Part>) -> Result<wire::EditReply, Status> {
    let answer = client.edit(tokio_stream::iter(parts).chain(tokio_stream::pending()));
    tokio::time::timeout(PATIENCE, answer).await.unwrap().map(tonic::Response::into_inner)
}

fn id(status: &Status) -> String {
    salaam_proto::refusal_of(status.details()).unwrap().id
}

fn replace(path: &str, old: &[u8], new: &[u8]) -> Change {
    Change::Replace { path: path.into(), old: old.to_vec(), new: new.to_vec(), all: false }
}

#[test]
fn an_honest_edit_is_applied_once_and_large_files_cross() {
    unprivileged("edits::an_honest_edit_is_applied_once_and_large_files_cross", || {
        let place = Place::new("honest");
        let large = [vec![b'x'; LARGE - 1], vec![b'1']].concat();
        place.put("large", &large);
        let mut toolsd = Toolsd::shaken();
        runtime().block_on(async {
            let mut client = toolsd.client().await;
            client.hello(greeting()).await.unwrap();
            place.open(&mut client).await;
            let asked = ReadFiles {
                workspace: workspace(),
                paths: vec![b"large".to_vec(), b"none".to_vec()],
                protected_paths: Vec::new(),
            };
            let mut stream = client.read_files(wire::ReadFilesRequest::from(asked)).await.unwrap().into_inner();
            let mut joined = salaam_proto::Parts::new();
            while let Some(part) = stream.message().await.unwrap() {
                joined.push(&part).unwrap();
            }
            let read: FilesRead = joined.value::<wire::FilesRead, FilesRead>().unwrap();
            assert!(read.files[0].1.as_ref().is_some_and(|image| image.content == large && image.mode == 0o644));
            assert_eq!(read.files[1].1, None);
            drop(stream);

            let content = vec![b'y'; LARGE];
            let changes = [replace("large", b"x1", b"x2"), Change::Create { path: b"d/new".to_vec(), content }];
            let plan = edit_plan(1, &[("large", &large)], &changes);
            let reply = edit_with(&mut client, parts(plan.clone())).await.unwrap();
            assert_eq!((reply.files.len(), reply.made.len()), (2, 1));
            assert_eq!(fs::read(place.0.join("large")).unwrap().last(), Some(&b'2'));
            let again = edit_with(&mut client, parts(plan.clone())).await.unwrap_err();
            assert_eq!(id(&again), "operation-repeated");
            let settled = client.settle(settle_of(&plan, 7)).await.unwrap().into_inner();
            assert!(matches!(Settled::try_from(settled).unwrap(), Settled::Finished(_)));
            let elsewhere = EditPlan { workspace: WorkspaceId::new(1, [2; 10]), ..plan };
            assert_eq!(id(&edit_with(&mut client, parts(elsewhere)).await.unwrap_err()), "workspace-unknown");
        });
        assert_eq!(toolsd.end().0, Some(0));
    });
}

#[test]
fn impossible_edits_close_the_bridge_and_touch_nothing() {
    unprivileged("edits::impossible_edits_close_the_bridge_and_touch_nothing", || {
        let place = Place::new("impossible");
        place.put("a", b"1");
        let good = edit_plan(1, &[("a", b"1")], &[replace("a", b"1", b"2")]);
        let wire_plan = || wire::EditPlan::from(good.clone());
        let of = |plan: wire::EditPlan| salaam_proto::parted(&plan).unwrap();
        let expected = |change: &dyn Fn(&mut wire::Expected)| {
            let mut plan = wire_plan();
            change(&mut plan.expected[0]);
            of(plan)
        };
        let part = |bytes: Vec<u8>, last| vec![wire::Part { bytes: bytes.into(), last }];
        let twice = wire::EditPlan { expected: vec![wire_plan().expected[0].clone(); 2], ..wire_plan() };
        let cases: Vec<(&str, Vec<wire::Part>)> = vec![
            ("another epoch", of(wire::EditPlan { epoch: 8, ..wire_plan() })),
            ("no epoch", of(wire::EditPlan { epoch: 0, ..wire_plan() })),
            ("no changes", of(wire::EditPlan { changes: vec![], ..wire_plan() })),
            ("nothing expected", of(wire::EditPlan { expected: vec![], ..wire_plan() })),
            ("a file twice", of(twice)),
            ("a path upwards", expected(&|file| file.path = b"../a".to_vec().into())),
            ("a setuid mode", expected(&|file| file.post.as_mut().unwrap().mode = 0o4755)),
            ("no change", expected(&|file| file.post = file.pre.clone())),
            ("an absolute directory", of(wire::EditPlan { directories: vec![b"/etc".to_vec().into()], ..wire_plan() })),
            ("a long part", part(vec![0; CHUNK_BYTES + 1], true)),
            ("an empty part", part(vec![], false)),
            ("garbage", part(vec![0xff; 100], true)),
        ];
        for (what, parts) in cases {
            let mut toolsd = Toolsd::shaken();
            runtime().block_on(async {
                let mut client = toolsd.client().await;
                client.hello(greeting()).await.unwrap();
                place.open(&mut client).await;
                assert!(edit_with(&mut client, parts).await.is_err(), "{what}");
            });
            toolsd.closed_as_impossible(what);
            assert_eq!(fs::read(place.0.join("a")).unwrap(), b"1", "{what}");
        }
        let mut early = Toolsd::shaken();
        runtime().block_on(async {
            let mut client = early.client().await;
            assert!(edit_with(&mut client, parts(good.clone())).await.is_err());
        });
        early.closed_as_impossible("an edit before Hello");
        let mut late = Toolsd::shaken();
        runtime().block_on(async {
            let mut client = late.client().await;
            client.hello(greeting()).await.unwrap();
            place.open(&mut client).await;
            assert!(client.settle(settle_of(&good, 6)).await.is_err());
        });
        late.closed_as_impossible("a settling of another epoch");
    });
}

#[test]
fn the_next_executor_settles_what_a_killed_one_left() {
    unprivileged("edits::the_next_executor_settles_what_a_killed_one_left", || {
        let names: Vec<String> = (0..40).map(|number| format!("f{number:02}")).collect();
        let changes: Vec<Change> = names.iter().map(|name| replace(name, b"1", b"2")).collect();
        let before: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"1".as_slice())).collect();
        let plan = edit_plan(1, &before, &changes);
        let mut ends = [0, 0];
        for round in 0..12u64 {
            let place = Place::new("killed");
            for name in &names {
                place.put(name, b"1");
            }
            let mut toolsd = Toolsd::shaken();
            let pid = nix::unistd::Pid::from_raw(i32::try_from(toolsd.child.id()).unwrap());
            runtime().block_on(async {
                let mut client = toolsd.client().await;
                client.hello(greeting()).await.unwrap();
                place.open(&mut client).await;
                let kill = async {
                    tokio::time::sleep(Duration::from_micros(round * 1500)).await;
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
                };
                let (_, _) = tokio::join!(edit_with(&mut client, parts(plan.clone())), kill);
            });
            toolsd.child.wait().unwrap();
            let mut next = Toolsd::shaken();
            let settled = runtime().block_on(async {
                let mut client = next.client().await;
                client.hello(greeting()).await.unwrap();
                place.open(&mut client).await;
                client.settle(settle_of(&plan, 7)).await.unwrap().into_inner()
            });
            let all = |text: &[u8]| names.iter().all(|name| fs::read(place.0.join(name)).unwrap() == text);
            match Settled::try_from(settled).unwrap() {
                Settled::RolledBack => {
                    assert!(all(b"1"), "round {round}");
                    ends[0] += 1;
                }
                Settled::Finished(edited) => {
                    let same = |(file, expected): (&edit::EditedFile, &Expected)| file.path == expected.path;
                    assert!(all(b"2") && edited.files.iter().zip(&plan.expected).all(same), "round {round}");
                    ends[1] += 1;
                }
                Settled::Undecided { evidence } => panic!("round {round}: {evidence}"),
            }
            assert_eq!(fs::read_dir(&place.0).unwrap().count(), names.len(), "round {round}");
            assert_eq!(next.end().0, Some(0));
        }
        println!("taken back {}, finished {}", ends[0], ends[1]);
    });
}
