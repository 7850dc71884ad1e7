//! Who may what: a third account, the tools account, a member of the operators group, the service account and root,
//! each really trying every file, process, socket and verb. The tables below are whole: what is not in them is not
//! there, and a new verb of the interface is tried as soon as it is served.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use salaam_tests::{Account, Host, Pair, Ran, eventually, host::sources, limit, pair::text, ran};
use serde_json::Value;

/// Who tries, in the order of the columns.
fn accounts(host: &Host) -> [Account; 5] {
    [host.stranger.clone(), host.tools.clone(), host.operator.clone(), host.service.clone(), Account::root()]
}

const COLUMNS: [&str; 5] = ["third", "tools", "operator", "service", "root"];

/// Asserts a table whole and prints it.
#[track_caller]
fn whole(found: &[(String, [String; 5])], expected: &[(&str, [&str; 5])]) {
    println!("{:<46}{}", "", COLUMNS.map(|name| format!("{name:<12}")).concat());
    for (what, cells) in found {
        println!("{what:<46}{}", cells.each_ref().map(|cell| format!("{cell:<12}")).concat());
    }
    let shown: Vec<String> = found.iter().map(|(what, cells)| format!("{what}: {}", cells.join(" "))).collect();
    let wanted: Vec<String> = expected.iter().map(|(what, cells)| format!("{what}: {}", cells.join(" "))).collect();
    let differs: Vec<_> = shown.iter().zip(&wanted).filter(|(shown, wanted)| shown != wanted).collect();
    assert!(differs.is_empty(), "found, expected: {differs:#?}");
    assert_eq!(shown.len(), wanted.len());
}

/// What each may do with a path: `r`ead or list, `w`rite or create in it, `-` nothing.
fn of_file(host: &Host, path: &Path) -> [String; 5] {
    let script = r#"
if [ -d "$1" ]; then
    ls "$1" >/dev/null 2>&1 && printf r
    (: >"$1/.who-$$") 2>/dev/null && { printf w; rm "$1/.who-$$"; }
else
    head -c 1 "$1" >/dev/null 2>&1 && printf r
    (: >>"$1") 2>/dev/null && printf w
fi
printf ' '"#;
    accounts(host).map(|account| {
        let ran = Ran::of(account.command("sh").args(["-c", script, "sh"]).arg(path));
        let may = ran.out().trim().to_owned();
        if may.is_empty() { "-".into() } else { may }
    })
}

#[test]
fn every_file_of_an_instance_is_open_to_those_who_need_it_and_to_nobody_else() {
    let _turn = limit!(180);
    let pair = Pair::started(Host::shared());
    pair.configure("");
    pair.run(&["sh", "-c", "echo kept; echo work >file"]).ok();
    let blob =
        fs::read_dir(pair.state.join("blobs")).expect("root may").flatten().next().expect("output was kept").path();
    let home = PathBuf::from(format!("/var/lib/{}", pair.host.tools.name));
    let libexec = pair.host.libexec();
    let state = |name: &str| pair.state.join(name);
    let closed = ["-", "-", "-", "rw", "rw"];
    let table: Vec<(&str, PathBuf, [&str; 5])> = vec![
        ("CONFIG", pair.config.clone(), closed),
        ("CONFIG/host.toml", pair.config.join("host.toml"), closed),
        ("CONFIG/manifest.json", pair.config.join("manifest.json"), closed),
        ("STATE", pair.state.clone(), closed),
        ("STATE/salaam.db", state("salaam.db"), closed),
        ("STATE/salaam.db-wal", state("salaam.db-wal"), closed),
        ("STATE/salaam.db-shm", state("salaam.db-shm"), closed),
        ("STATE/lock", state("lock"), closed),
        ("STATE/blobs", state("blobs"), closed),
        ("STATE/blobs/…", blob, closed),
        ("STATE/log", state("log"), closed),
        ("STATE/log/service.log", state("log/service.log"), closed),
        // An operator passes through it to the socket, and sees nothing else.
        ("RUNTIME", pair.runtime.clone(), closed),
        ("a workspace", pair.workspace.clone(), ["-", "rw", "-", "rw", "rw"]),
        ("a file that a command made", pair.workspace.join("file"), ["-", "rw", "-", "rw", "rw"]),
        ("the tools user's home", home, ["r", "r", "r", "r", "rw"]),
        ("/etc/salaam", "/etc/salaam".into(), ["r", "r", "r", "r", "rw"]),
        ("/etc/salaam/SERVICE.toml", pair.host.instance(), ["r", "r", "r", "r", "rw"]),
        ("/etc/sudoers.d/salaam-UID", pair.host.sudoers(), ["-", "-", "-", "-", "rw"]),
        ("PREFIX/bin/salaam", pair.host.salaam(), ["r", "r", "r", "r", "rw"]),
        ("LIBEXEC", libexec.clone(), ["r", "r", "r", "r", "rw"]),
        // Executable and not readable: the kernel then lets nobody trace it.
        ("LIBEXEC/salaam-toolsd", libexec.join("salaam-toolsd"), ["-", "-", "-", "-", "rw"]),
        ("LIBEXEC/salaam-launch", libexec.join("salaam-launch"), ["-", "-", "-", "-", "rw"]),
    ];
    pair.stop().ok();
    // Text that is being run cannot be written, by root either; and the log is made by a detached start.
    let found: Vec<_> = table.iter().map(|(name, path, _)| ((*name).to_owned(), of_file(pair.host, path))).collect();
    // A database that was closed has no log of its own beside it.
    let absent = |name: &str| name.ends_with("-wal") || name.ends_with("-shm");
    let found: Vec<_> = found.into_iter().filter(|(name, _)| !absent(name)).collect();
    let expected: Vec<_> = table.iter().map(|(name, _, may)| (*name, *may)).filter(|(name, _)| !absent(name)).collect();
    for (name, path, _) in table.iter().filter(|(name, ..)| !absent(name)) {
        assert!(path.exists(), "{name}: there is no {}", path.display());
    }
    whole(&found, &expected);
    // While it runs the log and the shared memory of the database are there, too.
    pair.start().ok();
    pair.run(&["true"]).ok();
    for name in ["salaam.db-wal", "salaam.db-shm", "salaam.db"] {
        let [third, tools, operator, ..] = of_file(pair.host, &state(name));
        assert_eq!([third, tools, operator], ["-", "-", "-"], "{name}");
    }
}

