//! The socket on disk.

use std::os::unix::{
    ffi::OsStrExt as _,
    fs::{FileTypeExt as _, MetadataExt as _, symlink},
    net::UnixListener,
};

use super::*;
use crate::http::socket::SocketError;

#[test]
fn the_socket_is_the_owners_alone() {
    let scratch = Scratch::new();
    let listening = listen(&scratch.0, None).unwrap();
    assert_eq!(mode_of(listening.path()), 0o600);
    drop(listening);
    assert!(!scratch.socket().exists(), "the socket file stays behind");
}

#[test]
fn with_operators_the_group_gets_in_and_nobody_else() {
    if !is_root() {
        return;
    }
    let stage = Stage::with_group(Some(64_321));
    let socket = std::fs::symlink_metadata(stage.scratch.socket()).unwrap();
    assert_eq!((socket.mode() & 0o7777, socket.uid(), socket.gid()), (0o660, 0, 64_321));
}

#[test]
fn a_path_of_107_bytes_works_and_one_of_108_names_path_length_and_limit() {
    let scratch = Scratch::new();
    let exactly = |total: usize| {
        let rest = total - scratch.0.as_os_str().as_bytes().len() - "/".len() - "/operator.sock".len();
        let runtime = scratch.0.join("r".repeat(rest));
        std::fs::create_dir(&runtime).unwrap();
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
        runtime
    };
    let fits = exactly(107);
    let _listening = listen(&fits, None).unwrap();
    UnixStream::connect(fits.join(SOCKET_NAME)).unwrap();

    let long = exactly(108);
    let error = listen(&long, None).unwrap_err();
    assert!(matches!(error, SocketError::PathTooLong { length: 108, most: 107, .. }));
    let text = error.to_string();
    assert!(text.contains(long.join(SOCKET_NAME).to_str().unwrap()) && text.contains("108") && text.contains("107"));
    assert_eq!(std::fs::read_dir(&long).unwrap().count(), 0, "something was bound");
}

#[test]
fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.socket()).unwrap());
    let dead = std::fs::symlink_metadata(scratch.socket()).unwrap();
    assert!(dead.file_type().is_socket());
    let living = listen(&scratch.0, None).unwrap();
    assert!(matches!(listen(&scratch.0, None), Err(SocketError::InUse { .. })));
    drop(living);
    assert!(listen(&scratch.0, None).is_ok());
}

#[test]
fn what_is_no_dead_socket_of_ours_is_never_removed() {
    let scratch = Scratch::new();
    let elsewhere = scratch.0.join("elsewhere");
    drop(UnixListener::bind(&elsewhere).unwrap());
    let occupied = |said: &str| {
        let error = listen(&scratch.0, None).unwrap_err();
        assert!(matches!(error, SocketError::Occupied { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(std::fs::symlink_metadata(scratch.socket()).is_ok());
    };
    std::fs::write(scratch.socket(), "precious").unwrap();
    occupied("a regular file");
    assert_eq!(std::fs::read(scratch.socket()).unwrap(), b"precious");
    std::fs::remove_file(scratch.socket()).unwrap();

    symlink(&elsewhere, scratch.socket()).unwrap();
    occupied("a symbolic link");
    assert!(elsewhere.exists());
    std::fs::remove_file(scratch.socket()).unwrap();

    symlink("nowhere", scratch.socket()).unwrap();
    occupied("a symbolic link");
    std::fs::remove_file(scratch.socket()).unwrap();

    std::fs::create_dir(scratch.socket()).unwrap();
    occupied("a directory");
    std::fs::remove_dir(scratch.socket()).unwrap();

    if is_root() {
        drop(UnixListener::bind(scratch.socket()).unwrap());
        std::os::unix::fs::chown(scratch.socket(), Some(64_321), None).unwrap();
        occupied("a socket of uid 64321");
    }
}

#[test]
fn a_runtime_directory_that_others_reach_is_refused() {
    let scratch = Scratch::new();
    for mode in [0o755, 0o710, 0o770, 0o1700, 0o500] {
        std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = listen(&scratch.0, None).unwrap_err();
        assert!(matches!(error, SocketError::DirectoryMode { found, .. } if found == mode), "{error}");
    }
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = scratch.0.join("link");
    symlink(&scratch.0, &link).unwrap();
    assert!(matches!(listen(&link, None), Err(SocketError::Directory { .. })));
    assert!(matches!(listen(&scratch.0.join("missing"), None), Err(SocketError::Directory { .. })));
    if is_root() {
        std::os::unix::fs::chown(&scratch.0, Some(64_321), None).unwrap();
        assert!(matches!(listen(&scratch.0, None), Err(SocketError::DirectoryMode { .. })));
    }
}

#[test]
fn a_successors_socket_survives_the_end_of_its_predecessor() {
    let scratch = Scratch::new();
    let first = listen(&scratch.0, None).unwrap();
    std::fs::remove_file(scratch.socket()).unwrap();
    let second = listen(&scratch.0, None).unwrap();
    drop(first);
    assert!(second.path().exists());
}

#[test]
fn stopping_removes_the_socket_and_lets_requests_end() {
    let mut stage = Stage::new();
    stage.is_well();
    let mut idle = stage.connect();
    idle.write_all(b"GET /v1/who HTTP/1.1\r\nhost: s\r\n\r\n").unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).unwrap();
    let start = Instant::now();
    stage.stop();
    assert!(start.elapsed() < Duration::from_secs(4), "an idle connection held up the stop");
    assert!(!stage.scratch.socket().exists());
}

#[test]
fn a_request_that_does_not_end_is_cut_off_at_stop() {
    let mut stage = Stage::new();
    let mut attached = stage.connect();
    attached.write_all(b"POST /v1/hold HTTP/1.1\r\nhost: s\r\ncontent-length: 0\r\n\r\n").unwrap();
    eventually("the request", || stage.held.load(Ordering::SeqCst) == 1);
    stage.stop();
    assert_eq!(stage.held.load(Ordering::SeqCst), 0);
}
