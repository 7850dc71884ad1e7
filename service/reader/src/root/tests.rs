//! What a path can lead to, each shown to lead there by a plain open first.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, fs::symlink},
    path::{Path, PathBuf},
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::*;

/// A directory with a root in it, and a secret beside that.
struct Ground {
    top: PathBuf,
    root: PathBuf,
}

impl Ground {
    fn new(name: &str) -> Self {
        let top = std::env::temp_dir().join(format!("salaam-root-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&top));
        let root = top.join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(top.join("secret"), "secret").unwrap();
        fs::write(root.join("a/b/file"), "inside").unwrap();
        Self { top, root }
    }

    fn try_file(&self, path: &str, links: Links) -> Result<Vec<u8>, Refusal> {
        let fd = fs::File::open(&self.root).unwrap();
        let root = Root::new(fd.as_fd(), account());
        let file = root.file(path.as_bytes(), links)?;
        let mut bytes = vec![0; 64];
        let got = nix::unistd::read(&file.fd, &mut bytes).unwrap();
        bytes.truncate(got);
        Ok(bytes)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.top));
    }
}

/// Nobody in particular: only what others may read.
fn account() -> Account {
    Account { uid: 64_123, groups: vec![64_123] }
}

fn plain(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_path_leads_to_what_is_inside_and_links_only_when_they_stay_there() {
    let place = Ground::new("links");
    let root = &place.root;
    symlink("a/b/file", root.join("in")).unwrap();
    symlink("../b/../../in", root.join("a/b/round")).unwrap();
    symlink("a", root.join("dir")).unwrap();
    let escapes = ["../secret", "a/b/../../../secret", "/etc/passwd", "/proc/self/root/etc/passwd"];
    for (number, target) in escapes.iter().enumerate() {
        symlink(target, root.join(format!("out{number}"))).unwrap();
    }
    symlink(root.join("a/b/file"), root.join("absolute")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    for path in ["a/b/file", "a//b/./file", "in", "a/b/round", "dir/b/file", "a/../a/b/file"] {
        assert_eq!(plain(&root.join(path)), "inside", "{path}");
        assert_eq!(place.try_file(path, Links::Inside).as_deref(), Ok(&b"inside"[..]), "{path}");
    }
    for path in ["out0", "out1", "out2", "out3", "absolute", "../secret", "a/../../secret", "/etc/passwd"] {
        assert!(!plain(&root.join(path)).is_empty(), "{path} leads somewhere for anybody else");
        assert_eq!(place.try_file(path, Links::Inside), Err(Refusal::LeadsOut), "{path}");
    }
    for path in ["in", "dir/b/file"] {
        assert_eq!(place.try_file(path, Links::Never), Err(Refusal::LeadsOut), "{path}");
    }
    assert_eq!(place.try_file("loop", Links::Inside), Err(Refusal::TooManySteps));
    assert_eq!(place.try_file("a/b/none", Links::Inside), Err(Refusal::Missing));
    assert_eq!(place.try_file("a/b/file/x", Links::Inside), Err(Refusal::NotDirectory));
    assert_eq!(place.try_file("a/b", Links::Inside), Err(Refusal::NotRegular));
    assert_eq!(place.try_file("a\0b", Links::Inside), Err(Refusal::LeadsOut));
    assert_eq!(place.try_file("a/../".repeat(3000).as_str(), Links::Inside), Err(Refusal::TooManySteps));
}

#[test]
fn links_that_multiply_have_an_end() {
    let place = Ground::new("bomb");
    let long = "a/../".repeat(800);
    symlink(format!("{long}x1"), place.root.join("x0")).unwrap();
    for number in 1..30 {
        symlink(format!("{long}x{}", number + 1), place.root.join(format!("x{number}"))).unwrap();
    }
    assert_eq!(place.try_file("x0", Links::Inside), Err(Refusal::TooManySteps));
}

#[test]
fn only_what_the_account_may_read_through_directories_that_it_may_search() {
    let place = Ground::new("modes");
    let file = place.root.join("a/b/file");
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    assert!(place.try_file("a/b/file", Links::Inside).is_ok());
    for (path, mode, back) in
        [(&file, 0o600, 0o644), (&place.root.join("a"), 0o744, 0o755), (&place.root, 0o750, 0o755)]
    {
        set(path, mode);
        assert_eq!(plain(&file), "inside", "its owner reads it");
        assert_eq!(place.try_file("a/b/file", Links::Inside), Err(Refusal::Unreadable), "{}", path.display());
        set(path, back);
    }
    symlink("a/b/file", place.root.join("way")).unwrap();
    set(&place.root.join("a/b"), 0o700);
    assert_eq!(place.try_file("way", Links::Inside), Err(Refusal::Unreadable));
}

#[test]
fn nothing_that_could_block_is_opened() {
    let place = Ground::new("fifo");
    mkfifo(&place.root.join("fifo"), Mode::from_bits_truncate(0o666)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.root.join("socket")).unwrap();
    for path in ["fifo", "socket"] {
        assert_eq!(place.try_file(path, Links::Inside), Err(Refusal::NotRegular), "{path}");
    }
}

#[test]
fn another_file_system_is_not_entered() {
    let fd = fs::File::open("/").unwrap();
    let root = Root::new(fd.as_fd(), account());
    assert!(!plain(Path::new("/proc/version")).is_empty());
    assert!(matches!(root.file(b"proc/version", Links::Inside), Err(Refusal::Mount)));
    assert!(root.directory(b"usr", Links::Inside).is_ok());
}
