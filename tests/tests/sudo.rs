//! Every sudo that a host may have: its settings beaten by the drop-in that set-up wrote, or a start refused in exact
//! words. Each in a copy of /etc that only this service sees.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command, sync::OnceLock, time::Duration};

use salaam_tests::{Host, Pair, Ran, Within, host::sources, limit, pair::text};
use serde_json::{Value, json};

/// A pair with a workspace, stopped.
fn pair() -> Pair {
    let pair = Pair::started(Host::shared());
    pair.stop().ok();
    pair
}

/// A host whose sudo reads `defaults` before and after every drop-in.
fn with<'a>(pair: &'a Pair, defaults: &str) -> Within<'a> {
    Within::new(pair).over("/etc").after(format!(
        "cat >/etc/sudoers.d/00-hostile <<'END'\n{defaults}\nEND
         chmod 0440 /etc/sudoers.d/00-hostile; cp -p /etc/sudoers.d/00-hostile /etc/sudoers.d/zz-hostile
         visudo -c -q"
    ))
}

/// The same where the drop-in is only the rule, without its `Defaults`.
fn bare<'a>(pair: &'a Pair, defaults: &str) -> Within<'a> {
    let rule = pair.host.sudoers();
    with(pair, defaults).after(format!("sed -i '/^Defaults/d' {}", rule.display()))
}

/// It starts, the bridge is the socket that the service made, and a command runs as the tools user.
#[track_caller]
fn works(pair: &Pair, within: &Within<'_>, what: &str) {
    let health = within.start(&[]);
    assert_eq!(health.code, Some(0), "{what}: {health}");
    let health = health.json();
    assert_eq!(health["status"], "ok", "{what}: {health:#}");
    let executor = pair.executors().pop().expect("it runs");
    let environment = fs::read(format!("/proc/{}/environ", executor.pid)).expect("root may");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(!environment.contains("LD_PRELOAD") && !environment.contains("EVIL"), "{what}: {environment:?}");
    let ran = pair.run(&["id", "-u"]).ok();
    assert_eq!(ran.out().trim(), pair.host.tools.uid.to_string(), "{what}");
    // What sudo could do to a command: a terminal, a preloaded library, another directory, a mask.
    let ran = pair.run(&["sh", "-c", "env; ls -l /proc/self/fd; umask; tty"]);
    assert!(!ran.says("LD_PRELOAD") && !ran.says("EVIL") && ran.says("not a tty") && ran.says("0002"), "{what}: {ran}");
    pair.stop().ok();
}

/// What a refused start says of `id`.
#[track_caller]
fn refuses(pair: &Pair, within: &Within<'_>, id: &str, seen: &str) -> Value {
    let ran = within.start(&[]);
    assert_eq!(ran.code, Some(3), "{seen}: {ran}");
    let rows = ran.json()["error"]["checks"].clone();
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == id).cloned());
    let row = row.unwrap_or_else(|| panic!("no {id}: {ran}"));
    assert!(text(&row, "evidence").contains(seen), "{seen}: {row}");
    assert!(pair.service_process().is_none() && pair.executors().is_empty());
    row
}

#[test]
fn settings_that_break_a_bridge_do_so_without_the_drop_ins_own_and_are_named() {
    let _turn = limit!(180);
    let pair = pair();
    let service = &pair.host.service.name;
    // Input that is logged goes through a pipe of sudo's: there is no socket, and nobody's word on who made it.
    for defaults in ["Defaults log_input", "Defaults log_input, log_output, use_pty"] {
        let row = refuses(&pair, &bare(&pair, defaults), "executor-identity", "");
        assert!(text(&row, "fix").contains("`!log_input` for salaam-toolsd"), "{row}");
    }
    refuses(&pair, &bare(&pair, "Defaults requiretty"), "sudo-denied", "tty");
    for scope in ["", &format!(":{service}"), "@ALL", &format!(">{}", pair.host.tools.name)] {
        works(&pair, &with(&pair, &format!("Defaults{scope} log_input, requiretty")), scope);
    }
}

