//! Every step that a session may take, and none that it may not.

use super::*;

const NEW: Recorded = Recorded {
    turns: 0,
    calls: 0,
    answered: 0,
    awaits: false,
    told: false,
    waiting: 0,
    begun: false,
    proposed: false,
    closing: None,
};

fn operation() -> OperationId {
    OperationId::new(1, [7; 10])
}

/// Takes the steps one after the other; gives the end and the actions of the last one.
fn after(recorded: Recorded, events: &[Event]) -> (Course, Vec<Action>) {
    let mut now = Course::take_up(&recorded);
    for event in events {
        now = now.0.step(*event).unwrap_or_else(|misstep| panic!("{event:?}: {misstep} in {:?}", now.0));
    }
    now
}

fn refused(recorded: Recorded, events: &[Event], last: Event) -> Misstep {
    let (course, _) = after(recorded, events);
    course.step(last).expect_err("this step is not allowed")
}

const fn turn(number: u64, calls: u64) -> Event {
    Event::Turn { number, calls, awaits: false }
}

const fn awaiting(number: u64, calls: u64) -> Event {
    Event::Turn { number, calls, awaits: true }
}

const fn ask(begin: bool, message: bool) -> Action {
    Action::Ask { begin, message }
}

const LOST: Event = Event::Lost { settled: false };
const RUNNING: State = State::Running;
const LISTENS: State = State::Waiting { waiting_for: WaitingFor::Message };
const UNSURE: State = State::Waiting { waiting_for: WaitingFor::Reconcile };

const fn hire(rest: usize) -> Action {
    Action::Hire { after: RESTS[rest] }
}

const fn end(outcome: Outcome, from: u64, of: u64) -> Action {
    Action::Conclude { outcome, from, of }
}

#[test]
fn a_session_from_its_start_to_its_end() {
    use Event::{Answered, Ended, Ready};
    let ended = State::Ended { outcome: Outcome::Completed };
    let story: [(Event, Vec<Action>, State); 7] = [
        (Ready, vec![ask(true, false)], RUNNING),
        (turn(0, 2), vec![Action::Carry { call: 0 }], RUNNING),
        (Answered, vec![Action::Carry { call: 1 }], RUNNING),
        (Answered, vec![ask(false, false)], RUNNING),
        (turn(1, 0), vec![ask(false, false)], RUNNING),
        (turn(2, 0), vec![ask(false, false)], RUNNING),
        (Ended(Outcome::Completed), vec![Action::Dismiss, end(Outcome::Completed, 0, 0)], ended),
    ];
    let (mut course, actions) = Course::take_up(&NEW);
    assert_eq!((actions, course.state()), (vec![Action::Hire { after: Duration::ZERO }], State::Starting));
    for (event, due, state) in story {
        let (next, actions) = course.step(event).unwrap();
        assert_eq!((actions, next.state()), (due, state), "{event:?}");
        course = next;
    }
    assert!(course.is_over());
}

#[test]
fn a_message_is_told_once_and_only_where_it_is_waited_for() {
    use Event::{Answered, Message, Ready};
    // Waited for, then said.
    let (course, actions) = after(NEW, &[Ready, awaiting(0, 1), Answered]);
    assert_eq!((course.state(), actions), (LISTENS, vec![]));
    assert_eq!(course.step(Message).unwrap().1, [ask(false, true)]);
    // Said before, twice; each wait takes one.
    let (course, actions) = after(NEW, &[Message, Ready, Message, awaiting(0, 0)]);
    assert_eq!((course.state(), actions), (RUNNING, vec![ask(false, true)]));
    let (course, actions) = course.step(awaiting(1, 0)).unwrap();
    assert_eq!(actions, [ask(false, true)]);
    assert_eq!(course.step(awaiting(2, 0)).unwrap().0.state(), LISTENS);
    // Not waited for.
    assert_eq!(after(NEW, &[Ready, Message, turn(0, 0)]).1, [ask(false, false)]);
    // Told, and the worker lost before it spoke: the next one is told with everything else.
    assert_eq!(after(NEW, &[Ready, awaiting(0, 0), Message, LOST, Ready]).1, [ask(true, false)]);
    // Said while there is no worker.
    assert_eq!(after(NEW, &[Ready, awaiting(0, 0), LOST, Message, Ready]).1, [ask(true, true)]);
}

