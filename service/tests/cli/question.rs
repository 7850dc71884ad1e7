//! `salaam run` on a terminal: a pseudo-terminal that is the program's controlling one.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    fake::{Fake, approval, result, workspaces},
    salaam,
};

/// What the pseudo-terminal shows, as it comes.
struct Person {
    tty: File,
    seen: mpsc::Receiver<Vec<u8>>,
    screen: String,
    child: Child,
}

impl Person {
    /// Runs `words` on a terminal of its own; `before` is typed before it starts.
    fn sitting(fake: &Fake, words: &[&str], before: &str) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut tty = File::from(pty.master);
        tty.write_all(before.as_bytes()).unwrap();
        let plain = salaam(fake);
        // setsid(1) makes the terminal on its standard input the controlling one.
        let mut command = Command::new("setsid");
        command.args(["-c", "-w"]).arg(plain.get_program()).args(words).env_clear().current_dir("/");
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let slave = File::from(pty.slave);
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().unwrap();
        drop(command);
        let mut reading = tty.try_clone().unwrap();
        let (tell, seen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = reading.read(&mut piece) {
                if tell.send(piece[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { tty, seen, screen: String::new(), child }
    }

    fn sees(&mut self, what: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.screen.contains(what) {
            let left = until.saturating_duration_since(Instant::now());
            match self.seen.recv_timeout(left) {
                Ok(piece) => self.screen += &String::from_utf8_lossy(&piece),
                Err(why) => panic!("never saw {what}: {why}: {}", self.screen),
            }
        }
    }

    fn types(&mut self, what: &str) {
        self.tty.write_all(what.as_bytes()).unwrap();
    }

    /// Its exit code, and all that was shown.
    fn ends(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        while let Ok(piece) = self.seen.recv_timeout(Duration::from_millis(300)) {
            self.screen += &String::from_utf8_lossy(&piece);
        }
        (code, self.screen)
    }
}

const GRANT: &str = "POST /v1/approvals/ap_00000000000070008000000000000001/grant";
const DENY: &str = "POST /v1/approvals/ap_00000000000070008000000000000001/deny";

/// A service that waits for a decision for as long as `patience`, then ends the operation.
fn waiting(shown: Value, patience: Duration) -> Fake {
    let (tell, told) = mpsc::channel::<&str>();
    let (tell, told) = (std::sync::Mutex::new(tell), std::sync::Mutex::new(told));
    Fake::serving(move |asked, reply| match asked.what.as_str() {
        "GET /v1/workspaces" => reply.json(200, &workspaces("/".as_ref())),
        "POST /v1/operations" => {
            reply.begin();
            reply.line(&json!({"approval": shown}));
            let (state, code) = match told.lock().unwrap().recv_timeout(patience) {
                Ok("grant") => ("completed", Some(0)),
                Ok(_) => ("denied", None),
                Err(_) => ("expired", None),
            };
            if code.is_some() {
                // A title-setting escape, and a character split over two pieces.
                reply.line(&json!({"output": {"stream": "stdout", "base64": "G10wO3gHb3V04g=="}}));
                reply.line(&json!({"output": {"stream": "stdout", "base64": "gqw="}}));
            }
            reply.line(&result(state, code, None));
        }
        GRANT => {
            tell.lock().unwrap().send("grant").unwrap();
            reply.json(200, &Value::Null);
        }
        DENY => {
            tell.lock().unwrap().send("deny").unwrap();
            reply.json(200, &Value::Null);
        }
        other => panic!("unexpected {other}"),
    })
}

const PATIENCE: Duration = Duration::from_secs(30);
const QUESTION: &str = "Type the first 4 digits";

#[test]
fn the_digits_of_the_binding_grant_all_of_it_and_output_is_escaped() {
    let shown = approval(&["rm", "\u{202e}x", "\u{1b}[2K"]);
    let binding = shown["binding"].as_str().unwrap().to_owned();
    let fake = waiting(shown, PATIENCE);
    let mut person = Person::sitting(&fake, &["run", "--", "rm"], "");
    person.sees(QUESTION);
    person.sees(&binding);
    person.types(&format!("{}\n", &binding[..4]));
    let (code, screen) = person.ends();
    assert_eq!(code, Some(0), "{screen}");
    assert_eq!(fake.wait_for(GRANT).body, json!({"binding": binding}));
    assert!(screen.contains("'\\u{202e}x' '\\e[2K'") && !screen.contains('\u{1b}'), "{screen:?}");
    assert!(screen.contains("\\e]0;x\\u{7}out€"), "{screen:?}");
}

#[test]
fn what_was_typed_ahead_answers_nothing() {
    let shown = approval(&["true"]);
    let digits = shown["binding"].as_str().unwrap()[..4].to_owned();
    let fake = waiting(shown, PATIENCE);
    let mut person = Person::sitting(&fake, &["run", "--", "true"], &format!("{digits}\nn\n"));
    person.sees(QUESTION);
    std::thread::sleep(Duration::from_millis(500));
    assert!(fake.asked().iter().all(|asked| asked.what != GRANT && asked.what != DENY));
    person.types("n\n");
    let (code, screen) = person.ends();
    fake.wait_for(DENY);
    assert_eq!(code, Some(125), "{screen}");
    assert!(screen.contains("denied"), "{screen}");
}

#[test]
fn end_of_input_and_wrong_digits_decide_nothing() {
    let shown = approval(&["true"]);
    let line = format!("--binding {}", shown["binding"].as_str().unwrap());
    for typed in [&["\u{4}"][..], &["yes\n", "y\n", "\n"]] {
        let fake = waiting(shown.clone(), Duration::from_secs(2));
        let mut person = Person::sitting(&fake, &["run", "--", "true"], "");
        for word in typed {
            person.sees(QUESTION);
            person.screen.clear();
            person.types(word);
            std::thread::sleep(Duration::from_millis(100));
        }
        person.sees(&line);
        let (code, screen) = person.ends();
        assert!(fake.asked().iter().all(|asked| asked.what != GRANT && asked.what != DENY));
        assert_eq!(code, Some(125), "{screen}");
        assert!(screen.contains("expired"), "{screen}");
    }
}

#[test]
fn a_decision_made_elsewhere_ends_the_question() {
    let fake = waiting(approval(&["true"]), Duration::from_millis(500));
    let mut person = Person::sitting(&fake, &["run", "--", "true"], "");
    person.sees(QUESTION);
    let (code, screen) = person.ends();
    assert_eq!(code, Some(125), "{screen}");
}

#[test]
fn watch_asks_each_open_question_once() {
    let shown = approval(&["true"]);
    let binding = shown["binding"].as_str().unwrap().to_owned();
    let fake = Fake::serving(move |asked, reply| match asked.what.as_str() {
        "GET /v1/approvals" => reply.json(200, &json!({"approvals": [shown]})),
        GRANT => reply.json(200, &Value::Null),
        other => panic!("unexpected {other}"),
    });
    let mut person = Person::sitting(&fake, &["approval", "watch"], "");
    person.sees(QUESTION);
    person.types(&format!("{}\n", &binding[..4]));
    person.sees("granted ap_00000000000070008000000000000001");
    assert_eq!(fake.wait_for(GRANT).body, json!({"binding": binding}));
    person.screen.clear();
    let before = fake.asked().len();
    while fake.asked().len() < before + 2 {
        std::thread::sleep(Duration::from_millis(50));
    }
    person.types("\u{3}");
    let (code, screen) = person.ends();
    assert!(code != Some(0) && !screen.contains(QUESTION), "{screen}");
}
