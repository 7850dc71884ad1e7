//! The child's answers as the executor gets them, and the bounds of what it runs.

use std::{os::unix::ffi::OsStrExt as _, os::unix::net::UnixStream, path::Path, time::Duration};

use nix::{libc, unistd::Pid};
use salaam_core::bridge::{Action, Attempt};

use super::{
    child::{Child, answer, one_attempt},
    handle::Prober,
    programs::run_within,
};

#[tokio::test]
async fn attempts_are_answered_in_order_with_what_the_kernel_said() {
    let directory = std::env::temp_dir().join(format!("salaam-prober-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(directory.join("socket")).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    // The child's loop in a thread: only the exec is missing.
    let served = std::thread::spawn(move || {
        while let Ok(outcome) = one_attempt(&mut theirs) {
            answer(&mut theirs, &outcome).unwrap();
        }
    });
    let prober = Prober::adopt(Child { socket: ours, pid: Pid::this() }).unwrap();
    let attempt =
        |id: &str, action, path: &Path| Attempt { id: id.into(), action, path: path.as_os_str().as_bytes().to_vec() };
    let results = prober
        .attempt(vec![
            attempt("a", Action::Read, Path::new("/dev/null")),
            attempt("b", Action::Read, Path::new("/nowhere")),
            attempt("c", Action::Connect, &directory.join("socket")),
            attempt("d", Action::Connect, &directory.join("none")),
            attempt("e", Action::Connect, Path::new(&format!("/{}", "x".repeat(200)))),
            attempt("f", Action::List, &directory),
            attempt("g", Action::List, Path::new("/dev/null")),
        ])
        .await
        .unwrap();
    let errnos: Vec<_> = results.iter().map(|result| (result.id.as_str(), result.errno)).collect();
    let (none, long, file) = (libc::ENOENT, libc::ENAMETOOLONG, libc::ENOTDIR);
    assert_eq!(errnos, [("a", 0), ("b", none), ("c", 0), ("d", none), ("e", long), ("f", 0), ("g", file)]);
    assert!(results.iter().all(|result| result.code.is_none() && result.said.is_empty()));
    drop(prober);
    tokio::task::spawn_blocking(move || served.join().unwrap()).await.unwrap();
    drop(listener);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn a_prober_that_is_gone_proves_nothing() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let prober = Prober::adopt(Child { socket: ours, pid: Pid::this() }).unwrap();
    let attempt = Attempt { id: "a".into(), action: Action::Read, path: b"/dev/null".to_vec() };
    assert!(prober.attempt(vec![attempt.clone()]).await.is_err());
    assert!(prober.attempt(vec![attempt]).await.is_err());
}

#[test]
fn a_program_is_bounded_in_time_and_words() {
    let run = |script: &std::ffi::CStr, limit| run_within(c"/bin/sh", &[c"sh", c"-c", script], limit).unwrap();
    let long = Duration::from_secs(20);
    let said = run(c"echo no; exit 7", long);
    assert_eq!((said.errno, said.code, said.said.as_slice()), (0, Some(7), b"no\n".as_slice()));
    assert_eq!(run(c"kill -9 $$", long).code, Some(137));
    assert_eq!(run(c"head -c 100000 /dev/zero", long).said.len(), 512);
    for stuck in [c"exec sleep 60", c"exec >/dev/null 2>&1; exec sleep 60"] {
        let outcome = run(stuck, Duration::from_millis(50));
        assert_eq!((outcome.errno, outcome.code), (libc::ETIMEDOUT, None));
    }
}
