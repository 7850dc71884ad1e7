//! The worker's messages there and back, and one over each bound.

use salaam_core::{
    id::{OperationId, SessionId},
    operation::State,
    policy::Profile,
    tool,
    worker::{EndedBy, MAX_FROM_WORKER_BYTES, MAX_TO_WORKER_BYTES, Provider},
};

use super::*;
use crate::{frame, tests::round};

fn begin() -> Begin {
    Begin {
        session: SessionId::new(1, [1; 10]),
        epoch: 2,
        provider: Provider::Scripted,
        task: "fix it".into(),
        profile: Profile::WorkspaceWrite,
        tools: tool::TOOLS.iter().map(|tool| (*tool).to_owned()).collect(),
        past: 3,
    }
}

fn turn() -> Turn {
    let call = RawCall { tool: "salaam_local".into(), arguments: "{}".into() };
    Turn { number: 7, text: "caf\u{e9}".into(), calls: vec![call.clone(), call], awaits: true }
}

fn answer() -> Answer {
    Answer {
        exit_code: Some(1),
        stdout: "out".into(),
        stderr: "err".into(),
        truncated: true,
        comment: Some("no".into()),
        operation: Some(OperationId::new(1, [3; 10])),
        ..Answer::new(State::Completed)
    }
}

#[test]
fn every_value_comes_back_as_it_went() {
    round::<_, wire::ToWorker>(ToWorker::Begin(begin()));
    let past =
        PastTurn { turn: turn(), answers: vec![answer(), Answer::new(State::Unknown)], message: Some("m".into()) };
    round::<_, wire::ToWorker>(ToWorker::Past(past));
    round::<_, wire::ToWorker>(ToWorker::Answers { turn: 0, answers: vec![answer()] });
    round::<_, wire::ToWorker>(ToWorker::Message { text: "go on".into() });
    round::<_, wire::ToWorker>(ToWorker::Stop);
    let canary = vec![Canary { attack: "socket".into(), errno: 1 }];
    round::<_, wire::FromWorker>(FromWorker::Ready { build: "0.1.0".into(), canary });
    round::<_, wire::FromWorker>(FromWorker::Turn(turn()));
    for outcome in EndedBy::ALL {
        round::<_, wire::FromWorker>(FromWorker::Ended { outcome: *outcome, reason: "r".into() });
    }
}

#[test]
fn the_largest_honest_messages_fit_their_frames() {
    let answer = Answer { stdout: "\n".repeat(1 << 20), stderr: "\u{1}".repeat(1 << 20), ..answer() }.cut();
    let arguments = "a".repeat(MAX_ARGUMENTS_BYTES - 1024);
    let mut calls = vec![RawCall { tool: "t".repeat(128), arguments: String::new() }; MAX_CALLS];
    calls[0].arguments.clone_from(&arguments);
    let largest = Turn { text: "t".repeat(MAX_TEXT_BYTES), calls, ..turn() };
    let said = FromWorker::Turn(largest.clone());
    assert!(frame::framed(&wire::FromWorker::from(said), MAX_FROM_WORKER_BYTES).is_ok());
    let past = PastTurn { turn: largest, answers: vec![answer; MAX_CALLS], message: Some("m".repeat(MAX_TEXT_BYTES)) };
    let bytes = frame::framed(&wire::ToWorker::from(ToWorker::Past(past)), MAX_TO_WORKER_BYTES).unwrap();
    assert!(frame::value::<wire::ToWorker, ToWorker>(&bytes[frame::HEADER_BYTES..]).is_ok());
}

#[test]
fn an_empty_message_never_means_allow() {
    let missing = |field| WireError::Missing { field };
    assert_eq!(ToWorker::try_from(wire::ToWorker::default()), Err(missing("message")));
    assert_eq!(FromWorker::try_from(wire::FromWorker::default()), Err(missing("message")));
    assert_eq!(Begin::try_from(wire::Begin::default()), Err(missing("epoch")));
    assert_eq!(PastTurn::try_from(wire::PastTurn::default()), Err(missing("past.turn")));
    assert_eq!(Answer::try_from(wire::Answer::default()), Err(missing("answer.outcome")));
    let ready = wire::from_worker::Message::Ready(wire::Ready { build: "b".into(), canary: vec![] });
    assert_eq!(FromWorker::try_from(wire::FromWorker { message: Some(ready) }), Err(missing("canary")));
    let ended = wire::from_worker::Message::Ended(wire::Ended::default());
    assert_eq!(FromWorker::try_from(wire::FromWorker { message: Some(ended) }), Err(missing("ended.outcome")));
}