#[test]
fn no_process_of_an_instance_is_open_to_another_account_or_to_its_own() {
    let _turn = limit!(120);
    let pair = Pair::started(Host::shared());
    let running = pair.run_started(&[], &["sleep", "60"]);
    let command = eventually("a command runs", std::time::Duration::from_secs(10), || {
        pair.commands().into_iter().find(|process| process.name == "sleep")
    });
    let processes = [
        ("service", pair.service_process().expect("it runs").pid),
        ("executor", pair.executors().pop().expect("it runs").pid),
        ("sudo", pair.sudo_process().expect("it runs").pid),
        ("command", command.pid),
    ];
    let script = r#"
case $1 in
    */fd) ls "$1"/ >/dev/null 2>&1 && printf r;;
    */mem) dd if="$1" of=/dev/null bs=1 count=0 2>/dev/null && printf r;;
    kill) kill -0 "$2" 2>/dev/null && printf k;;
    *) head -c 1 "$1" >/dev/null 2>&1 && printf r;;
esac
printf ' '"#;
    let mut found = Vec::new();
    for (name, pid) in processes {
        for part in ["environ", "mem", "fd", "maps", "kill"] {
            let path = if part == "kill" { "kill".to_owned() } else { format!("/proc/{pid}/{part}") };
            let cells = accounts(pair.host).map(|account| {
                let ran = Ran::of(account.command("sh").args(["-c", script, "sh", &path, &pid.to_string()]));
                let may = ran.out().trim().to_owned();
                if may.is_empty() { "-".to_owned() } else { may }
            });
            found.push((format!("{name} {part}"), cells));
        }
    }
    let nobody = ["-", "-", "-", "-", "r"];
    let mut expected: Vec<(&str, [&str; 5])> = Vec::new();
    for rows in [
        ["service environ", "service mem", "service fd", "service maps"],
        ["executor environ", "executor mem", "executor fd", "executor maps"],
        ["sudo environ", "sudo mem", "sudo fd", "sudo maps"],
        ["command environ", "command mem", "command fd", "command maps"],
    ] {
        // A command is the tools account's own; what stands before its exec (launch) is not, and what other commands
        // may do to it is another suite's question (`escape`).
        let may = if rows[0].starts_with("command") { ["-", "r", "-", "-", "r"] } else { nobody };
        expected.extend(rows.map(|row| (row, may)));
        expected.push(match rows[0] {
            "service environ" => ("service kill", ["-", "-", "-", "k", "k"]),
            "executor environ" => ("executor kill", ["-", "k", "-", "-", "k"]),
            // The real uid of sudo is its caller's: TERM is what ends an executor that hangs.
            "sudo environ" => ("sudo kill", ["-", "-", "-", "k", "k"]),
            _ => ("command kill", ["-", "k", "-", "-", "k"]),
        });
    }
    whole(&found, &expected);
    ran::run(&["kill", "-KILL", &command.pid.to_string()]);
    running.wait(std::time::Duration::from_secs(20));
}

