//! One question at a time: read, answered, and then the next.

use std::{fs::File, io::Write as _, os::fd::AsFd as _};

use salaam_confine::Begun;
use salaam_core::reader::{Answer, FromReader, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request, ToReader};
use salaam_proto::{
    frame::{self, FrameError},
    reader_wire as wire,
};

use crate::{account::Account, lines, list, refusal::Refusal, root::Root, search, start, whole};

/// Why there are no more answers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The link broke.
    #[error("the link to the service: {0}")]
    Link(#[from] FrameError),
    /// The service asks before it says on whose behalf, or says it twice.
    #[error("the service is out of phase: it {0}")]
    OutOfPhase(&'static str),
}

/// Says that this process is confined, is told for whom it reads, and answers until the service has had enough.
pub(crate) fn serve(begun: Begun) -> Result<(), ServeError> {
    let beyond: Vec<_> = start::beyond(&begun).collect();
    let Begun { mut link, given: root, mut canary, .. } = begun;
    canary.extend(beyond);
    say(&mut link, FromReader::Ready { build: build(), canary })?;
    let account = match hear(&mut link)? {
        None => return Ok(()),
        Some(ToReader::Begin(begin)) => Account { uid: begin.uid, groups: begin.groups },
        Some(ToReader::Ask(_)) => return Err(ServeError::OutOfPhase("asks before it begins")),
    };
    let root = Root::new(root.as_fd(), account);
    loop {
        match hear(&mut link)? {
            None => return Ok(()),
            Some(ToReader::Ask(request)) => say(&mut link, FromReader::Answer(answer(&root, &request)))?,
            Some(ToReader::Begin(_)) => return Err(ServeError::OutOfPhase("begins twice")),
        }
    }
}

/// Each arm reads beneath the root, within its limits, and changes nothing.
fn answer(root: &Root<'_>, request: &Request) -> Answer {
    let size = |most: u32| usize::try_from(most).unwrap_or(usize::MAX);
    let answered = match request {
        Request::List { path, after, most } => {
            list::list(root, path, after.as_deref(), size(*most)).map(Answer::Listed)
        }
        Request::Read { path, from_line, lines } => lines::read(root, path, *from_line, *lines).map(Answer::Lines),
        Request::Search { pattern, path, after, most } => {
            search::search(root, pattern, path, after.as_ref(), size(*most)).map(Answer::Found)
        }
        Request::Whole { path, most_bytes } => whole::whole(root, path, *most_bytes).map(Answer::Whole),
    };
    answered.unwrap_or_else(|refusal| {
        if let Refusal::Kernel { .. } = refusal {
            // For whoever keeps the host; it names no path.
            eprintln!("{refusal}");
        }
        Answer::Refused(refusal.said())
    })
}

/// `0.1.0 (commit abcdef0, bridge 1)`, as the service prints its own.
fn build() -> String {
    salaam_core::bridge::build_name(env!("CARGO_PKG_VERSION"), env!("SALAAM_COMMIT"))
}

/// What the service says next; absent = it closed the link.
fn hear(link: &mut File) -> Result<Option<ToReader>, FrameError> {
    frame::read(link, MAX_REQUEST_BYTES)?.map(|bytes| frame::value::<wire::ToReader, _>(&bytes)).transpose()
}

fn say(link: &mut File, message: FromReader) -> Result<(), FrameError> {
    let bytes = frame::framed(&wire::FromReader::from(message), MAX_ANSWER_BYTES)?;
    Ok(link.write_all(&bytes)?)
}
