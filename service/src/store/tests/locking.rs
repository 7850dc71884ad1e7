//! The lock is the kernel's: it names its holder, ends with it, and no stale file blocks a start.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{
    super::lock::{Holder, LockError, StateLock},
    Directory,
};

const HOLD: &str = "SALAAM_TEST_HOLD_LOCK";

/// Not a test of its own: the process that [`holding`] starts.
#[test]
fn hold_the_lock_until_killed() {
    let Some(state) = std::env::var_os(HOLD) else { return };
    match StateLock::acquire(Path::new(&state)) {
        Ok(_lock) => {
            println!("\nheld");
            loop {
                std::thread::park();
            }
        }
        Err(e) => println!("\nrefused {e}"),
    }
}

/// Another process that tries to take the lock, and what it said.
fn holding(state: &Path) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "store::tests::locking::hold_the_lock_until_killed"])
        .env(HOLD, state)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.map(Result::unwrap).find(|l| l.starts_with("held") || l.starts_with("refused")).unwrap();
    (child, said)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_second_service_is_refused_naming_the_first_also_through_a_link() {
    let directory = Directory::new();
    let link = directory.0.with_extension("link");
    symlink(&directory.0, &link).unwrap();
    let (child, said) = holding(&directory.0);
    assert_eq!(said, "held");
    let pid = i32::try_from(child.id()).unwrap();
    let holder = Holder { pid: Some(pid), version: Some(env!("CARGO_PKG_VERSION").into()) };
    for path in [&directory.0, &link] {
        match StateLock::acquire(path) {
            Err(LockError::Held { state, holder: found }) => {
                assert_eq!((state, &found), (fs::canonicalize(&directory.0).unwrap(), &holder));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(StateLock::holder(path).unwrap().as_ref(), Some(&holder));
    }
    let (second, said) = holding(&link);
    assert!(said.contains(&format!("pid {pid}")), "{said}");
    end(second);
    end(child);
    assert_eq!(StateLock::holder(&link).unwrap(), None);
    StateLock::acquire(&link).unwrap();
    fs::remove_file(link).unwrap();
}

#[test]
fn a_crash_or_a_reused_pid_never_blocks_the_next_start() {
    let directory = Directory::new();
    let (child, _) = holding(&directory.0);
    end(child);
    // The dead holder's text now names a process that lives: this one.
    let own = std::process::id();
    fs::write(directory.0.join("lock"), format!(r#"{{"pid":{own},"version":"9.9.9"}}"#)).unwrap();
    assert_eq!(StateLock::holder(&directory.0).unwrap(), None);
    let (child, said) = holding(&directory.0);
    assert_eq!(said, "held");
    end(child);
}

#[test]
fn a_text_that_names_another_process_is_not_believed() {
    let directory = Directory::new();
    let (child, _) = holding(&directory.0);
    let pid = i32::try_from(child.id()).unwrap();
    for text in ["", "{", r#"{"pid":1,"version":"0.0.1"}"#] {
        fs::write(directory.0.join("lock"), text).unwrap();
        assert_eq!(StateLock::holder(&directory.0).unwrap(), Some(Holder { pid: Some(pid), version: None }));
    }
    end(child);
}

#[test]
fn the_lock_outlives_a_second_descriptor_of_its_file() {
    let directory = Directory::new();
    let lock = StateLock::acquire(&directory.0).unwrap();
    // What would silently drop a POSIX lock.
    drop(fs::File::open(directory.0.join("lock")).unwrap());
    let (child, said) = holding(&directory.0);
    assert!(said.starts_with("refused"), "{said}");
    end(child);
    drop(lock);
    let (child, said) = holding(&directory.0);
    assert_eq!(said, "held");
    end(child);
}

#[test]
fn a_lock_file_that_others_can_reach_is_refused() {
    let directory = Directory::new();
    let path = directory.0.join("lock");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(StateLock::acquire(&directory.0), Err(LockError::File { .. })));
    fs::remove_file(&path).unwrap();
    symlink(directory.0.join("elsewhere"), &path).unwrap();
    assert!(matches!(StateLock::acquire(&directory.0), Err(LockError::File { .. })));
    assert!(!directory.0.join("elsewhere").exists());
    assert!(matches!(StateLock::acquire(&directory.0.join("none")), Err(LockError::File { .. })));
    assert_eq!(StateLock::holder(&Directory::new().0).unwrap(), None);
}