#[test]
fn messages_that_nobody_waits_for_are_bounded() {
    let mut events = vec![Event::Ready];
    events.extend([Event::Message; MOST_WAITING as usize]);
    assert_eq!(refused(NEW, &events, Event::Message), Misstep::TooManyMessages);
}

#[test]
fn what_is_unknown_waits_for_a_person() {
    use Event::{Ready, Reconciled, Unknown};
    let steps = [Ready, turn(0, 2), Unknown(operation())];
    let (course, actions) = after(NEW, &steps);
    assert_eq!((course.state(), actions, course.unsure()), (UNSURE, vec![], Some((0, operation()))));
    let other = OperationId::new(1, [8; 10]);
    assert_eq!(refused(NEW, &steps, Reconciled(other)), Misstep::NotUnsure);
    assert_eq!(refused(NEW, &steps[..2], Reconciled(operation())), Misstep::NotUnsure);
    assert_eq!(course.step(Reconciled(operation())).unwrap().1, [Action::Carry { call: 1 }]);
    // A new worker changes nothing about it.
    let (course, actions) = after(NEW, &[Ready, turn(0, 2), Unknown(operation()), LOST, Ready]);
    assert_eq!((course.state(), actions), (UNSURE, vec![]));
}

#[test]
fn a_lost_worker_is_replaced_and_told_everything() {
    use Event::{Answered, Ready, Withdrawn};
    assert_eq!(after(NEW, &[LOST]).1, [hire(0)]);
    assert_eq!(after(NEW, &[Ready, LOST, Ready]).1, [ask(true, false)]);
    // A question of the lost worker is void; what runs goes on, and the next call waits for the next worker.
    let (course, actions) = after(NEW, &[Ready, turn(0, 2), LOST]);
    assert_eq!(actions, [Action::Void, hire(0)]);
    let (course, actions) = course.step(Answered).unwrap();
    assert_eq!(actions, []);
    assert_eq!(course.step(Ready).unwrap().1, [Action::Carry { call: 1 }]);
    // The next worker comes first: it is asked only once the answer is there.
    let (course, actions) = after(NEW, &[Ready, turn(0, 1), LOST, Ready]);
    assert_eq!(actions, []);
    assert_eq!(course.step(Answered).unwrap().1, [ask(true, false)]);
    // Given up before it was recorded: it is carried out in the next worker's epoch.
    assert_eq!(after(NEW, &[Ready, turn(0, 1), LOST, Withdrawn, Ready]).1, [Action::Carry { call: 0 }]);
    assert_eq!(after(NEW, &[Ready, turn(0, 1), LOST, Ready, Withdrawn]).1, [Action::Carry { call: 0 }]);
}

#[test]
fn losses_in_a_row_end_the_session_and_a_turn_or_a_long_life_starts_the_row_anew() {
    let mut events = Vec::new();
    for rest in 0..RESTS.len() {
        events.extend([Event::Ready, LOST]);
        assert_eq!(after(NEW, &events).1, [hire(rest)]);
    }
    let mut all = events.clone();
    all.push(Event::Ready);
    let (course, actions) = after(NEW, &[&all[..], &[LOST]].concat());
    assert_eq!((course.is_over(), actions), (true, vec![end(Outcome::Failed, 0, 0)]));
    assert_eq!(after(NEW, &[&all[..], &[turn(0, 0), LOST]].concat()).1, [hire(0)]);
    assert_eq!(after(NEW, &[&all[..], &[Event::Lost { settled: true }]].concat()).1, [hire(0)]);
    // While a call runs, the session ends with it.
    let mut calling = vec![Event::Ready, turn(0, 3), LOST];
    calling.extend([LOST; 5]);
    let (course, actions) = after(NEW, &calling);
    assert_eq!(actions, [Action::Void, hire(5)]);
    let (course, actions) = course.step(LOST).unwrap();
    assert_eq!((course.is_over(), actions), (false, vec![Action::CallOff]));
    assert_eq!(course.step(Event::Answered).unwrap().1, [end(Outcome::Failed, 1, 3)]);
}

