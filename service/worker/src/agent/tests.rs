//! Scripts, played through the agent as the service would: what it says to what it was told.

use salaam_core::{
    id::{OperationId, SessionId},
    operation::State,
    policy::Profile,
    script::Script,
    worker::{Begin, EndedBy, PastTurn, Provider, Turn},
};

use super::*;

const SCRIPT: &str = r#"{"turns":[
    {"text":"first","calls":[
        {"tool":"salaam_local","arguments":{"action":"command","command":"ls"}},
        {"tool":"salaam_workspace","arguments":{"action":"list","path":"."}}]},
    {"expect":[{"call":0,"outcome":"completed","exit_code":0,"contains":"README"},{"call":1,"outcome":"completed"}],
     "text":"second","await":"message"},
    {"text":"third","calls":[{"tool":"salaam_local","arguments":{"action":"undo","operation":"$op:0.0"}}]},
    {"expect":[{"call":0,"contains":"taken back"}],"text":"done"}]}"#;

fn begin(past: u64) -> ToWorker {
    ToWorker::Begin(Begin {
        session: SessionId::new(1, [7; 10]),
        epoch: 1,
        provider: Provider::Scripted,
        task: "task".into(),
        profile: Profile::WorkspaceWrite,
        tools: Vec::new(),
        past,
    })
}

fn operation(number: u8) -> OperationId {
    OperationId::new(1, [number; 10])
}

fn answer(stdout: &str, of: Option<u8>) -> Answer {
    Answer { exit_code: Some(0), stdout: stdout.into(), operation: of.map(operation), ..Answer::new(State::Completed) }
}

fn first() -> Vec<Answer> {
    vec![answer("README\n", Some(1)), answer("README", None)]
}

fn answers(turn: u64, answers: Vec<Answer>) -> ToWorker {
    ToWorker::Answers { turn, answers }
}

fn message() -> ToWorker {
    ToWorker::Message { text: "go on".into() }
}

fn agent(script: &str) -> Agent {
    Agent::new(Scripted::new(Script::parse(script.as_bytes()).unwrap()))
}

/// The turn that it says.
#[track_caller]
fn turn(action: Result<Action, OutOfPhase>) -> Turn {
    match action {
        Ok(Action::Say(FromWorker::Turn(turn))) => turn,
        other => panic!("no turn: {other:?}"),
    }
}

