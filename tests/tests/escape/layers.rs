//! With one layer switched off, the attacks that only it stops work: the tests can fail.
//!
//! The walls are built here, with the executor's own parts, as the executor builds them, and one is left out. The
//! product has no switch for that.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::Arc,
    time::Instant,
};

use nix::{
    fcntl::{OFlag, open},
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::Mode,
        wait::waitpid,
    },
};
use salaam_core::limits::Limits;
use salaam_launch::{
    descriptor,
    plan::{Action, Keeper, Plan, Rules},
};
use salaam_tests::{Host, Pair, limit, ran::Ran};
use salaam_toolsd::sandbox::{self, Descriptors, Launch, Walls};

use crate::{
    attack::{Attack, Layer},
    attacks, mistaken,
    outside::{self, Outside},
    tight,
};

/// The layers that can be switched off one by one.
pub const SWITCHED: &[Layer] =
    &[Layer::Mounts, Layer::ReadOnly, Layer::Pid, Layer::Net, Layer::Ipc, Layer::Landlock, Layer::Seccomp, Layer::Scan];

const STATUS: i32 = descriptor::CGROUP + 1;

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

fn replaced(argv: Vec<CString>, old: &[&str], new: &[&str]) -> Vec<CString> {
    let words: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
    let old: Vec<&[u8]> = old.iter().map(|word| word.as_bytes()).collect();
    let at = words.windows(old.len()).position(|part| part == old).unwrap_or_else(|| panic!("no {old:?}"));
    let new = new.iter().map(|word| CString::new(*word).expect("no NUL"));
    argv[..at].iter().cloned().chain(new).chain(argv[at + old.len()..].iter().cloned()).collect()
}

/// Runs a program behind all walls but `off`.
fn behind(pair: &Pair, at: &Path, off: Option<Layer>, program: &str) -> Ran {
    let host = pair.host;
    let place = |path: &Path| open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).expect("it is there");
    let root = Arc::new(place(at));
    let launch = host.libexec().join("salaam-launch");
    let protected = match off {
        Some(Layer::ReadOnly) => Vec::new(),
        _ => sandbox::protected(root.as_fd(), at, &[], &[]).expect("it can be looked at").mounts,
    };
    let mut descriptors = Descriptors::from(STATUS + 1);
    let walls = Walls {
        workspace: at,
        root,
        writable: true,
        protected,
        read_paths: &[],
        hidden: &[],
        nothing: None,
        bound: Vec::new(),
        files: Vec::new(),
        launch: Launch::Place(Arc::new(place(&launch))),
        limits: &Limits::default(),
    };
    let argv = sandbox::walled(walls, STATUS, &mut descriptors).into_vec();
    let mut keeper = Keeper::Namespace;
    let argv = match off {
        Some(Layer::Mounts) => {
            let first = argv.iter().position(|word| word.as_bytes() == STATUS.to_string().as_bytes());
            let all = ["--dev-bind", "/", "/", "--proc", "/proc", "--"].map(|word| CString::new(word).expect("no NUL"));
            argv[..=first.expect("it has a status")].iter().cloned().chain(all).chain([text(&launch)]).collect()
        }
        Some(Layer::Pid) => {
            keeper = Keeper::Launch;
            // Of a namespace that is not one's own, proc(5) cannot be mounted anew.
            replaced(replaced(argv, &["--unshare-pid"], &[]), &["--proc", "/proc"], &["--bind", "/proc", "/proc"])
        }
        Some(Layer::Net) => replaced(argv, &["--unshare-net"], &[]),
        Some(Layer::Ipc) => replaced(argv, &["--unshare-ipc"], &[]),
        _ => argv,
    };
    let write = vec![c"/tmp".to_owned(), c"/dev/shm".to_owned(), text(at)];
    let rules = Rules {
        required: true,
        signals_only: false,
        read: vec![c"/".to_owned()],
        write,
        devices: vec![c"/dev".to_owned(), c"/proc".to_owned()],
    };
    let argument = CString::new(program).expect("no NUL");
    let plan = Plan {
        action: Action::Exec {
            argv: vec![c"python3".to_owned(), c"-c".to_owned(), argument],
            env: sandbox::environment(&[], &[]),
        },
        directory: text(at),
        landlock: (off != Some(Layer::Landlock)).then_some(rules),
        seccomp: if off == Some(Layer::Seccomp) { Vec::new() } else { sandbox::program().expect("it compiles") },
        keeper,
        ..Plan::default()
    };
    started(pair, argv, descriptors, &plan)
}

