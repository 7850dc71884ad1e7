//! The rules of the house that a compiler does not check: who may depend on whom, which way imports point,
//! and what no file may lack or say.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use salaam_tests::host::sources;

/// Modules by floor, the lowest first. Imports point to lower floors only; adapters and engines that need one another
/// stand in the order in which they do.
const SERVICE: &[&[&str]] = &[
    &["clock", "version", "child", "group"],
    &["store", "executor", "workers", "readers", "host", "metrics"],
    &["workspace"],
    &["probe"],
    &["operation"],
    // A session proposes operations; an operation knows its session by id only.
    &["session"],
    &["app"],
    &["http"],
    &["cli"],
];

/// The same for the executor. Its `app` is the start sequence, whose last step is to serve, so it stands on top.
const TOOLSD: &[&[&str]] = &[
    &["harden", "bridge", "beneath"],
    &["floor"],
    &["sandbox", "supervise", "output", "ledger", "scan"],
    &["command", "edit", "copy"],
    &["refusal"],
    &["probe"],
    &["rpc"],
    &["app"],
];

/// The one place where composition reaches up, and why.
const EXCEPT: &[(&str, &str)] = &[
    // The start sequence ends by opening the operator socket.
    ("service/src/app/serve.rs", "http"),
];

fn read(path: impl AsRef<Path>) -> String {
    let path = sources().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below `directory` whose name ends so, but for what is built.
fn files(directory: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![sources().join(directory)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if name != "target" && name != ".git" {
                    open.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(sources()).unwrap_or(path).display().to_string()
}

/// The names below `[dependencies]` of a crate.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in read(manifest).lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]" || line.ends_with(".dependencies]") && line.starts_with("[target");
        } else if inside && let Some((name, _)) = line.split_once(['=', '.', ' ']) {
            names.push(name.trim().to_owned());
        }
    }
    names
}

#[test]
fn crates_depend_only_on_what_their_floor_may() {
    let ours = |manifest: &str| -> Vec<String> {
        dependencies(manifest).into_iter().filter(|name| name.starts_with("salaam")).collect()
    };
    assert_eq!(ours("core/Cargo.toml"), [] as [&str; 0]);
    assert!(ours("proto/Cargo.toml").iter().all(|name| name == "salaam-core"));
    assert_eq!(ours("sys/Cargo.toml"), [] as [&str; 0]);
    assert_eq!(ours("toolsd/launch/Cargo.toml"), [] as [&str; 0]);
    let service = ours("service/Cargo.toml");
    assert!(
        service.iter().all(|name| ["salaam-core", "salaam-proto", "salaam-sys"].contains(&name.as_str())),
        "{service:?}"
    );
    let toolsd = ours("toolsd/Cargo.toml");
    let may = ["salaam-core", "salaam-proto", "salaam-sys", "salaam-launch"];
    assert!(toolsd.iter().all(|name| may.contains(&name.as_str())), "{toolsd:?}");

    let mut launch = dependencies("toolsd/launch/Cargo.toml");
    launch.sort();
    assert!(launch.iter().all(|name| ["landlock", "nix"].contains(&name.as_str())), "{launch:?}");
    let core = dependencies("core/Cargo.toml");
    for foreign in ["tokio", "nix", "tonic", "axum", "libc", "rusqlite"] {
        assert!(!core.iter().any(|name| name == foreign), "core is pure, not {foreign}");
    }
    let proto = dependencies("proto/Cargo.toml");
    assert!(!proto.iter().any(|name| ["axum", "nix", "rusqlite"].contains(&name.as_str())), "{proto:?}");
}

#[test]
fn core_touches_nothing() {
    for path in files("core/src", ".rs") {
        let text = fs::read_to_string(&path).expect("it is there");
        for effect in
            ["std::fs", "std::net", "std::process", "std::env", "std::os", "std::thread", "SystemTime", "println!"]
        {
            assert!(!text.contains(effect), "{} uses {effect}", shown(&path));
        }
    }
}