#[test]
fn a_hosts_own_settings_of_sudo_are_beaten_by_the_drop_in() {
    let _turn = limit!(300);
    let pair = pair();
    let evil = pair.state.with_file_name("evil");
    fs::write(&evil, "EVIL=1\nLD_PRELOAD=/nonexistent.so\n").expect("root may");
    for defaults in [
        "use_pty",
        "!use_pty",
        "log_output",
        "use_pty, log_input, log_output",
        "requiretty",
        "noexec",
        "intercept",
        "log_subcmds",
        "intercept, log_subcmds, noexec, log_input, log_output, requiretty, use_pty",
        "closefrom=3",
        "closefrom_override",
        "!env_reset, setenv",
        "env_keep += \"LD_PRELOAD EVIL SALAAM_STATE_DIR\"",
        &format!("env_file={}", evil.display()),
        &format!("restricted_env_file={}", evil.display()),
        "command_timeout=1s, user_command_timeouts",
        "umask=0777, umask_override",
        "lecture=always, mail_always, !mail_badpass",
        "timestamp_timeout=0, passwd_tries=1",
        "targetpw, authenticate",
        "secure_path=\"/nonexistent\"",
        "always_set_home, set_home",
        "!set_logname, stay_setuid",
        "syslog=local7, logfile=/var/log/salaam-hostile",
        "!pam_session, !pam_setcred",
        "compress_io, iolog_dir=/var/log/salaam-hostile-io, iolog_flush",
        "ignore_dot, use_netgroups, fast_glob",
        "runcwd=/nonexistent",
    ] {
        works(&pair, &with(&pair, &format!("Defaults {defaults}")), defaults);
    }
}

/// What no setting of a command can beat is refused, and the reason is sudo's own.
#[test]
fn a_rule_or_a_limit_that_no_drop_in_can_beat_refuses_the_start_in_words() {
    let _turn = limit!(120);
    let pair = pair();
    // A rule for nobody, after ours: sudo takes the last one.
    let denied = with(&pair, &format!("{} ALL=({}) !ALL", pair.host.service.name, pair.host.tools.name));
    let row = refuses(&pair, &denied, "sudo-denied", "");
    assert!(text(&row, "fix").contains("NOPASSWD: "), "{row}");
    // Where sudo looks for a program is decided before the settings of that program are read.
    let row = refuses(&pair, &with(&pair, "Defaults runchroot=/nonexistent"), "sudo-denied", "command not found");
    assert!(text(&row, "fix").contains("runchroot"), "{row}");
    // Too little for any program to be started: whatever it is called, nothing runs and everything is said.
    let ran = with(&pair, "Defaults rlimit_as=1048576").start(&[]);
    assert_eq!(ran.code, Some(3), "{ran}");
    let rows = ran.json()["error"]["checks"].clone();
    for row in rows.as_array().expect("a list") {
        assert!(!text(row, "evidence").is_empty() && !text(row, "fix").is_empty(), "{row}");
    }
    works(&pair, &Within::new(&pair), "as it was");
}

/// A session of PAM's runs as root and may move the executor out of the service's control group, or start a service
/// manager for the tools user.
#[test]
fn no_session_of_pam_is_opened_for_the_executor() {
    let _turn = limit!(120);
    let pair = pair();
    let mark = pair.state.with_file_name("session-mark");
    let session = format!(
        "printf '#!/bin/sh\\n[ \"$PAM_TYPE\" != open_session ] || echo \"$PAM_USER\" >>{0}\\n' >/etc/session-mark
         chmod 0755 /etc/session-mark; rm -f {0}
         echo 'session optional pam_exec.so seteuid /etc/session-mark' >>/etc/pam.d/sudo",
        mark.display()
    );
    let without = Within::new(&pair)
        .over("/etc")
        .after(format!("sed -i 's/ !pam_session,//' {}", pair.host.sudoers().display()))
        .after(&session);
    without.start(&[]).ok();
    pair.stop().ok();
    let opened = fs::read_to_string(&mark).expect("without it, a session is opened");
    assert!(opened.contains(&pair.host.tools.name), "{opened}");
    works(&pair, &Within::new(&pair).over("/etc").after(&session), "pam_exec");
    assert!(!mark.exists(), "{:?}", fs::read_to_string(&mark));
}

