//! Which layer stops which attack of a reader that was taken over, by leaving each layer out in turn. Nothing in the
//! product leaves one out; the steps are called one by one here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{
    env,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, openat2},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
};
use salaam_confine::{Role, enter, keep_descriptors, load, no_new_privileges};

type Attack = fn(&Path) -> io::Result<()>;

/// An attack, and whether it goes through with no layer, with landlock only, with the filter only, with both.
#[rustfmt::skip]
const TABLE: &[(&str, Attack, [bool; 4])] = &[
    ("a file outside is opened by the call that is left", |top| openat(&top.join("secret"), OFlag::O_RDONLY), [true, false, true, false]),
    ("a file inside is written by the call that is left", |top| openat(&top.join("root/file"), OFlag::O_WRONLY), [true, false, true, false]),
    ("a file outside is opened", |top| File::open(top.join("secret")).map(drop), [true, false, false, false]),
    ("a file inside is written", |top| OpenOptions::new().append(true).open(top.join("root/file")).map(drop), [true, false, false, false]),
    ("a socket of the service is reached", |top| UnixStream::connect(top.join("socket")).map(drop), [true, true, false, false]),
    ("a pair of sockets is made", |_| Ok(socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).map(drop)?), [true, true, false, false]),
    ("another process is looked at", |_| salaam_sys::pidfd::open(nix::unistd::getppid().as_raw()).map(drop), [true, true, false, false]),
    ("a file outside is deleted", |top| fs::remove_file(top.join("victim")), [true, false, false, false]),
    ("a file inside is renamed", |top| fs::rename(top.join("root/file"), top.join("root/other")).and_then(|()| fs::rename(top.join("root/other"), top.join("root/file"))), [true, false, false, false]),
    ("a mode is changed", |top| fs::set_permissions(top.join("root/file"), fs::metadata(top.join("root")).map(|_| std::os::unix::fs::PermissionsExt::from_mode(0o666))?), [true, true, false, false]),
    ("a program is run", |_| Command::new("/bin/true").status().map(drop), [true, false, false, false]),
];

const LEGS: [&str; 4] = ["none", "landlock", "filter", "both"];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().collect();
    if let [_, leg, attack, top] = words.as_slice()
        && LEGS.contains(&leg.as_str())
    {
        return attacked(leg, attack.parse().unwrap(), Path::new(top));
    }
    each_attack_is_stopped_by_the_layers_that_claim_it();
    ExitCode::SUCCESS
}

fn each_attack_is_stopped_by_the_layers_that_claim_it() {
    let top = env::temp_dir().join(format!("salaam-layers-{}", std::process::id()));
    fs::create_dir_all(top.join("root")).unwrap();
    fs::write(top.join("root/file"), "x").unwrap();
    fs::write(top.join("secret"), "x").unwrap();
    let socket = UnixListener::bind(top.join("socket")).unwrap();
    let mut wrong = Vec::new();
    for (number, (name, _, expected)) in TABLE.iter().enumerate() {
        for (leg, expected) in LEGS.iter().zip(expected) {
            fs::write(top.join("victim"), "x").unwrap();
            let program = env::current_exe().unwrap();
            let words = [(*leg).to_owned(), number.to_string(), top.display().to_string()];
            let output = Command::new(program).args(words).env_clear().output().unwrap();
            let through = match output.status.code() {
                Some(0) => true,
                Some(1) => false,
                code => panic!("{leg}: {name}: {code:?} {}", String::from_utf8_lossy(&output.stderr)),
            };
            if through != *expected {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                wrong.push(format!("{leg}: {name}: went through: {through} {said}"));
            }
        }
    }
    drop(socket);
    fs::remove_dir_all(&top).unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // In the form that whoever runs all suites counts.
    println!("test result: ok. {} passed; 0 failed; each with {} sets of layers", TABLE.len(), LEGS.len());
}

/// One attack behind the layers of one leg: 0 = it went through, 1 = a layer stopped it, 2 = it failed otherwise.
fn attacked(leg: &str, attack: usize, top: &Path) -> ExitCode {
    let root = File::open(top.join("root")).unwrap();
    keep_descriptors(&[root.as_raw_fd()]).unwrap();
    no_new_privileges().unwrap();
    if ["landlock", "both"].contains(&leg) {
        enter(Some(root.as_fd())).unwrap();
    }
    if ["filter", "both"].contains(&leg) {
        load(Role::Reader).unwrap();
    }
    match TABLE.get(attack).unwrap().1(top) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if error.kind() == io::ErrorKind::PermissionDenied { 1 } else { 2 })
        }
    }
}

fn openat(path: &PathBuf, flags: OFlag) -> io::Result<()> {
    Ok(openat2(AT_FDCWD, path, OpenHow::new().flags(flags | OFlag::O_CLOEXEC)).map(drop)?)
}
