//! `salaam journal …`
//!
//! A running service is asked for its events; only `verify` and `export` of a stopped one read the state
//! directory, and they write nothing there.

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal, Write},
    path::Path,
};

use hyper::Method;
use salaam_core::{
    event::{Broken, Head, Kind},
    id::SessionId,
};
use serde_json::{Value, json};

use super::{
    args::{JournalVerb, Select},
    client::Client,
    discover::Place,
    terminal::{Out, Passage, at, fields, visible_json, write_stdout},
    trouble::Trouble,
};
use crate::store::{StoreError, lock::StateLock, offline};

/// Carries out one verb.
pub(super) async fn run(verb: JournalVerb, place: Place, out: Out) -> Result<(), Trouble> {
    let client = Client::new(place.clone());
    match verb {
        JournalVerb::List(select) => {
            let mut print = Printer::new(out);
            pages(&client, &select, &mut |line| print.event(line)).await
        }
        JournalVerb::Follow(select) => follow(&client, &select, &mut Printer::new(out)).await,
        JournalVerb::Show { seq } => show_one(&client, seq, out).await,
        JournalVerb::Verify { file: Some(file) } => report(exported(&file)?, out),
        JournalVerb::Verify { file: None } => {
            let mut head = Head::START;
            let mut each = |line: &[u8]| {
                (head, _) = head.follow(line).map_err(|why| damaged(&why))?;
                Ok(())
            };
            match pages(&client, &Select::default(), &mut each).await {
                Ok(()) => {}
                Err(why @ Trouble::NotRunning { .. }) => {
                    stopped(&place.state, why)?;
                    head = offline::verify(&place.state).map_err(unread)?.head;
                }
                Err(why) => return Err(why),
            }
            report(head, out)
        }
        JournalVerb::Export => {
            let mut passage = Passage::stdout();
            let mut each = |line: &[u8]| {
                passage.pass(line)?;
                passage.pass(b"\n")
            };
            match pages(&client, &Select::default(), &mut each).await {
                Ok(()) => {}
                Err(why @ Trouble::NotRunning { .. }) => {
                    stopped(&place.state, why)?;
                    exported_offline(&place.state, &mut passage)?;
                }
                Err(why) => return Err(why),
            }
            passage.finish()
        }
    }
}

/// Refuses to read behind a service that lives but does not answer; `why` says how it does not.
fn stopped(state: &Path, why: Trouble) -> Result<(), Trouble> {
    match StateLock::holder(state) {
        Ok(None) => Ok(()),
        Ok(Some(holder)) => Err(Trouble::Connection {
            attempted: "reading the journal".into(),
            why: format!("{holder} has the state directory but does not answer"),
        }),
        // No state directory, or none that the caller may look into: then it is just not running.
        Err(_) => Err(why),
    }
}

/// Writes the journal of a stopped service; the walk verifies it on the way.
fn exported_offline(state: &Path, passage: &mut Passage) -> Result<(), Trouble> {
    let mut out = Onward { passage, broken: None };
    let walked = offline::export(state, &mut out);
    match out.broken {
        Some(trouble) => Err(trouble),
        None => walked.map(drop).map_err(unread),
    }
}

/// Lets the store write to where output goes, and keeps what went wrong there.
struct Onward<'a> {
    passage: &'a mut Passage,
    broken: Option<Trouble>,
}

