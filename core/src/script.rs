//! The file of the scripted provider: turns, replayed in order, that check what came of the turn before.
//!
//! The form is strict: an unknown key, a place that does not exist, and a `$op` that points forward are refused
//! before the session begins, so that a script fails for what the host does and not for how it is written.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    id::OperationId,
    object::Object,
    operation::State,
    policy::UnknownWord,
    show,
    tool::{Answer, MAX_ARGUMENTS_BYTES},
    worker::{self, MAX_CALLS, MAX_TEXT_BYTES, MAX_TOOL_BYTES, MAX_TURN_BYTES, RawCall},
};

/// A script: it crosses the operator's socket in one request, and lies in a worker's memory.
pub const MAX_SCRIPT_BYTES: usize = 8 << 20;
/// Turns of a script: those of a session but the last, at which a session ends as one that took too many.
pub const MAX_TURNS: usize = worker::MAX_TURNS as usize - 1;
/// Expectations of one turn: a few for each call.
pub const MAX_EXPECT: usize = 4 * MAX_CALLS;
/// What stands before `TURN.CALL` where the id of an operation goes.
const OPERATION: &str = "$op:";
/// What of a script an error quotes.
const QUOTED_CHARS: usize = 80;

/// A checked script.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// In order; at least one.
    pub turns: Vec<Turn>,
}

/// One turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// What must have come of the turn before.
    pub expect: Vec<Expect>,
    /// What is said.
    pub text: String,
    /// What is called.
    pub calls: Vec<Call>,
    /// Whether an operator's message is waited for before the next turn.
    pub awaits: bool,
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The tool; any name, for a script may try what is refused.
    pub tool: String,
    /// Its arguments, with `$op:TURN.CALL` where an operation's id goes.
    pub arguments: Map<String, Value>,
}

/// What one answer of the turn before must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// Its place among the calls, from 0.
    pub call: usize,
    /// The outcome; absent = any.
    pub outcome: Option<State>,
    /// The exit code; absent = any.
    pub exit_code: Option<i32>,
    /// What standard output, standard error or the comment must contain.
    pub contains: Option<String>,
}

/// Why a script is refused. Turns and calls are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// It is too long.
    #[error("the script has {0} bytes; {MAX_SCRIPT_BYTES} is the most")]
    TooLong(usize),
    /// It is no JSON of this form.
    #[error("the script is not of its form: {0}")]
    Form(String),
    /// It has no turn.
    #[error("the script has no turns")]
    Empty,
    /// It has too many.
    #[error("the script has {0} turns; {MAX_TURNS} is the most")]
    TooManyTurns(usize),
    /// A turn is refused.
    #[error("turn {turn}: {fault}")]
    Turn {
        /// Which.
        turn: usize,
        /// What is wrong with it.
        fault: TurnFault,
    },
}

/// What is wrong with a turn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TurnFault {
    /// Too many calls.
    #[error("{0} calls; {MAX_CALLS} is the most")]
    TooManyCalls(usize),
    /// Too many expectations.
    #[error("{0} expectations; {MAX_EXPECT} is the most")]
    TooManyExpect(usize),
    /// Its text, or its text and arguments together, are too long.
    #[error("its text may have {MAX_TEXT_BYTES} bytes, and with its arguments {MAX_TURN_BYTES}")]
    TooLong,
    /// One call is too long to cross to the service.
    #[error("call {0}: a tool's name may have {MAX_TOOL_BYTES} bytes, its arguments {MAX_ARGUMENTS_BYTES}")]
    CallTooLong(usize),
    /// `await` knows one word.
    #[error("`await` must be \"message\"")]
    Await,
    /// It expects something of a call that the turn before does not make.
    #[error("it expects something of call {0}, which the turn before does not make")]
    NoSuchCall(usize),
    /// An outcome that no operation has.
    #[error("expect: {0}")]
    Outcome(#[from] UnknownWord),
    /// An expectation that expects nothing.
    #[error("an expectation needs `outcome`, `exit_code` or `contains`")]
    NothingExpected,
    /// A `$op` that names no earlier call.
    #[error("`{0}` names no call of an earlier turn")]
    Reference(String),
}