/// sudo-rs as an installed directory with `sudo` and `visudo`, or why there is none. Distributions that have it are asked
/// first; else it is built once, into the build directory.
fn sudo_rs() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            for place in ["/usr/lib/cargo/bin", "/usr/lib/sudo-rs/bin"] {
                if PathBuf::from(place).join("sudo").exists() {
                    return Ok(place.into());
                }
            }
            let root = sources().join("target/sudo-rs");
            if root.join("bin/sudo").exists() {
                return Ok(root.join("bin"));
            }
            let library = root.join("lib");
            fs::create_dir_all(&library).map_err(|e| e.to_string())?;
            // The linker wants the development name; the library itself is what sudo has.
            let pam =
                Ran::of(Command::new("sh").args(["-c", "ls /lib/*/libpam.so.0 /usr/lib/*/libpam.so.0 | head -n 1"]));
            drop(fs::remove_file(library.join("libpam.so")));
            std::os::unix::fs::symlink(pam.out().trim(), library.join("libpam.so")).map_err(|e| e.to_string())?;
            let mut build = Command::new("cargo");
            build
                .args(["install", "--quiet", "sudo-rs", "--root"])
                .arg(&root)
                .arg("--target-dir")
                .arg(root.join("build"));
            let built = Ran::with_input(build.env("LIBRARY_PATH", &library), b"", Duration::from_secs(900));
            drop(fs::remove_dir_all(root.join("build")));
            if built.code == Some(0) { Ok(root.join("bin")) } else { Err(built.err().chars().take(400).collect()) }
        })
        .clone()
}

/// A host whose sudo is sudo-rs: its own, set-uid, in place of the classic one; set up there, as it would be.
fn with_sudo_rs<'a>(pair: &'a Pair) -> Option<Within<'a>> {
    match sudo_rs() {
        Err(why) => {
            eprintln!("skipped, there is no sudo-rs here: {why}");
            None
        }
        Ok(place) => {
            let (host, place) = (pair.host, place.display());
            let set_up = format!(
                "{} host setup --service-user {} --tools-user {} --group {} --operators-group {} >/dev/null",
                host.salaam().display(),
                host.service.name,
                host.tools.name,
                host.name("work"),
                host.name("ops")
            );
            Some(Within::new(pair).over("/usr/bin").over("/usr/sbin").over("/etc").after(format!(
                "rm /usr/bin/sudo /usr/sbin/visudo; install -m 4755 -o root -g root {place}/sudo /usr/bin/sudo
                 install -m 0755 {place}/visudo /usr/sbin/visudo
                 {set_up}"
            )))
        }
    }
}

#[test]
fn sudo_rs_starts_the_executor_and_passes_no_more_than_classic_sudo() {
    let _turn = limit!(1000);
    let pair = pair();
    let Some(within) = with_sudo_rs(&pair) else { return };
    let version = within.run(&pair.host.service, &["sudo", "--version"]);
    assert!(version.says("sudo-rs"), "{version}");
    works(&pair, &within, "as set-up wrote it");
    works(
        &pair,
        &within.clone().after("echo 'Defaults !use_pty' >/etc/sudoers.d/zz; chmod 0440 /etc/sudoers.d/zz"),
        "!use_pty",
    );
    works(
        &pair,
        &within.clone().after("echo 'Defaults use_pty' >/etc/sudoers.d/zz; chmod 0440 /etc/sudoers.d/zz"),
        "use_pty",
    );

    // B3: the same few variables under both.
    let environment = |within: &Within<'_>| {
        within.clone().after("export DEMO_API_KEY=tok_demo BASH_ENV=/nonexistent").start(&[]).ok();
        let executor = pair.executors().pop().expect("it runs");
        let variables = fs::read(format!("/proc/{}/environ", executor.pid)).expect("root may");
        pair.stop().ok();
        let mut names: Vec<String> = variables
            .split(|b| *b == 0)
            .filter_map(|entry| Some(String::from_utf8_lossy(entry).split_once('=')?.0.to_owned()))
            .filter(|name| !name.starts_with("SUDO_"))
            .collect();
        names.sort();
        names
    };
    let known = ["HOME", "LOGNAME", "MAIL", "PATH", "SHELL", "TERM", "USER", "LANG"];
    for names in [environment(&within), environment(&Within::new(&pair))] {
        assert!(names.iter().all(|name| known.contains(&name.as_str())), "{names:?}");
    }
}