impl Write for Onward<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.passage.pass(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(trouble) => {
                self.broken = Some(trouble);
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Each<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Trouble>;

/// Asks for page after page until one is empty.
async fn pages(client: &Client, select: &Select, each: Each<'_>) -> Result<(), Trouble> {
    let mut after = select.after;
    loop {
        let mut page = client.open(Method::GET, &path(select, after, false)?, None).await?;
        let before = after;
        while let Some(line) = page.line().await? {
            if line.is_empty() {
                continue;
            }
            after = seq(&line)?;
            each(&line)?;
        }
        if after == before {
            return Ok(());
        }
    }
}

async fn follow(client: &Client, select: &Select, print: &mut Printer) -> Result<(), Trouble> {
    let mut stream = client.open(Method::GET, &path(select, select.after, true)?, None).await?;
    while let Some(line) = stream.line().await? {
        if !line.is_empty() {
            print.event(&line)?;
        }
    }
    Err(Trouble::Connection {
        attempted: "following the journal".into(),
        why: "the service closed the connection".into(),
    })
}

async fn show_one(client: &Client, wanted: u64, out: Out) -> Result<(), Trouble> {
    let select = Select { after: wanted - 1, ..Select::default() };
    let mut page = client.open(Method::GET, &path(&select, select.after, false)?, None).await?;
    let line = page.line().await?.filter(|line| !line.is_empty());
    match line {
        Some(line) if seq(&line)? == wanted => {
            let event: Value = parsed(&line)?;
            out.result(&event, fields)
        }
        Some(_) | None => {
            Err(Trouble::refused("not-found", format!("there is no event {wanted}"), "salaam journal list"))
        }
    }
}

fn path(select: &Select, after: u64, follow: bool) -> Result<String, Trouble> {
    let mut path = format!("/v1/events?after={after}");
    if let Some(kind) = &select.kind {
        // A known word needs no escaping in a query.
        let kind: Kind =
            kind.parse().map_err(|why: salaam_core::policy::UnknownWord| Trouble::usage(why.to_string(), ""))?;
        path += &format!("&kind={kind}");
    }
    if let Some(session) = &select.session {
        let session: SessionId = session
            .parse()
            .map_err(|why: salaam_core::id::NotAnId| Trouble::usage(why.to_string(), "salaam session list"))?;
        path += &format!("&session={session}");
    }
    if follow {
        path += "&follow=true";
    }
    Ok(path)
}

fn parsed(line: &[u8]) -> Result<Value, Trouble> {
    serde_json::from_slice(line)
        .map_err(|why| Trouble::Connection { attempted: "reading an event".into(), why: why.to_string() })
}

fn seq(line: &[u8]) -> Result<u64, Trouble> {
    parsed(line)?
        .get("seq")
        .and_then(Value::as_u64)
        .ok_or_else(|| Trouble::Connection { attempted: "reading an event".into(), why: "it has no number".into() })
}

/// Prints events: the canonical line with `--json`, else a short one.
#[derive(Debug)]
struct Printer {
    out: Out,
}

impl Printer {
    fn new(out: Out) -> Self {
        Self { out }
    }

    fn event(&mut self, line: &[u8]) -> Result<(), Trouble> {
        if self.out.json {
            // Canonical lines are UTF-8; to a terminal, the same JSON with its hidden characters escaped.
            return if io::stdout().is_terminal() {
                self.out.text(&visible_json(&String::from_utf8_lossy(line)))
            } else {
                write_stdout(&[line, b"\n"].concat())
            };
        }
        self.out.text(&short(&parsed(line)?))
    }
}

/// One event on one line: number, time, kind, and what of its data says the most.
fn short(event: &Value) -> String {
    let mut text = format!("{:>6}  {}  {:<20}", at(event, "/seq"), at(event, "/time"), at(event, "/kind"));
    for key in TELLING {
        let value = event.get("data").and_then(|data| data.get(key)).filter(|value| !value.is_null());
        // Who decided is an object; the name says the most.
        let value = value.map(|value| value.get("principal").unwrap_or(value));
        if let Some(value) = value {
            text += &format!("  {key}={}", super::question::summary(&super::terminal::word(Some(value))));
        }
    }
    text.trim_end().to_owned()
}

/// Keys of `data` that a short line shows.
const TELLING: &[&str] = &[
    "operation",
    "state",
    "exit_code",
    "signal",
    "reason",
    "cause",
    "changed",
    "workspace",
    "path",
    "uid",
    "pid",
    "epoch",
    "version",
    "id",
    "evidence",
    "by",
];

fn report(head: Head, out: Out) -> Result<(), Trouble> {
    let Head { seq, hash } = head;
    out.result(&json!({ "verified": true, "events": seq, "last_hash": hash }), |_| {
        format!("{seq} events, the chain holds, head {hash}")
    })
}

/// Verifies an export.
fn exported(path: &Path) -> Result<Head, Trouble> {
    let file = File::open(path).map_err(|source| Trouble::Local { attempted: "opening", path: path.into(), source })?;
    let verified = offline::verify_export(BufReader::new(file));
    verified.map(|verified| verified.head).map_err(|why| broken(&why.to_string()))
}

fn damaged(why: &Broken) -> Trouble {
    broken(&format!("the chain is broken: {why}"))
}

/// A chain that does not hold; exit code 1.
fn broken(why: &str) -> Trouble {
    Trouble::refused("journal-damaged", why, "keep this copy; compare with an older export")
}

fn unread(why: StoreError) -> Trouble {
    let id = match &why {
        StoreError::Absent { .. } => "not-found",
        StoreError::Damaged { .. } | StoreError::Foreign { .. } | StoreError::Newer { .. } => "journal-damaged",
        StoreError::File { .. } | StoreError::Database { .. } | StoreError::Closed { .. } => "journal-unreadable",
    };
    let check = why.to_check();
    Trouble::refused(id, check.evidence, check.fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_does_not_hold_is_a_failure() {
        let path = std::env::temp_dir().join(format!("salaam-cli-export-{}", std::process::id()));
        std::fs::write(&path, "{}\n").unwrap();
        let trouble = exported(&path).unwrap_err();
        std::fs::write(&path, "").unwrap();
        assert_eq!(exported(&path).unwrap(), Head::START);
        std::fs::remove_file(&path).unwrap();
        assert_eq!((trouble.id(), trouble.exit()), ("journal-damaged", 1));
        assert_eq!(exported(&path).unwrap_err().exit(), 1);
    }

    #[test]
    fn filters_are_checked_before_they_stand_in_a_request() {
        let select =
            |kind: &str, session: &str| Select { after: 3, kind: Some(kind.into()), session: Some(session.into()) };
        let ses = "ses_00000000000070008000000000000001";
        assert_eq!(
            path(&select("operation.result", ses), 7, true).unwrap(),
            format!("/v1/events?after=7&kind=operation.result&session={ses}&follow=true")
        );
        assert_eq!(path(&select("x&follow=true", ses), 7, true).unwrap_err().exit(), 2);
        assert_eq!(path(&select("operation.result", "ses_1&x"), 7, true).unwrap_err().exit(), 2);
    }

    #[test]
    fn a_short_line_cannot_be_split_or_coloured_by_what_it_quotes() {
        let event = json!({"seq": 1, "time": "t", "kind": "workspace.added", "data": {"path": "/a\n\u{1b}[31m"}});
        assert!(short(&event).ends_with("path=/a\\n\\e[31m"));
    }
}
