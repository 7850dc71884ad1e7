//! The loop: what the agent decided is done, until the service has nothing more to say.

use std::{fs::File, io::Write as _};

use salaam_confine::Begun;
use salaam_core::{
    script::{Script, ScriptError},
    worker::{FromWorker, MAX_FROM_WORKER_BYTES, MAX_TO_WORKER_BYTES, OutOfPhase, Provider, ToWorker},
};
use salaam_proto::{
    frame::{self, FrameError},
    worker_wire as wire,
};

use crate::{
    agent::{Action, Agent},
    handed::{self, HandedError},
    scripted::Scripted,
};

/// `0.1.0 (commit abcdef0, bridge 1)`, as the service prints its own.
fn build() -> String {
    salaam_core::bridge::build_name(env!("CARGO_PKG_VERSION"), env!("SALAAM_COMMIT"))
}

/// Why the loop cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The link broke.
    #[error("the link to the service: {0}")]
    Link(#[from] FrameError),
    /// The service said what it never says there.
    #[error("the service is out of phase: {0}")]
    OutOfPhase(#[from] OutOfPhase),
    /// No script came.
    #[error(transparent)]
    Handed(#[from] HandedError),
    /// The service let a script through that is none.
    #[error("the script: {0}")]
    Script(#[from] ScriptError),
}

/// Says that this process is confined, is told its session, and proposes until it is over.
pub(crate) fn run(begun: Begun) -> Result<(), RunError> {
    let Begun { mut link, given: handed, canary, .. } = begun;
    say(&mut link, FromWorker::Ready { build: build(), canary })?;
    let Some(first) = hear(&mut link)? else { return Ok(()) };
    let provider = match &first {
        ToWorker::Begin(begin) => match begin.provider {
            Provider::Scripted => Scripted::new(Script::parse(&handed::script(handed)?)?),
        },
        ToWorker::Stop => return Ok(()),
        ToWorker::Past(_) | ToWorker::Answers { .. } | ToWorker::Message { .. } => {
            return Err(OutOfPhase { message: "a message before its beginning", phase: Default::default() }.into());
        }
    };
    let mut agent = Agent::new(provider);
    let mut said = Some(first);
    while let Some(message) = said {
        match agent.step(message)? {
            Action::Say(words) => say(&mut link, words)?,
            Action::Wait => {}
            Action::Leave => break,
        }
        said = hear(&mut link)?;
    }
    Ok(())
}

/// What the service says next; absent = it closed the link.
fn hear(link: &mut File) -> Result<Option<ToWorker>, FrameError> {
    frame::read(link, MAX_TO_WORKER_BYTES)?.map(|bytes| frame::value::<wire::ToWorker, _>(&bytes)).transpose()
}

fn say(link: &mut File, message: FromWorker) -> Result<(), FrameError> {
    let bytes = frame::framed(&wire::FromWorker::from(message), MAX_FROM_WORKER_BYTES)?;
    Ok(link.write_all(&bytes)?)
}