#[test]
fn under_sudo_rs_the_same_hosts_are_refused_for_the_same_reasons() {
    let _turn = limit!(1000);
    let pair = pair();
    let Some(within) = with_sudo_rs(&pair) else { return };
    let (service, tools) = (&pair.host.service.name, &pair.host.tools.name);
    let add =
        |line: String| within.clone().after(format!("echo '{line}' >/etc/sudoers.d/zz; chmod 0440 /etc/sudoers.d/zz"));
    refuses(&pair, &add(format!("{service} ALL=(root) NOPASSWD: /bin/ls")), "service-sudo-wide", "/bin/ls");
    refuses(&pair, &add(format!("{service} ALL=(ALL:ALL) NOPASSWD: ALL")), "service-sudo-wide", "became root");
    refuses(&pair, &add(format!("{tools} ALL=(root) NOPASSWD: /bin/ls")), "tools-user-can-sudo", "");
    let without = within.clone().after(format!("rm {}", pair.host.sudoers().display()));
    let row = refuses(&pair, &without, "sudo-denied", "");
    assert!(text(&row, "fix").contains("NOPASSWD: "), "{row}");
    let wide = within.clone().after(format!(
        "rm {0}; echo '{service} ALL=({tools}) NOPASSWD: ALL' >{0}; chmod 0440 {0}",
        pair.host.sudoers().display()
    ));
    let health = wide.start(&[]).ok().json();
    pair.stop().ok();
    let probes = health["tool_execution"]["probes"].as_array().expect("a list").clone();
    let rule = probes.iter().find(|probe| probe["id"] == "sudo-rule-wide").expect("it is there");
    assert_eq!(rule["result"], json!("warn"), "{rule}");

    // B2: the flag is read before either sudo is asked, so the words are the same.
    let mut command = pair.command_through(&pair.host.service, &["--no-new-privs"]);
    let classic = Ran::of(command.args(["service", "start", "--json", "--tools-user", tools]));
    let under = within.run(
        &pair.host.service,
        &[
            "setpriv",
            "--no-new-privs",
            "--",
            &pair.host.salaam().display().to_string(),
            "service",
            "start",
            "--json",
            "--tools-user",
            tools,
        ],
    );
    assert_eq!((classic.code, under.code), (Some(3), Some(3)), "{under}");
    let row = |ran: &Ran| {
        let rows = ran.json()["error"]["checks"].clone();
        rows.as_array()
            .and_then(|rows| rows.iter().find(|row| row["id"] == "no-new-privs").cloned())
            .expect("it is there")
    };
    assert_eq!(row(&classic), row(&under));
    assert!(text(&row(&under), "evidence").starts_with("NoNewPrivs: 1"), "{under}");
}

#[test]
fn the_drop_in_is_written_for_the_sudo_that_reads_it() {
    let _turn = limit!(1000);
    let pair = pair();
    let rule = pair.host.sudoers().display().to_string();
    let text = fs::read_to_string(&rule).expect("root may");
    assert!(text.contains("!log_input") && text.contains("!pam_session"), "{text}");
    assert_eq!(fs::metadata(&rule).expect("it is there").permissions().mode() & 0o777, 0o440);
    let Some(within) = with_sudo_rs(&pair) else { return };
    // Its visudo takes a setting that it does not know for an error: the classic drop-in would not have been taken.
    let classic = pair.state.with_file_name("classic");
    fs::write(&classic, &text).expect("root may");
    let root = salaam_tests::Account::root();
    let check = |path: &str| within.run(&root, &["visudo", "-c", "-f", path]);
    let refused = check(&classic.display().to_string());
    assert!(refused.code != Some(0) && refused.says("unknown setting"), "{refused}");
    check(&rule).ok();
    let written = within.run(&root, &["cat", &rule]).ok().out();
    let line = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    assert!(line(&written) == line(&text) && !written.contains("log_input"), "{written}");
}
