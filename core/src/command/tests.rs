//! Commands as they are proposed, and the words of them that are bound.

use super::*;

fn argv(words: &[&str]) -> Command {
    Command::argv(words.iter().map(|w| w.as_bytes().to_vec()).collect()).unwrap()
}

fn found(command: &Command) -> Vec<String> {
    operands(command).found.into_iter().map(|o| String::from_utf8(o.path).unwrap()).collect()
}

#[test]
fn scripts_and_programs_by_path_are_found_and_data_files_are_not() {
    for (words, expected) in [
        (&["sh", "./deploy.sh", "x"][..], &["./deploy.sh"][..]),
        (&["bash", "-eux", "-o", "pipefail", "run.sh"], &["run.sh"]),
        (&["bash", "-c", "echo hi", "x.sh"], &[]),
        (&["sh", "-c", "sh x.sh && ./y", "z"], &["x.sh", "./y"]),
        (&["env", "bash", "-e", "-xc", ". ./env.sh"], &["./env.sh"]),
        (&["bash", "-ec", "echo hi"], &[]),
        (&["python3.11", "-W", "error", "tool.py", "data.json"], &["tool.py"]),
        (&["/usr/bin/python3", "-m", "pytest"], &["/usr/bin/python3"]),
        (&["./configure", "--prefix=/x"], &["./configure"]),
        (&["env", "-i", "A=1", "timeout", "-s", "KILL", "5", "nice", "sh", "a.sh"], &["a.sh"]),
        (&["sed", "-i", "s/a/b/", "f"], &[]),
        (&["node", "--", "server.js"], &["server.js"]),
        (&["make", "-f", "build.mk", "all"], &["build.mk"]),
        (&["cat", "deploy.sh"], &[]),
    ] {
        assert_eq!(found(&argv(words)), expected, "{words:?}");
    }
}

#[test]
fn shell_text_is_read_for_its_operands() {
    for (text, expected, unseen, compound) in [
        ("sh ./deploy.sh", &["./deploy.sh"][..], false, false),
        ("A=1 sh './my script.sh'", &["./my script.sh"], false, false),
        ("git status && ./run.sh | tee log", &["./run.sh"], false, true),
        ("cd sub && ./run.sh", &[], true, true),
        ("cd sub; /srv/ws/run.sh", &["/srv/ws/run.sh"], false, true),
        ("$TOOL x", &[], true, true),
        ("sh < in.sh", &["in.sh"], false, true),
        (". ./env.sh\nmake", &["./env.sh"], false, true),
        ("if ./check.sh; then ./fix.sh; fi", &["./check.sh", "./fix.sh"], false, true),
        ("echo 'sh x.sh' # sh y.sh", &[], false, false),
        ("echo \"a;b\"", &[], false, false),
        ("eval ./x.sh", &[], true, false),
        ("sh x.sh 2>err", &["x.sh"], false, true),
    ] {
        let command = Command::shell(text.into()).unwrap();
        assert_eq!(found(&command), expected, "{text}");
        assert_eq!(operands(&command).unseen, unseen, "{text}");
        assert_eq!(command.flags().contains(&"compound"), compound, "{text}");
    }
}

#[test]
fn too_many_operands_are_unseen_not_dropped_in_silence() {
    let text = (0..=Operands::MOST).map(|i| format!("./s{i}")).collect::<Vec<_>>().join(";");
    let all = operands(&Command::shell(text).unwrap());
    assert_eq!((all.found.len(), all.unseen), (Operands::MOST, true));
}

#[test]
fn every_limit_has_its_refusal() {
    assert_eq!(Command::argv(vec![]), Err(CommandError::Empty));
    assert_eq!(Command::argv(vec![vec![]]), Err(CommandError::Empty));
    assert_eq!(Command::shell(" \n\t".into()), Err(CommandError::Empty));
    assert_eq!(Command::argv(vec![b"a".to_vec(), b"b\0".to_vec()]), Err(CommandError::Nul(1)));
    let long = vec![b'x'; MAX_ARGUMENT_BYTES];
    assert!(Command::argv(vec![long.clone()]).is_ok());
    assert!(matches!(
        Command::argv(vec![[long.as_slice(), b"x"].concat()]),
        Err(CommandError::ArgumentTooLong { index: 0, .. })
    ));
    assert!(matches!(Command::argv(vec![vec![b'x'; 1000]; 1600]), Err(CommandError::ArgvTooLong(_))));
    assert!(matches!(Command::argv(vec![vec![b'x']; MAX_ARGUMENTS + 1]), Err(CommandError::TooMany(_))));
    assert!(Command::shell("x".repeat(MAX_SHELL_BYTES)).is_ok());
    assert!(matches!(Command::shell("x".repeat(MAX_SHELL_BYTES + 1)), Err(CommandError::ShellTooLong(_))));
}

#[test]
fn the_display_is_whole_and_shows_word_borders() {
    assert_eq!(argv(&["echo", "a b", "it's", ""]).display(), "echo 'a b' 'it'\\''s' ''");
    let hidden = argv(&["echo", "\u{202e}x"]);
    assert_eq!(hidden.display(), "echo '\\u{202e}x'");
    assert_eq!(hidden.flags(), ["hidden-characters"]);
}