#[test]
fn imports_point_down() {
    let mut wrong = Vec::new();
    for (source, floors) in [("service/src", SERVICE), ("toolsd/src", TOOLSD)] {
        let rank: BTreeMap<&str, usize> =
            floors.iter().enumerate().flat_map(|(n, floor)| floor.iter().map(move |name| (*name, n))).collect();
        for path in files(source, ".rs") {
            let relative = path.strip_prefix(sources().join(source)).expect("below it").to_owned();
            let first = relative.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
            let module = first.trim_end_matches(".rs").to_owned();
            if ["lib", "main"].contains(&module.as_str()) {
                continue;
            }
            let Some(own) = rank.get(module.as_str()) else {
                wrong.push(format!("{}: `{module}` is on no floor", shown(&path)));
                continue;
            };
            for used in imported(&fs::read_to_string(&path).expect("it is there")) {
                match rank.get(used.as_str()) {
                    Some(other) if *other < *own || used == module => {}
                    Some(_) if EXCEPT.contains(&(shown(&path).as_str(), used.as_str())) => {}
                    Some(_) => wrong.push(format!("{}: {module} imports {used}", shown(&path))),
                    None => {}
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The top modules that `crate::…` names in a file, in `use` lines and elsewhere, comments aside.
fn imported(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if code[..at].ends_with("$") || code[..at].ends_with('_') {
            continue;
        }
        let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut current = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        names.push(word(current.trim()));
                        current.clear();
                        continue;
                    }
                    _ => {}
                }
                if depth == 0 {
                    current.push(c);
                }
            }
            names.push(word(current.trim()));
        } else {
            names.push(word(rest));
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn every_file_begins_with_its_promise() {
    let bare: Vec<String> = files("", ".rs")
        .into_iter()
        .filter(|path| !fs::read_to_string(path).expect("it is there").starts_with("//! "))
        .map(|path| shown(&path))
        .collect();
    assert!(bare.is_empty(), "without a promise: {bare:#?}");
}

#[test]
fn unsafe_code_is_only_where_it_is_listed() {
    for path in files("", ".rs") {
        let name = shown(&path);
        if name.starts_with("sys/") || name.starts_with("toolsd/launch/") || name.starts_with("tests/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("it is there");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for (n, line) in code.enumerate() {
            assert!(!line.contains("unsafe {") && !line.contains("unsafe fn"), "{name}: {line} ({n})");
        }
    }
    for path in files("sys", ".rs").into_iter().chain(files("toolsd/launch", ".rs")) {
        let text = fs::read_to_string(&path).expect("it is there");
        let blocks = text.matches("unsafe {").count();
        let reasons = text.matches("SAFETY:").count();
        assert!(reasons >= blocks, "{}: {blocks} unsafe blocks, {reasons} reasons", shown(&path));
    }
}

#[test]
fn no_file_says_what_none_may() {
    // Put together here, so that this file passes its own test.
    let forbidden = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X:"].concat(),
        ["mile", "stone"].concat(),
        ["crates", ".io"].concat(),
        ["pypi", ".org"].concat(),
        ["registry.npmjs", ".org"].concat(),
        ["/work/", "shared"].concat(),
        ["/tmp/", "wt/"].concat(),
        ["todo", "!("].concat(),
    ];
    let mut wrong = Vec::new();
    let kinds = [".rs", ".toml", ".md", ".proto", ".py", ".sh", "run", "install", "quickstart", "campaign", ".service"];
    for path in kinds.iter().flat_map(|ending| files("", ending)) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for word in &forbidden {
            if text.contains(word.as_str()) {
                wrong.push(format!("{} says {word}", shown(&path)));
            }
        }
        if let Some(c) = text.chars().find(|c| matches!(*c as u32, 0x1f300..=0x1faff | 0x2700..=0x27bf)) {
            let in_a_test = path.to_string_lossy().ends_with(".rs");
            if !in_a_test {
                wrong.push(format!("{} has {c}", shown(&path)));
            }
        }
    }
    for path in files("", ".rs") {
        let text = fs::read_to_string(&path).expect("it is there");
        for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            let named = |kind: &str| {
                ["struct", "enum", "trait", "mod"].iter().any(|word| {
                    line.contains(&format!("{word} "))
                        && line.split_whitespace().any(|name| name.trim_end_matches(['{', ';', '(']).ends_with(kind))
                })
            };
            if ["Manager", "Helper", "Utils", "Util"].iter().any(|kind| named(kind))
                || line.contains(&["fn ", "get_"].concat())
            {
                wrong.push(format!("{}: {line}", shown(&path)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let long: Vec<String> = files("", ".rs")
        .into_iter()
        .filter_map(|path| {
            let text = fs::read_to_string(&path).expect("it is there");
            let name = shown(&path);
            // Suites are lists of promises; the rest has its inline tests at the end.
            let lines = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
            let limit = if name.contains("tests/") || name.ends_with("tests.rs") { 700 } else { 500 };
            (lines > limit).then(|| format!("{name}: {lines}"))
        })
        .collect();
    assert!(long.is_empty(), "too long: {long:#?}");
}

#[test]
fn both_units_are_the_same_but_for_whose_they_are() {
    let directives = |name: &str| -> Vec<String> {
        let lines = read(format!("systemd/{name}.service"));
        let lines = lines.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        // What names the instance.
        let own = ["Description=", "RequiresMountsFor=", "ConditionPathExists=", "User="];
        lines.map(|line| own.iter().find(|own| line.starts_with(**own)).map_or(line, |own| *own).to_owned()).collect()
    };
    assert_eq!(directives("salaam"), directives("salaam@"));
    let template = read("systemd/salaam@.service");
    for own in ["RequiresMountsFor=/var/lib/salaam-%i", "ConditionPathExists=/etc/salaam/%i.toml", "User=%i"] {
        assert!(template.contains(own), "{own}");
    }
}

#[test]
fn no_unit_implies_no_new_privileges_or_hides_workspaces_and_each_directive_has_its_reason() {
    // systemd.exec(5): for a unit with User=, each of these sets NoNewPrivileges; the last four hide workspaces.
    let forbidden = [
        "NoNewPrivileges",
        "DynamicUser",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "SystemCallArchitectures",
        "SystemCallFilter",
        "SystemCallLog",
        "PrivateTmp",
        "ProtectHome",
        "ProtectSystem",
        "ReadWritePaths",
    ];
    let units = files("systemd", ".service");
    assert!(!units.is_empty(), "a unit is shipped");
    for path in units {
        let text = fs::read_to_string(&path).expect("it is there");
        // A block of directives begins with the comment that explains it; these explain themselves.
        let plain = ["Description", "WantedBy"];
        let mut explained = false;
        for line in text.lines() {
            match line.split_once('=') {
                _ if line.starts_with('#') => explained = true,
                Some((name, _)) => {
                    assert!(!forbidden.contains(&name), "{}: {line}", shown(&path));
                    assert!(explained || plain.contains(&name), "{}: {line} has no reason", shown(&path));
                }
                None => explained = false,
            }
        }
    }
}
