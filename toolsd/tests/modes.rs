//! Modes that a command may leave behind: setgid on directories, and neither setuid nor setgid on files.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::{Bench, unprivileged};

#[test]
fn setgid_stays_on_directories_and_is_gone_from_files() {
    unprivileged("setgid_stays_on_directories_and_is_gone_from_files", async || {
        let bench = Bench::new("setgid");
        let outcome = bench.sh("mkdir d && chmod 2775 d && touch f && chmod 2755 f && chmod 4755 f").await;
        assert_ne!(outcome.code(), Some(0), "setuid is refused");
        let mode = |name: &str| bench.path.join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("d"), mode("f")), (0o2775, 0o755));
    });
}

#[test]
fn a_setgid_file_hides_in_no_directory() {
    unprivileged("a_setgid_file_hides_in_no_directory", async || {
        let bench = Bench::new("hidden");
        // None, list only, search only, and one in the other.
        let hide = "for mode in 000 600 300; do d=d$mode; mkdir -p $d/e; cp /bin/true $d/f; cp /bin/true $d/e/f; \
                    chmod 2755 $d/f $d/e/f && chmod $mode $d/e && chmod $mode $d || exit; done";
        let outcome = bench.sh(hide).await;
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        let changed = outcome.exit.unwrap().changed;
        assert!(changed.complete && changed.paths.contains(&b"d000/e/f".to_vec()), "{changed:?}");
        for directory in ["d000", "d600", "d300"] {
            for file in ["f", "e/f"] {
                let path = bench.path.join(directory).join(file);
                assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7000, 0, "{}", path.display());
            }
        }
    });
}