#[test]
fn a_cancel_ends_what_runs_before_the_session() {
    use Event::{Answered, Cancel, Ready, Unknown, Withdrawn};
    let cancelled = |from, of| end(Outcome::Cancelled, from, of);
    assert_eq!(after(NEW, &[Cancel]).1, [cancelled(0, 0)]);
    assert_eq!(after(NEW, &[Ready, Cancel]).1, [Action::Dismiss, cancelled(0, 0)]);
    assert_eq!(after(NEW, &[Ready, awaiting(0, 0), Cancel]).1, [Action::Dismiss, cancelled(0, 0)]);
    let (course, actions) = after(NEW, &[Ready, turn(0, 3), Answered, Cancel]);
    assert_eq!((course.state(), actions), (RUNNING, vec![Action::Dismiss, Action::CallOff]));
    assert_eq!(course.step(Answered).unwrap().1, [cancelled(2, 3)]);
    assert_eq!(course.step(Withdrawn).unwrap().1, [cancelled(1, 3)]);
    assert_eq!(course.step(Unknown(operation())).unwrap().1, [cancelled(1, 3)]);
    assert_eq!(course.step(LOST).unwrap().1, [], "the worker's end was ours");
    assert_eq!(course.step(Cancel), Err(Misstep::Over));
    let unsure = [Ready, turn(0, 3), Answered, Unknown(operation()), Cancel];
    assert_eq!(after(NEW, &unsure).1, [Action::Dismiss, cancelled(1, 3)]);
}

#[test]
fn a_worker_that_speaks_out_of_its_turn_is_not_heard() {
    use Event::{Answered, Cancel, Ended, Ready, Unknown};
    let done = Ended(Outcome::Completed);
    let silent: [&[Event]; 6] = [
        &[],
        &[Ready, turn(0, 1)],
        &[Ready, turn(0, 1), Unknown(operation())],
        &[Ready, awaiting(0, 0)],
        &[Ready, LOST],
        &[Ready, turn(0, 1), LOST, Ready],
    ];
    for events in silent {
        for word in [turn(0, 0), turn(1, 0), done] {
            assert_eq!(refused(NEW, events, word), Misstep::OutOfPhase, "{events:?} {word:?}");
        }
    }
    for (number, found) in [(1, 1), (2, 2), (u64::MAX, u64::MAX)] {
        assert_eq!(refused(NEW, &[Ready], turn(number, 0)), Misstep::WrongTurn { due: 0, found });
    }
    assert_eq!(refused(NEW, &[Ready, turn(0, 0)], turn(0, 0)), Misstep::WrongTurn { due: 1, found: 0 });
    for word in [turn(1, 0), done] {
        assert_eq!(refused(NEW, &[Ready, turn(0, 1), Cancel], word), Misstep::Over);
        assert_eq!(refused(NEW, &[Ready, turn(0, 1), Cancel, Answered], word), Misstep::Over);
    }
    assert_eq!(refused(NEW, &[Ready], Ready), Misstep::Impossible);
    for report in [Answered, Event::Withdrawn, Unknown(operation())] {
        assert_eq!(refused(NEW, &[Ready], report), Misstep::Impossible);
    }
}

#[test]
fn the_last_turn_that_there_may_be_ends_the_session() {
    let recorded = Recorded { turns: MOST_TURNS - 1, begun: true, ..NEW };
    let (course, actions) = after(recorded, &[Event::Ready, turn(MOST_TURNS - 1, 2)]);
    assert_eq!((course.is_over(), actions), (true, vec![Action::Dismiss, end(Outcome::Failed, 0, 2)]));
}