#[track_caller]
fn ended(action: Result<Action, OutOfPhase>) -> (EndedBy, String) {
    match action {
        Ok(Action::Say(FromWorker::Ended { outcome, reason })) => (outcome, reason),
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn a_script_is_played_turn_by_turn_to_its_end() {
    let mut agent = agent(SCRIPT);
    let said = turn(agent.step(begin(0)));
    assert_eq!((said.number, said.text.as_str(), said.calls.len(), said.awaits), (0, "first", 2, false));
    assert_eq!(said.calls[0].arguments, r#"{"action":"command","command":"ls"}"#);
    let said = turn(agent.step(answers(0, first())));
    assert_eq!((said.number, said.text.as_str(), said.calls.len(), said.awaits), (1, "second", 0, true));
    assert_eq!(agent.step(answers(1, Vec::new())), Ok(Action::Wait), "a message is to come");
    let said = turn(agent.step(message()));
    let undone = format!(r#"{{"action":"undo","operation":"{}"}}"#, operation(1));
    assert_eq!((said.number, said.calls[0].arguments.as_str()), (2, undone.as_str()));
    let said = turn(agent.step(answers(2, vec![answer("taken back", Some(2))])));
    assert_eq!((said.number, said.text.as_str()), (3, "done"));
    assert_eq!(ended(agent.step(answers(3, Vec::new()))).0, EndedBy::Completed);
    assert_eq!(agent.step(ToWorker::Stop), Ok(Action::Leave));
}

#[test]
fn an_expectation_that_does_not_hold_ends_the_session_as_a_mismatch() {
    let mut other = first();
    other[0].stdout = "LICENSE\n".into();
    let mut failed = first();
    failed[0].outcome = State::Failed;
    for answered in [other, failed] {
        let mut agent = agent(SCRIPT);
        turn(agent.step(begin(0)));
        let (outcome, reason) = ended(agent.step(answers(0, answered)));
        assert!(outcome == EndedBy::ScriptMismatch && reason.starts_with("turn 1: "), "{reason}");
        assert!(agent.step(answers(1, Vec::new())).is_err(), "it is over");
    }
}

#[test]
fn an_operation_that_never_was_is_a_mismatch_where_it_is_named() {
    let mut agent = agent(SCRIPT);
    turn(agent.step(begin(0)));
    let mut refused = first();
    refused[0].operation = None;
    turn(agent.step(answers(0, refused)));
    agent.step(answers(1, Vec::new())).unwrap();
    assert_eq!(ended(agent.step(message())).0, EndedBy::ScriptMismatch);
}

/// The first `number` turns as an earlier worker took them.
fn past(number: usize) -> Vec<PastTurn> {
    let mut agent = agent(SCRIPT);
    let mut told = Vec::new();
    let given = [first(), Vec::new(), vec![answer("taken back", Some(2))], Vec::new()];
    let mut action = agent.step(begin(0));
    for answered in given.into_iter().take(number) {
        let turn = turn(action);
        action = agent.step(answers(turn.number, answered.clone()));
        let message = turn.awaits.then(|| "go on".to_owned());
        if turn.awaits {
            action = agent.step(self::message());
        }
        told.push(PastTurn { turn, answers: answered, message });
    }
    told
}

#[test]
fn a_restarted_worker_goes_on_where_the_last_one_was() {
    for number in 1..4_usize {
        let mut agent = agent(SCRIPT);
        assert_eq!(agent.step(begin(number as u64)), Ok(Action::Wait));
        let mut said = None;
        for past in past(number) {
            assert!(said.is_none(), "nothing is said before everything was told");
            match agent.step(ToWorker::Past(past)).unwrap() {
                Action::Say(message) => said = Some(message),
                Action::Wait | Action::Leave => {}
            }
        }
        match said {
            Some(FromWorker::Turn(turn)) => assert_eq!(turn.number, number as u64),
            other => panic!("after {number} turns: {other:?}"),
        }
        if number == 2 {
            let id = operation(1).to_string();
            assert_eq!(agent.phase, Phase::Answering { turn: 2, calls: 1, awaits: false });
            assert!(agent.operations[0][0].is_some_and(|known| known.to_string() == id), "$op reaches into the past");
        }
    }
}

#[test]
fn a_restarted_worker_waits_for_what_was_still_to_come() {
    // The answers.
    let mut agent = self::agent(SCRIPT);
    agent.step(begin(1)).unwrap();
    let mut open = past(1).remove(0);
    open.answers.clear();
    assert_eq!(agent.step(ToWorker::Past(open)), Ok(Action::Wait));
    assert_eq!(turn(agent.step(answers(0, first()))).number, 1);
    // The message.
    let mut agent = self::agent(SCRIPT);
    agent.step(begin(2)).unwrap();
    let mut told = past(2);
    told[1].message = None;
    for past in told {
        assert_eq!(agent.step(ToWorker::Past(past)), Ok(Action::Wait));
    }
    assert_eq!(turn(agent.step(message())).number, 2);
}

#[test]
fn what_is_out_of_place_is_refused_and_changes_nothing() {
    let mut agent = agent(SCRIPT);
    for early in [answers(0, Vec::new()), message(), ToWorker::Past(past(1).remove(0))] {
        assert!(agent.step(early).is_err());
    }
    turn(agent.step(begin(0)));
    for wrong in [begin(0), message(), answers(1, first()), answers(0, vec![answer("", None)]), answers(0, Vec::new())]
    {
        assert!(agent.step(wrong.clone()).is_err(), "{wrong:?}");
    }
    assert_eq!(turn(agent.step(answers(0, first()))).number, 1);
}