#[test]
fn hostile_turns_are_refused() {
    let spoil: &[fn(&mut Turn)] = &[
        |t| t.number = MAX_TURNS,
        |t| t.text = "a".repeat(MAX_TEXT_BYTES + 1),
        |t| t.calls = vec![t.calls[0].clone(); MAX_CALLS + 1],
        |t| t.calls[0].tool = "t".repeat(129),
        |t| t.calls[0].arguments = "a".repeat(MAX_ARGUMENTS_BYTES + 1),
        |t| {
            t.calls[0].arguments = "a".repeat(MAX_ARGUMENTS_BYTES);
            t.calls = vec![t.calls[0].clone(); 3];
        },
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut turn = turn();
        spoil(&mut turn);
        assert!(Turn::try_from(wire::Turn::from(turn)).is_err(), "{index}");
    }
    let ready = |build: &str, attack: &str, errno: i32, count: usize| {
        let canary = vec![wire::Canary { attack: attack.into(), errno }; count];
        let ready = wire::Ready { build: build.into(), canary };
        FromWorker::try_from(wire::FromWorker { message: Some(wire::from_worker::Message::Ready(ready)) })
    };
    assert!(ready("b", "socket", 1, MAX_CANARY).is_ok());
    assert!(ready("b", "socket", 1, MAX_CANARY + 1).is_err());
    assert!(ready("", "socket", 1, 1).is_err() && ready(&"b".repeat(129), "socket", 1, 1).is_err());
    assert!(ready("b", "a b", 1, 1).is_err() && ready("b", "socket", -1, 1).is_err());
    assert!(ready("b", "socket", 4096, 1).is_err());
    let ended = |outcome: &str, reason: String| {
        let ended = wire::Ended { outcome: outcome.into(), reason };
        FromWorker::try_from(wire::FromWorker { message: Some(wire::from_worker::Message::Ended(ended)) })
    };
    assert!(ended("failed", "r".repeat(MAX_REASON_BYTES)).is_ok());
    assert!(ended("failed", "r".repeat(MAX_REASON_BYTES + 1)).is_err());
    assert!(ended("cancelled", String::new()).is_err(), "only an operator cancels");
}

#[test]
fn hostile_orders_are_refused() {
    let spoil: &[fn(&mut wire::Begin)] = &[
        |b| b.session = "op_00000000000070008000000000000000".into(),
        |b| b.epoch = 0,
        |b| b.provider = "openai".into(),
        |b| b.task = "a".repeat(MAX_TASK_BYTES + 1),
        |b| b.profile.clear(),
        |b| b.tools = vec!["t".into(); MAX_TOOLS + 1],
        |b| b.tools = vec!["a b".into()],
        |b| b.past = MAX_TURNS + 1,
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut wire = wire::Begin::from(begin());
        spoil(&mut wire);
        assert!(Begin::try_from(wire).is_err(), "{index}");
    }
    let spoil: &[fn(&mut wire::Answer)] = &[
        |a| a.outcome = "done".into(),
        |a| a.exit_code = Some(256),
        |a| a.signal = Some(0),
        |a| a.stdout = "a".repeat(MAX_ANSWER_BYTES + 1),
        |a| a.stderr = "a".repeat(MAX_ANSWER_BYTES + 1),
        |a| a.comment = Some("a".repeat(MAX_ANSWER_BYTES + 1)),
        |a| a.operation = Some("ses_1".into()),
    ];
    for (index, spoil) in spoil.iter().enumerate() {
        let mut wire = wire::Answer::from(answer());
        spoil(&mut wire);
        assert!(Answer::try_from(wire).is_err(), "{index}");
    }
    let to = |message| ToWorker::try_from(wire::ToWorker { message: Some(message) });
    use wire::to_worker::Message as Form;
    let answers = |count| wire::Answers { turn: 0, answers: vec![wire::Answer::from(answer()); count] };
    assert!(to(Form::Answers(answers(MAX_CALLS))).is_ok() && to(Form::Answers(answers(MAX_CALLS + 1))).is_err());
    assert!(to(Form::Answers(wire::Answers { turn: MAX_TURNS, ..answers(1) })).is_err());
    assert!(to(Form::Said(wire::Message { text: "a".repeat(MAX_TEXT_BYTES + 1) })).is_err());
    let past = wire::PastTurn { turn: Some(turn().into()), answers: answers(1).answers, message: None };
    assert!(to(Form::Past(past.clone())).is_err(), "two calls, one answer");
    let open = wire::PastTurn { answers: Vec::new(), ..past.clone() };
    assert!(to(Form::Past(open)).is_ok(), "a turn whose calls are all open");
    let long = wire::PastTurn { answers: answers(2).answers, message: Some("a".repeat(MAX_TEXT_BYTES + 1)), ..past };
    assert!(to(Form::Past(long)).is_err());
}