/// What does not hold: why a session ends as `script-mismatch`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The answer is not there.
    #[error("call {call} has no answer")]
    NoAnswer {
        /// The call.
        call: usize,
    },
    /// Another outcome.
    #[error("call {call}: expected the outcome {expected}, found {found}")]
    Outcome {
        /// The call.
        call: usize,
        /// What the script says.
        expected: State,
        /// What came.
        found: State,
    },
    /// Another exit code.
    #[error("call {call}: expected the exit code {expected}, found {}", found.map_or_else(|| "none".into(), |code| code.to_string()))]
    ExitCode {
        /// The call.
        call: usize,
        /// What the script says.
        expected: i32,
        /// What came.
        found: Option<i32>,
    },
    /// The text is nowhere.
    #[error("call {call}: `{expected}` is neither in stdout nor in stderr nor in the comment")]
    Contains {
        /// The call.
        call: usize,
        /// The beginning of what the script says, made visible.
        expected: String,
    },
    /// A `$op` whose call never became an operation.
    #[error("`{OPERATION}{turn}.{call}` has no operation: that call was refused before it became one")]
    NoOperation {
        /// Its turn.
        turn: usize,
        /// Its call.
        call: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    turns: Vec<Object<RawTurn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTurn {
    #[serde(default)]
    expect: Vec<Object<RawExpect>>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<Object<RawScriptCall>>,
    #[serde(rename = "await")]
    awaits: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    call: usize,
    outcome: Option<String>,
    exit_code: Option<i32>,
    contains: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScriptCall {
    tool: String,
    arguments: Map<String, Value>,
}

impl Script {
    /// Parses and checks a script.
    ///
    /// # Errors
    /// What is wrong, and in which turn.
    pub fn parse(text: &[u8]) -> Result<Self, ScriptError> {
        if text.len() > MAX_SCRIPT_BYTES {
            return Err(ScriptError::TooLong(text.len()));
        }
        let Object(raw): Object<RawScript> =
            serde_json::from_slice(text).map_err(|e| ScriptError::Form(quoted(&e.to_string())))?;
        if raw.turns.is_empty() {
            return Err(ScriptError::Empty);
        }
        if raw.turns.len() > MAX_TURNS {
            return Err(ScriptError::TooManyTurns(raw.turns.len()));
        }
        let mut turns: Vec<Turn> = Vec::with_capacity(raw.turns.len());
        for (turn, Object(raw)) in raw.turns.into_iter().enumerate() {
            turns.push(checked(raw, &turns).map_err(|fault| ScriptError::Turn { turn, fault })?);
        }
        Ok(Self { turns })
    }
}

fn checked(raw: RawTurn, earlier: &[Turn]) -> Result<Turn, TurnFault> {
    if raw.calls.len() > MAX_CALLS {
        return Err(TurnFault::TooManyCalls(raw.calls.len()));
    }
    if raw.expect.len() > MAX_EXPECT {
        return Err(TurnFault::TooManyExpect(raw.expect.len()));
    }
    let awaits = match raw.awaits.as_deref() {
        None => false,
        Some("message") => true,
        Some(_) => return Err(TurnFault::Await),
    };
    let before = earlier.last().map_or(0, |turn| turn.calls.len());
    let expect = raw.expect.into_iter().map(|Object(raw)| expected(raw, before)).collect::<Result<_, _>>()?;
    let mut bytes = raw.text.len();
    let mut calls = Vec::with_capacity(raw.calls.len());
    for Object(RawScriptCall { tool, arguments }) in raw.calls {
        let call = Call { tool, arguments };
        let written = call.written(&mut |turn, at| {
            let known = earlier.get(turn).is_some_and(|turn| at < turn.calls.len());
            known.then_some(LONGEST_ID.to_owned())
        });
        let written = written.map_err(TurnFault::Reference)?.len();
        if call.tool.len() > MAX_TOOL_BYTES || written > MAX_ARGUMENTS_BYTES {
            return Err(TurnFault::CallTooLong(calls.len()));
        }
        bytes = bytes.saturating_add(written);
        calls.push(call);
    }
    if raw.text.len() > MAX_TEXT_BYTES || bytes > MAX_TURN_BYTES {
        return Err(TurnFault::TooLong);
    }
    Ok(Turn { expect, text: raw.text, calls, awaits })
}

/// As long as any operation's id, for the size of arguments before there is one.
const LONGEST_ID: &str = "op_00000000000000000000000000000000";

fn expected(raw: RawExpect, calls: usize) -> Result<Expect, TurnFault> {
    if raw.call >= calls {
        return Err(TurnFault::NoSuchCall(raw.call));
    }
    if raw.outcome.is_none() && raw.exit_code.is_none() && raw.contains.is_none() {
        return Err(TurnFault::NothingExpected);
    }
    let outcome = raw.outcome.map(|outcome| outcome.parse()).transpose()?;
    Ok(Expect { call: raw.call, outcome, exit_code: raw.exit_code, contains: raw.contains })
}

impl Turn {
    /// Holds the answers of the turn before against what is expected of them.
    ///
    /// # Errors
    /// The first expectation that does not hold.
    pub fn check(&self, answers: &[Answer]) -> Result<(), Mismatch> {
        check(&self.expect, answers)
    }

    /// The turn as it is proposed: with the ids that `operation` knows for a turn and a call in it.
    ///
    /// # Errors
    /// An operation has no id: its call was refused before it became one.
    pub fn proposed(
        &self,
        number: u64,
        operation: impl Fn(usize, usize) -> Option<OperationId>,
    ) -> Result<worker::Turn, Mismatch> {
        let call = |call: &Call| Ok(RawCall { tool: call.tool.clone(), arguments: call.arguments(&operation)? });
        let calls = self.calls.iter().map(call).collect::<Result<_, _>>()?;
        Ok(worker::Turn { number, text: self.text.clone(), calls, awaits: self.awaits })
    }
}

impl Call {
    /// The arguments as JSON, every `$op:TURN.CALL` replaced by the id that `operation` knows for that place.
    ///
    /// # Errors
    /// An operation has no id: its call was refused before it became one.
    pub fn arguments(&self, operation: impl Fn(usize, usize) -> Option<OperationId>) -> Result<String, Mismatch> {
        let mut missing = None;
        let written = self.written(&mut |turn, call| match operation(turn, call) {
            Some(id) => Some(id.to_string()),
            None => {
                missing = Some(Mismatch::NoOperation { turn, call });
                None
            }
        });
        match (written, missing) {
            (Ok(written), None) => Ok(written),
            (_, Some(missing)) => Err(missing),
            // Every reference was read when the script was parsed.
            (Err(_), None) => Err(Mismatch::NoOperation { turn: 0, call: 0 }),
        }
    }

    fn written(&self, known: &mut dyn FnMut(usize, usize) -> Option<String>) -> Result<String, String> {
        let mut arguments = Value::Object(self.arguments.clone());
        substitute(&mut arguments, known)?;
        Ok(arguments.to_string())
    }
}

/// Replaces every string that is a reference, keys aside. serde_json limits how deep a value nests.
fn substitute(value: &mut Value, known: &mut dyn FnMut(usize, usize) -> Option<String>) -> Result<(), String> {
    match value {
        Value::String(text) => {
            let Some(place) = text.strip_prefix(OPERATION) else { return Ok(()) };
            let place = place.split_once('.').and_then(|(turn, call)| Some((number(turn)?, number(call)?)));
            match place.and_then(|(turn, call)| known(turn, call)) {
                Some(id) => *text = id,
                None => return Err(quoted(text)),
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| substitute(item, known)),
        Value::Object(map) => map.values_mut().try_for_each(|item| substitute(item, known)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// A number as it is written: no sign, no zero in front.
fn number(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|number| number.to_string() == text)
}

/// Holds the answers of the turn before against what is expected of them.
///
/// # Errors
/// The first expectation that does not hold.
pub fn check(expect: &[Expect], answers: &[Answer]) -> Result<(), Mismatch> {
    expect.iter().try_for_each(|expect| {
        let call = expect.call;
        let answer = answers.get(call).ok_or(Mismatch::NoAnswer { call })?;
        if let Some(expected) = expect.outcome.filter(|expected| *expected != answer.outcome) {
            return Err(Mismatch::Outcome { call, expected, found: answer.outcome });
        }
        if let Some(expected) = expect.exit_code.filter(|expected| Some(*expected) != answer.exit_code) {
            return Err(Mismatch::ExitCode { call, expected, found: answer.exit_code });
        }
        if let Some(expected) = &expect.contains {
            let texts = [answer.stdout.as_str(), &answer.stderr, answer.comment.as_deref().unwrap_or_default()];
            if !texts.iter().any(|text| text.contains(expected.as_str())) {
                return Err(Mismatch::Contains { call, expected: quoted(expected) });
            }
        }
        Ok(())
    })
}

fn quoted(text: &str) -> String {
    show::excerpt(text.as_bytes(), QUOTED_CHARS)
}

#[cfg(test)]
mod tests;