/// Every verb that the running service describes, once each, with ids that name nothing.
fn verbs(pair: &Pair) -> Vec<(String, String)> {
    let contract = pair.http("GET", "/v1/openapi.json", None).json();
    let paths = contract["paths"].as_object().expect("a map").clone();
    let id = "0190000000007000800000000000dead";
    let mut verbs = Vec::new();
    for (path, methods) in paths {
        let kind = ["workspaces", "sessions", "approvals", "operations"].iter().find(|kind| path.contains(*kind));
        let prefix = match kind.copied() {
            Some("workspaces") => "ws_",
            Some("sessions") => "ses_",
            Some("approvals") => "ap_",
            Some(_) => "op_",
            None => "",
        };
        let target = path.replace("{id}", &format!("{prefix}{id}")).replace("{name}", "no-such");
        for method in methods.as_object().expect("a map").keys() {
            verbs.push((method.to_uppercase(), target.clone()));
        }
    }
    // What takes no new operations for a while comes last.
    verbs.sort_by_key(|(_, path)| path.ends_with("/drain"));
    verbs
}

/// What each account is answered to each verb: `admitted`, the errno of connect(2), or the refusal.
fn answers(pair: &Pair, verbs: &[(String, String)]) -> Vec<(String, [String; 5])> {
    let input: String = verbs.iter().map(|(method, path)| format!("{method} {path} {{}}\n")).collect();
    let columns = accounts(pair.host).map(|account| {
        // The script lies in a checkout that need not be everybody's to read.
        let script = fs::read_to_string(sources().join("tests/host/ask.py")).expect("it is there");
        let mut command = account.command("/usr/bin/python3");
        command.args(["-c", &script]).arg(pair.socket());
        let ran = Ran::with_input(&mut command, input.as_bytes(), std::time::Duration::from_secs(120)).ok();
        ran.out().lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let cell = |answer: &str| match answer.split_once(' ') {
        Some(("401" | "403", id)) => id.to_owned(),
        // Whatever is wrong with the request itself is said to somebody who may ask.
        Some((status, _)) if status.starts_with(['2', '4']) => "admitted".to_owned(),
        Some(_) | None => answer.to_owned(),
    };
    let row = |n: usize| columns.each_ref().map(|column| cell(column.get(n).map_or("no answer", String::as_str)));
    verbs.iter().enumerate().map(|(n, (method, path))| (format!("{method} {}", short(path)), row(n))).collect()
}

fn short(path: &str) -> String {
    path.split('/').map(|part| if part.ends_with("dead") { "{id}" } else { part }).collect::<Vec<_>>().join("/")
}

#[test]
fn every_verb_of_the_socket_is_for_the_service_user_root_and_the_operators() {
    let _turn = limit!(180);
    let pair = Pair::started(Host::shared());
    let verbs = verbs(&pair);
    assert!(verbs.len() >= 22, "{verbs:?}");
    let found = answers(&pair, &verbs);
    let operators = ["EACCES", "EACCES", "admitted", "admitted", "admitted"];
    let expected: Vec<_> = found.iter().map(|(what, _)| (what.as_str(), operators)).collect();
    whole(&found, &expected);

    // The door is not the only wall: were it left open, each is still asked who it is.
    fs::set_permissions(&pair.runtime, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::set_permissions(pair.socket(), fs::Permissions::from_mode(0o666)).expect("it is ours");
    let found = answers(&pair, &verbs);
    let refused = ["not-an-operator", "not-an-operator", "admitted", "admitted", "admitted"];
    let expected: Vec<_> = found.iter().map(|(what, _)| (what.as_str(), refused)).collect();
    whole(&found, &expected);
}

/// Every verb that the program's own help shows, with the one below it where there is one.
fn commands(salaam: &Path) -> Vec<String> {
    let below = |words: &[&str]| -> Vec<String> {
        let help = Ran::of(Command::new(salaam).args(words).arg("--help")).ok().out();
        let listed = help.split_once("Commands:\n").map(|(_, after)| after.to_owned()).unwrap_or_default();
        let names = listed.lines().take_while(|line| line.starts_with("  "));
        // A continued description begins further in.
        names
            .filter(|line| !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    let mut all = Vec::new();
    for verb in below(&[]) {
        let verbs = below(&[&verb]);
        if verbs.is_empty() {
            all.push(verb);
        } else {
            all.extend(verbs.into_iter().map(|second| format!("{verb} {second}")));
        }
    }
    all
}

#[test]
fn every_verb_of_the_command_line_says_to_a_stranger_who_it_is_and_what_to_do() {
    let _turn = limit!(300);
    let pair = Pair::started(Host::shared());
    let operation = text(&pair.result(&[], &["true"]), "operation");
    let workspace = pair.workspace.display().to_string();
    let session = text(&pair.operation(&operation), "session");
    let nothing = ["3", "3", "4", "4", "4"];
    let members = ["3", "3", "0", "0", "0"];
    let no_such = "op_0190000000007000800000000000dead";
    let no_session = "ses_0190000000007000800000000000dead";
    let no_approval = "ap_0190000000007000800000000000dead";
    // Reading the journal behind the service's back is the service user's, and only while nothing runs.
    let table: Vec<(&str, Vec<&str>, [&str; 5])> = vec![
        ("health", vec!["health"], members),
        ("service status", vec!["service", "status"], members),
        ("doctor", vec!["doctor"], members),
        ("workspace list", vec!["workspace", "list"], members),
        ("workspace show", vec!["workspace", "show", &workspace], members),
        ("workspace add", vec!["workspace", "add", "/etc"], ["3", "3", "3", "3", "3"]),
        ("workspace remove", vec!["workspace", "remove", "/nowhere"], nothing),
        ("session list", vec!["session", "list"], members),
        ("session show", vec!["session", "show", &session], members),
        ("session create", vec!["session", "create", "--workspace", "/nowhere", "--in-place", "x"], nothing),
        ("session message", vec!["session", "message", no_session, "x"], nothing),
        ("session cancel", vec!["session", "cancel", no_session], nothing),
        ("session reconcile", vec!["session", "reconcile", no_session, no_such, "--verdict", "no-effect"], nothing),
        ("session undo", vec!["session", "undo", no_session, no_such, "--yes"], nothing),
        ("approval list", vec!["approval", "list"], members),
        ("approvals", vec!["approvals"], members),
        ("approval show", vec!["approval", "show", no_approval], nothing),
        ("approval grant", vec!["approval", "grant", no_approval, "--binding", "0123456789ab"], nothing),
        ("approval deny", vec!["approval", "deny", no_approval], nothing),
        ("operation list", vec!["operation", "list"], members),
        ("operation show", vec!["operation", "show", &operation], members),
        ("operation output", vec!["operation", "output", &operation], members),
        ("operation cancel", vec!["operation", "cancel", no_such], nothing),
        ("journal list", vec!["journal", "list"], members),
        ("journal show", vec!["journal", "show", "1"], members),
        ("journal verify", vec!["journal", "verify"], members),
        ("journal export", vec!["journal", "export"], members),
        ("run", vec!["run", "--yes", "--workspace", &workspace, "--", "true"], ["125", "125", "0", "0", "0"]),
        ("host plan", vec!["host", "plan"], ["2", "2", "2", "0", "2"]),
        (
            "host setup --undo",
            vec!["host", "setup", "--undo", "--service-user", "nobody-at-all"],
            ["3", "3", "3", "3", "4"],
        ),
        ("service start", vec!["service", "start"], ["3", "3", "3", "3", "3"]),
    ];
    let mut found = Vec::new();
    let mut told: BTreeMap<&str, Ran> = BTreeMap::new();
    let known = |verb: &String| {
        table.iter().any(|(name, ..)| name.starts_with(verb.as_str())) || LATER.contains(&verb.as_str())
    };
    let unknown: Vec<_> = commands(&pair.host.salaam()).into_iter().filter(|verb| !known(verb)).collect();
    assert_eq!(unknown, [] as [String; 0], "verbs that are not in the table");
    for (name, words, _) in &table {
        let cells = accounts(pair.host).map(|account| {
            let ran = pair.salaam_as(&account, words);
            let code = ran.code.map_or("signal".into(), |code| code.to_string());
            if account == pair.host.stranger {
                told.insert(name, ran);
            }
            code
        });
        found.push(((*name).to_owned(), cells));
    }
    let expected: Vec<_> = table.iter().map(|(name, _, may)| (*name, *may)).collect();
    whole(&found, &expected);
    for (name, ran) in told
        .iter()
        .filter(|(name, _)| !["service status", "host plan", "host setup --undo", "service start"].contains(*name))
    {
        let (stranger, service) = (&pair.host.stranger, &pair.host.service);
        for part in [&stranger.name, &service.name, &stranger.uid.to_string(), &service.uid.to_string()] {
            assert!(ran.says(part), "{name} does not say {part}: {ran}");
        }
        assert!(ran.says(&format!("usermod -aG {}", pair.host.name("ops"))) || ran.says("usermod"), "{name}: {ran}");
    }
    // Last, because it ends it: it is a signal to the process, which is the account's own and root's to send.
    let stop = |account: &Account| pair.salaam_as(account, &["service", "stop"]).code;
    let [third, tools, operator, service, root] = accounts(pair.host);
    assert_eq!([third, tools, operator].map(|account| stop(&account)), [Some(3); 3]);
    assert!(pair.service_process().is_some());
    assert_eq!((stop(&root), stop(&service)), (Some(0), Some(6)));
}

/// The end of the service stands below the table; a follower does not end.
const LATER: &[&str] = &["service stop", "journal follow", "approval watch", "session follow"];

/// What a command of the model's may reach of all that, in the sandbox: nothing.
#[test]
fn a_sandboxed_command_reaches_none_of_it() {
    let _turn = limit!(60);
    let pair = Pair::started(Host::shared());
    let service = pair.service_process().expect("it runs").pid;
    let executor = pair.executors().pop().expect("it runs").pid;
    let paths = [
        pair.config.clone(),
        pair.state.clone(),
        pair.state.join("salaam.db"),
        pair.runtime.clone(),
        pair.socket(),
        pair.host.instance(),
        "/etc/sudoers".into(),
        "/etc/sudoers.d".into(),
        "/etc/shadow".into(),
        pair.host.service.home.clone(),
        format!("/proc/{service}").into(),
        format!("/proc/{executor}").into(),
        "/run/dbus/system_bus_socket".into(),
    ];
    let script = r#"for path; do ls -d "$path" >/dev/null 2>&1 && echo "$path"; done; exit 0"#;
    let mut words = vec!["sh".to_owned(), "-c".into(), script.into(), "sh".into()];
    words.extend(paths.iter().map(|path| path.display().to_string()));
    // Outside, root sees them, so that they are there to be missed.
    let seen = Ran::of(Command::new("sh").args(&words[1..])).out();
    assert!(seen.lines().count() >= 10, "{seen}");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ran = pair.run(&words).ok();
    let seen: Vec<String> = ran.out().lines().map(str::to_owned).collect();
    assert_eq!(seen, [] as [String; 0], "{ran}");
    let health: Value = pair.health();
    assert_eq!(health["status"], "ok");
}

/// H5: in service-user mode the commands are of the daemon's own account, and the sandbox is the only wall.
#[test]
fn in_service_user_mode_a_command_finds_no_environment_and_no_memory_of_the_daemon() {
    let _turn = limit!(90);
    let host = Host::shared();
    let dev = &host.stranger;
    let (project, runtime) = (dev.home.join("h5-project"), dev.home.join("h5-runtime"));
    for path in [&project, &runtime] {
        fs::create_dir(path).expect("it is new");
        salaam_tests::host::chown(path, &format!("{0}:{0}", dev.name));
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("it is ours");
    }
    let salaam = |words: &[&str]| {
        let mut command = dev.command(host.salaam());
        command.args(words).env("XDG_RUNTIME_DIR", &runtime).env("DEMO_API_KEY", "tok_demo_h5").current_dir(&project);
        Ran::of(&mut command)
    };
    salaam(&["service", "start"]).ok();
    salaam(&["workspace", "add", &project.display().to_string()]).ok();
    let health = salaam(&["health", "--json"]).ok().json();
    assert_eq!(health["tool_execution"]["mode"], "service-user");
    let service = health["service_pid"].to_string();
    let look = "cat /proc/*/environ /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n' | grep DEMO_API_KEY
        cat /proc/*/maps 2>/dev/null | grep -c /bin/salaam; ls -d /proc/[0-9]* | wc -l; exit 0";
    // Outside the sandbox root finds both, so that they are there to be found.
    let outside = Ran::of(Command::new("sh").args(["-c", look])).ok().out();
    assert!(outside.contains("tok_demo_h5") && !outside.contains("\n0\n"), "{outside}");
    // The account itself does not, even outside: the daemon is not dumpable.
    let own = Ran::of(dev.command("head").args(["-c", "1", &format!("/proc/{service}/environ")]));
    assert_ne!(own.code, Some(0), "{own}");
    let inside = salaam(&["run", "--yes", "--", "sh", "-c", look]).ok().out();
    let seen: Vec<&str> = inside.lines().collect();
    assert_eq!(seen.len(), 2, "no key: {inside}");
    assert_eq!(seen[0], "0", "nothing of the daemon's is mapped in a process that can be seen");
    assert!(seen[1].parse::<u32>().expect("a number") < 10, "only its own processes: {inside}");
    salaam(&["service", "stop"]).ok();
}