fn started(pair: &Pair, argv: Vec<CString>, mut descriptors: Descriptors, plan: &Plan) -> Ran {
    let tools = &pair.host.tools;
    let mut sealed = File::from(memfd_create("plan", MFdFlags::MFD_CLOEXEC).expect("there is memory"));
    sealed.write_all(&plan.encode()).expect("there is memory");
    sealed.rewind().expect("it is a file");
    let pipe = || std::io::pipe().expect("there are pipes");
    let ((mut out, out_in), (mut errors, errors_in), (control_out, mut control)) = (pipe(), pipe(), pipe());
    let ((mut report, report_in), (_status, status_in)) = (pipe(), pipe());
    descriptors.put(Arc::new(OwnedFd::from(File::open("/dev/null").expect("it is there"))), 0);
    for (end, number) in [(out_in, 1), (errors_in, 2), (report_in, descriptor::REPORT), (status_in, STATUS)] {
        descriptors.put(Arc::new(end.into()), number);
    }
    descriptors.put(Arc::new(sealed.into()), descriptor::PLAN);
    descriptors.put(Arc::new(control_out.into()), descriptor::CONTROL);
    let uid = tools.uid.to_string();
    let bwrap = sandbox::find(None).expect("it is installed").program;
    let before = ["setpriv", "--reuid", &uid, "--regid", &tools.gid.to_string(), "--init-groups", "--"]
        .map(|word| CString::new(word).expect("no NUL"));
    let words: Vec<CString> = before.into_iter().chain([bwrap]).chain(argv.into_iter().skip(1)).collect();
    let list = descriptors.into_list();
    let passed: Vec<_> = list.iter().map(|(fd, number)| (fd.as_fd(), *number)).collect();
    let none: &[CString] = &[];
    let start = Instant::now();
    let pid = salaam_sys::spawn::spawn(c"/usr/bin/setpriv", &words, none, &passed, true).expect("it is installed");
    drop(passed);
    drop(list);
    control.write_all(&[salaam_launch::control::GO]).expect("launch reads it");
    let (mut stdout, mut stderr, mut said) = (Vec::new(), Vec::new(), Vec::new());
    out.read_to_end(&mut stdout).expect("a pipe");
    errors.read_to_end(&mut stderr).expect("a pipe");
    report.read_to_end(&mut said).expect("a pipe");
    drop(control);
    let status = waitpid(pid, None).expect("it is ours");
    stderr.extend(format!("{status:?} report {said:02x?}").bytes());
    Ran { what: "built by hand".into(), code: Some(0), signal: None, stdout, stderr, wall: start.elapsed() }
}

#[test]
fn each_layer_is_what_stops_the_attacks_that_only_it_stops() {
    let _turn = limit!(170);
    let mut pair = tight(Host::shared());
    let outside = Outside::new(&mut pair);
    let all = attacks();
    let controls = outside.controls(&pair, &all);
    let mut wrong = Vec::new();
    for off in SWITCHED {
        for built in [None, Some(*off)] {
            // The scan is the executor's: what is built here has none.
            if built.is_none() && *off == Layer::Scan {
                continue;
            }
            pair.with_workspace();
            let at = pair.workspace.clone();
            outside::prepare(&pair, &at);
            let numbered = all.iter().enumerate().zip(&controls);
            let only = numbered.filter(|((_, attack), shown)| attack.layers == [*off] && *shown == "done");
            let tried: Vec<(usize, &Attack, &Path)> =
                only.map(|((number, attack), _)| (number, attack, at.as_path())).collect();
            assert!(!tried.is_empty(), "{off:?} stops nothing on its own");
            // What changes the root repository gets one that nobody has changed.
            for group in tried.chunk_by(|(_, one, _), (_, two, _)| !one.fresh && !two.fresh) {
                if group.iter().any(|(_, attack, _)| attack.fresh) {
                    for entry in fs::read_dir(&at).expect("it is there").flatten() {
                        let path = entry.path();
                        let gone = if path.is_dir() && !path.is_symlink() {
                            fs::remove_dir_all(&path)
                        } else {
                            fs::remove_file(&path)
                        };
                        gone.expect("it is root's to remove");
                    }
                    outside::prepare(&pair, &at);
                }
                let ran = behind(&pair, &at, built, &outside.script(group, true));
                for ((_, attack, _), did) in group.iter().zip(outside.judge(&ran, group)) {
                    if (did == "done") != built.is_some() || mistaken(&did) {
                        let state = if built.is_some() { "off" } else { "on" };
                        wrong.push(format!("{off:?} {state}: {}: {did}", attack.name));
                    }
                }
            }
        }
        println!("{off:?} was switched off");
    }
    assert_eq!(wrong, [] as [String; 0]);
}
