//! Readers of text: tool calls, scripts, configuration, records, commands, and what is shown.

use std::path::Path;

use salaam_core::{
    command::{Command, operands},
    event::Head,
    instance::Instance,
    manifest::Manifest,
    operation::State,
    script::Script,
    show,
    tool::{self, Answer},
};
use salaam_service::host::{Config, Flags, Variables};

use super::Target;

pub(super) const TOOL: Target = Target {
    name: "tool",
    about: "arguments of a model's call",
    samples: || {
        let mut samples: Vec<Vec<u8>> = [
            r#"salaam_workspace {"action":"list","path":"src","after":"a"}"#,
            r#"salaam_workspace {"action":"read","path":"a.rs","from_line":1,"lines":200}"#,
            r#"salaam_workspace {"action":"search","pattern":"re","path":".","after":{"path":"b","line":3}}"#,
            r#"salaam_local {"action":"command","command":"cargo test","timeout_seconds":600}"#,
            r#"salaam_local {"action":"undo","operation":"op_00000000000170008000000000000000"}"#,
            r#"salaam_local {"action":"edit","edits":[{"path":"a","old":"x","new":"y","all":false}]}"#,
            r#"salaam_local {"action":"edit","edits":[{"path":"b","create":"t"},{"path":"c","create_base64":"AP8="}]}"#,
            r#"salaam_local {"action":"edit","edits":[{"path":"c","delete":true},{"path":"d","rename":"e"},{"path":"f","mode":"0755"}]}"#,
            r#"salaam_local {"action":"edit","edits":[{"path":{"base64":"/w=="},"delete":true}]}"#,
        ]
        .map(|sample| sample.as_bytes().to_vec())
        .to_vec();
        samples.push(b"bash {}".to_vec());
        samples
    },
    words: &[
        "\"action\":",
        "\"list\"",
        "\"read\"",
        "\"search\"",
        "\"command\"",
        "\"edit\"",
        "\"undo\"",
        "\"path\":",
        "\"edits\":",
        "\"old\":",
        "\"new\":",
        "\"all\":true",
        "\"create\":",
        "\"create_base64\":",
        "\"delete\":true",
        "\"rename\":",
        "\"mode\":\"4755\"",
        "\"from_line\":",
        "\"lines\":",
        "\"after\":",
        "\"timeout_seconds\":",
        "{\"base64\":\"/w==\"}",
        "salaam_local ",
        "salaam_workspace ",
        "op_",
    ],
    read: |input| {
        let text = String::from_utf8_lossy(input);
        let (name, arguments) = text.split_once(' ').unwrap_or((&text, ""));
        match tool::parse(name, arguments) {
            Ok(call) => {
                assert_eq!(tool::parse(name, arguments).as_ref(), Ok(&call), "the same call twice");
                format!("{call:?}").split([' ', '{']).next().unwrap_or_default().to_owned()
            }
            Err(error) => short_and_visible(&error.to_string()),
        }
    },
};

pub(super) const SCRIPT: Target = Target {
    name: "script",
    about: "a file of the scripted provider, and what its turns expect",
    samples: || {
        let samples = [
            r#"{"turns":[{"text":"I look first.","calls":[{"tool":"salaam_local","arguments":{"action":"command","command":"ls"}}]},{"expect":[{"call":0,"outcome":"completed","exit_code":0,"contains":"README"}],"text":"Done."}]}"#,
            r#"{"turns":[{"calls":[{"tool":"a","arguments":{}},{"tool":"b","arguments":{"x":[1,2.5,null,"y"]}}]},{"await":"message"},{"calls":[{"tool":"salaam_local","arguments":{"action":"undo","operation":"$op:0.1"}}]}]}"#,
            r#"{"turns":[{}]}"#,
        ];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "\"turns\":",
        "\"calls\":",
        "\"expect\":",
        "\"await\":\"message\"",
        "\"text\":",
        "\"tool\":",
        "\"arguments\":{}",
        "\"call\":",
        "\"outcome\":\"denied\"",
        "\"exit_code\":",
        "\"contains\":",
        "\"$op:0.0\"",
        "\"$op:0.1\"",
        "$op:",
        "{},",
    ],
    read: |input| match Script::parse(input) {
        Ok(script) => {
            let id = |turn: usize, call: usize| {
                (call % 3 != 2).then(|| salaam_core::id::OperationId::new(turn as u64, [call as u8; 10]))
            };
            let mut answer = Answer::new(State::Completed);
            answer.exit_code = Some(0);
            let mut went = String::new();
            for (number, turn) in script.turns.iter().enumerate() {
                let checked = turn.check(&vec![answer.clone(); 32]).err().map(|e| short_and_visible(&e.to_string()));
                let proposed = turn.proposed(number as u64, id);
                for call in proposed.iter().flat_map(|turn| &turn.calls) {
                    serde_json::from_str::<serde_json::Value>(&call.arguments).expect("arguments are JSON");
                    drop(tool::parse(&call.tool, &call.arguments));
                }
                went = format!("{went} {:?} {}", checked, proposed.is_ok());
            }
            went
        }
        Err(error) => short_and_visible(&error.to_string()),
    },
};