#[test]
fn a_session_is_taken_up_where_its_record_ends() {
    let at = |calls, answered, awaits, told, waiting| Recorded {
        turns: 3,
        calls,
        answered,
        awaits,
        told,
        waiting,
        begun: true,
        ..NEW
    };
    for (recorded, state, due) in [
        (at(0, 0, false, false, 0), RUNNING, vec![ask(true, false)]),
        (at(2, 2, false, false, 1), RUNNING, vec![ask(true, false)]),
        (at(2, 1, false, false, 0), RUNNING, vec![Action::Carry { call: 1 }]),
        (at(2, 0, true, false, 1), RUNNING, vec![Action::Carry { call: 0 }]),
        (at(2, 2, true, false, 0), LISTENS, vec![]),
        (at(2, 2, true, false, 1), RUNNING, vec![ask(true, true)]),
        (at(2, 2, true, true, 1), RUNNING, vec![ask(true, false)]),
    ] {
        let (course, actions) = Course::take_up(&recorded);
        assert_eq!(actions, [Action::Hire { after: Duration::ZERO }], "{recorded:?}");
        assert_eq!(course.state(), state, "{recorded:?}");
        assert_eq!(course.step(Event::Ready).unwrap().1, due, "{recorded:?}");
    }
}

#[test]
fn a_session_that_was_about_to_end_ends_after_a_restart() {
    let closing = Some(Outcome::Cancelled);
    let recorded = Recorded { turns: 1, calls: 3, answered: 1, begun: true, closing, ..NEW };
    let (course, actions) = Course::take_up(&recorded);
    assert_eq!((course.is_over(), actions), (true, vec![end(Outcome::Cancelled, 1, 3)]));
    let (course, actions) = Course::take_up(&Recorded { proposed: true, ..recorded });
    assert_eq!((course.closing(), actions), (closing, vec![Action::Carry { call: 1 }]));
    assert_eq!(course.step(Event::Answered).unwrap().1, [end(Outcome::Cancelled, 2, 3)]);
    assert_eq!(course.step(Event::Cancel), Err(Misstep::Over));
}

/// Whatever happens in whatever order: no call is carried out twice unless it was withdrawn, none while another one
/// is under way, no turn is asked for before every call is answered, and the state only moves as sessions do.
#[test]
fn no_order_of_events_carries_a_call_out_twice() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for _ in 0..2_000 {
        let (mut course, _) = Course::take_up(&NEW);
        let (mut under_way, mut answered, mut of, mut ends) = (None, 0, 0, 0);
        for _ in 0..60 {
            let event = match draw(14) {
                0 | 1 => Event::Ready,
                2 => Event::Lost { settled: draw(2) == 0 },
                3..=6 => Event::Turn { number: course.turns, calls: draw(4), awaits: draw(4) == 0 },
                7 if draw(8) == 0 => Event::Ended(Outcome::Completed),
                8 | 9 => Event::Answered,
                10 => Event::Unknown(operation()),
                11 => Event::Reconciled(operation()),
                12 => Event::Withdrawn,
                13 if draw(12) == 0 => Event::Cancel,
                _ => Event::Message,
            };
            let Ok((next, actions)) = course.step(event) else { continue };
            match event {
                Event::Turn { calls, .. } => (answered, of) = (0, calls),
                Event::Answered | Event::Reconciled(_) => {
                    answered += 1;
                    under_way = None;
                }
                Event::Withdrawn | Event::Unknown(_) => under_way = None,
                Event::Ready | Event::Lost { .. } | Event::Ended(_) | Event::Message | Event::Cancel | Event::Fail => {}
            }
            for action in &actions {
                match action {
                    Action::Carry { call } => {
                        assert_eq!((*call, under_way), (answered, None));
                        assert!(*call < of);
                        under_way = Some(*call);
                    }
                    Action::Ask { .. } => assert_eq!((answered, under_way), (of, None)),
                    Action::Conclude { from, of: all, .. } => {
                        ends += 1;
                        assert_eq!(all - from, of - answered, "every call has an answer in the end");
                    }
                    Action::Hire { .. } | Action::Dismiss | Action::Void | Action::CallOff => {}
                }
            }
            assert!(next.state() == course.state() || course.state().may_become(next.state()));
            course = next;
        }
        assert_eq!(ends, u32::from(course.is_over()));
    }
}