pub(super) const HOST: Target = Target {
    name: "host.toml",
    about: "the host's configuration, from a file and from the environment",
    samples: || {
        let samples = [
            "tools_user = \"salaam-tools\"\noperators_group = \"ops\"\nlocal_sandbox_read_paths = [\"toolchain\", \"/opt/x\"]\nunsandboxed_commands = \"refuse\"\n",
            "command_network = \"none\"\nprotected_paths = [\"deploy\", \".env\"]\napproval_ttl_seconds = 900\nrequired_isolation = \"tools-user-bubblewrap\"\nlandlock = \"required\"\n",
            "probe_interval_seconds = 60\n[environment]\nCI = \"1\"\n[limits]\nprocesses = 64\nmemory_bytes = 1073741824\ncommand_seconds = 60\n",
            "\u{1e}SALAAM_TOOLS_USER=x\u{1e}SALAAM_LIMITS__PROCESSES=9\u{1e}SALAAM_PROTECTED_PATHS=a:b",
        ];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "tools_user = ",
        "limits.processes = ",
        "[limits]\n",
        "[environment]\n",
        "landlock = \"if-available\"\n",
        "\u{1e}SALAAM_",
        "unsandboxed_commands = \"allow\"\n",
        "command_network = \"broker\"\n",
        "1979-05-27T07:32:00Z",
        "'''",
        "\"\"\"",
        "[[",
        "]]",
        "nan",
        "0x7f",
    ],
    read: |input| {
        let text = String::from_utf8_lossy(input);
        let mut parts = text.split('\u{1e}');
        let file = parts.next().unwrap_or_default();
        let variables: Variables =
            parts.filter_map(|part| part.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect();
        let layered = Config::layered(
            &Config::default(),
            Some((Path::new("/etc/host.toml"), file)),
            &variables,
            &Flags::default(),
        );
        match layered {
            Ok(config) => {
                assert_eq!(config.limits.validate(), Ok(()));
                let again = Config::layered(&config, None, &Variables::default(), &Flags::default());
                assert_eq!(again.map_err(|e| e.to_string()), Ok(config), "a configuration is a fixed point");
                "ok".into()
            }
            Err(error) => error.to_string(),
        }
    },
};

pub(super) const INSTANCE: Target = Target {
    name: "instance",
    about: "the instance file in /etc/salaam",
    samples: || {
        let sample = "version = 1\nservice_user = \"salaam\"\nservice_uid = 1001\ntools_user = \"salaam-tools\"\ntools_uid = 997\n\
             group = \"salaam-work\"\ngroup_gid = 995\noperators_group = \"ops\"\n[directories]\nconfig = \"/var/lib/salaam/config\"\n\
             state = \"/var/lib/salaam/state\"\nruntime = \"/var/lib/salaam/run\"\nlibexec = \"/usr/local/libexec/salaam\"\n\
             [floor]\nunsandboxed_commands = \"refuse\"\n[added]\nusers = [\"salaam\"]\nmembers = [\"salaam:salaam-work\"]\nfiles = [\"/etc/sudoers.d/salaam\"]\n";
        vec![sample.as_bytes().to_vec()]
    },
    words: &[
        "version = 2\n",
        "tools_uid = 0\n",
        "[added]\n",
        "[floor]\n",
        "directories = []",
        "\"/\"",
        "\"/../x\"",
        "\"a:b:c\"",
        "users = [",
    ],
    read: |input| match Instance::parse(&String::from_utf8_lossy(input)) {
        Ok(instance) => {
            let text = instance.to_text().expect("what was read can be written");
            assert_eq!(Instance::parse(&text).expect("and read again"), instance);
            "ok".into()
        }
        Err(error) => error.to_string(),
    },
};

pub(super) const MANIFEST: Target = Target {
    name: "manifest",
    about: "the pinned manifest",
    samples: || {
        let sample = br#"{"version":1,"mode":"tools-user","tools_user":"salaam-tools","tools_uid":997,"operators_group":null,"local_sandbox_read_paths":["/opt/x"],"local_sandbox_read_identities":{"/opt/x":"12:00"},"unsandboxed_commands":"refuse","command_network":"none","landlock":"required","protected_paths":["deploy"],"approval_ttl_seconds":900,"required_isolation":"tools-user-bubblewrap","environment":{"CI":"1"},"limits":{"processes":512,"memory_bytes":3221225472,"file_bytes":1073741824,"tmp_bytes":1073741824,"open_files":4096,"output_bytes":67108864,"workspace_growth_bytes":2147483648,"command_seconds":600,"concurrent_commands":4}}"#;
        vec![sample.to_vec()]
    },
    words: &["\"mode\":\"service-user\"", "\"limits\":", "\"environment\":{", "null", "\"processes\":"],
    read: |input| match serde_json::from_slice::<Manifest>(input) {
        // What was never pinned: a configuration with such numbers is refused before it is resolved.
        Ok(manifest) if manifest.limits.validate().is_err() || manifest.approval_ttl_seconds > u64::from(u32::MAX) => {
            "out of range".into()
        }
        Ok(manifest) => match manifest.to_canonical() {
            Ok(bytes) => {
                assert_eq!(serde_json::from_slice::<Manifest>(&bytes).expect("its own form"), manifest);
                "ok".into()
            }
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    },
};

pub(super) const JOURNAL: Target = Target {
    name: "journal",
    about: "lines of an export, verified",
    samples: || {
        let golden = include_str!("../../../core/tests/vectors.jsonl").lines();
        let values = golden.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let events: Vec<String> =
            values.filter_map(|vector| vector.get("event").and_then(|event| event.as_str()).map(Into::into)).collect();
        vec![events.join("\n").into_bytes(), events.first().cloned().unwrap_or_default().into_bytes()]
    },
    words: &["\"seq\":", "\"prev\":", "\"hash\":", "\"data\":{", "\"kind\":\"operation.result\"", "\"time\":"],
    read: |input| {
        let mut head = Head::START;
        for line in input.split(|byte| *byte == b'\n') {
            match head.follow(line) {
                Ok((next, event)) => {
                    assert_eq!(event.to_line().expect("it was canonical"), line);
                    head = next;
                }
                Err(broken) => return broken.to_string(),
            }
        }
        "verified".into()
    },
};

pub(super) const COMMAND: Target = Target {
    name: "command",
    about: "shell text and words, read for what they would run",
    samples: || {
        let samples = [
            "sh ./deploy.sh --now",
            "cd x && git -C y status; rm -r build",
            "cat <<'E'\nhello\nE",
            "FOO=1 env -i python3 -m x \"a b\" 'c'",
            "\u{1e}python3\u{1e}./run.py\u{1e}-v",
            "for f in *; do sed -i s/a/b/ \"$f\"; done | tee >(wc) 2>&1",
            "if [ -e x ]; then $(./y); fi",
        ];
        samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "&&",
        "||",
        "|",
        ";",
        "$(",
        "`",
        "<<E\n",
        "\nE\n",
        ">(",
        "\\\n",
        "sudo ",
        "bash -c ",
        "./x",
        "\u{1e}",
        "\"$(",
        "((",
        "case x in",
    ],
    read: |input| {
        let command = match input.split_first() {
            Some((0x1e, words)) => Command::argv(words.split(|byte| *byte == 0x1e).map(Into::into).collect()),
            Some(_) | None => Command::shell(String::from_utf8_lossy(input).into_owned()),
        };
        match command {
            Ok(command) => {
                visible(&command.display());
                let found = operands(&command);
                format!("{:?} {}", command.flags(), found.found.len())
            }
            Err(error) => error.to_string(),
        }
    },
};

pub(super) const SHOWN: Target = Target {
    name: "shown",
    about: "anything that is printed on a terminal, and answers that are cut",
    samples: || {
        let samples: [&[u8]; 4] = [
            b"plain text\n",
            b"\x1b]52;c;eA==\x07\x1b]8;;http://x\x1b\\",
            "\u{202e}\u{200b}\u{2066}\u{e0041}\u{feff}".as_bytes(),
            b"\xff\x9b31m\r\x08",
        ];
        samples.map(Into::into).to_vec()
    },
    words: &["\u{1b}[", "\u{9b}", "\u{2028}", "\u{3164}", "                    ", "\u{a0}"],
    read: |input| {
        let line = show::line(input);
        assert!(!line.chars().any(show::is_hidden));
        visible(&show::block(input));
        visible(&show::excerpt(input, 80));
        assert!(show::excerpt(input, 80).chars().count() <= 81);
        // Long enough to be cut.
        let text = String::from_utf8_lossy(input).repeat(1 + 20_000 / input.len().max(1));
        let answer = Answer { stdout: text.clone(), stderr: text, ..Answer::new(State::Completed) };
        let json = answer.to_json();
        assert!(json.len() <= tool::MAX_ANSWER_BYTES);
        serde_json::from_str::<serde_json::Value>(&json).expect("an answer is JSON");
        format!("{} {}", show::is_plain(input), answer.cut().truncated)
    },
};

/// What reaches a terminal: line feeds and tabs are the only controls.
pub(super) fn visible(text: &str) {
    assert!(!text.chars().any(|c| show::is_hidden(c) && c != '\n' && c != '\t'), "{text:?}");
}

/// What a model or an operator is told about hostile input.
pub(super) fn short_and_visible(said: &str) -> String {
    assert!(said.len() < 4096 && !said.chars().any(show::is_hidden), "{said:?}");
    said.to_owned()
}
