//! The order in tables, and the promises under thousands of random courses.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Asks and takes every turn there is.
fn all(turns: &mut Turns<u8>) -> Vec<Ticket> {
    std::iter::from_fn(|| turns.call()).collect()
}

#[test]
fn one_of_another_line_goes_before_the_second_of_a_flood() {
    let mut turns = Turns::default();
    let first = turns.ask(1, 1);
    assert_eq!(all(&mut turns), [first]);
    let flood: Vec<_> = (0..50).map(|_| turns.ask(1, 1)).collect();
    let single = turns.ask(2, 1);
    assert_eq!(all(&mut turns), []);
    turns.done(1);
    // Nobody is at work: the flood's line was there first.
    assert_eq!(all(&mut turns), [flood[0]]);
    turns.done(1);
    assert_eq!(all(&mut turns), [single]);
    turns.done(2);
    assert_eq!(all(&mut turns), [flood[1]]);
}

#[test]
fn who_has_fewest_at_work_goes_first() {
    let mut turns = Turns::default();
    let flood: Vec<_> = (0..10).map(|_| turns.ask(1, 4)).collect();
    assert_eq!(all(&mut turns), flood[..4]);
    let others: Vec<_> = (2..5).map(|key| turns.ask(key, 4)).collect();
    for other in others {
        turns.done(1);
        assert_eq!(all(&mut turns), [other], "before anything more of the flood");
    }
    turns.done(1);
    assert_eq!(all(&mut turns), [flood[4]]);
}

#[test]
fn a_line_with_one_at_work_is_not_put_off_for_ever_by_a_crowd_without() {
    let mut turns = Turns::default();
    let (long, second) = (turns.ask(0, 2), turns.ask(0, 2));
    assert_eq!(all(&mut turns), [long, second]);
    let third = turns.ask(0, 2);
    turns.done(0);
    // `long` goes on; each other session comes back as soon as it is done.
    assert_eq!(all(&mut turns), [third]);
    let fourth = turns.ask(0, 2);
    for round in 0.. {
        let crowd = turns.ask(u8::try_from(round % 5 + 1).unwrap(), 2);
        turns.done(if round == 0 { 0 } else { u8::try_from((round - 1) % 5 + 1).unwrap() });
        match all(&mut turns)[..] {
            [one] if one == crowd => assert!(round < PATIENCE, "passed over too often"),
            [one] if one == fourth => break,
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lower_limit_is_kept_and_has_its_turn_when_it_was_passed_over_often_enough() {
    let mut turns = Turns::default();
    let modest_first = turns.ask(9, 1);
    assert_eq!(all(&mut turns), [modest_first]);
    let modest = turns.ask(9, 1);
    let mut running = BTreeSet::new();
    let mut passed = 0;
    turns.done(9);
    turns.enter(8);
    loop {
        let one = turns.ask(1, 3);
        let called = all(&mut turns);
        if called.is_empty() {
            break;
        }
        assert_eq!(called, [one]);
        passed += 1;
        running.insert(one);
        if running.len() == 2 {
            running.clear();
            turns.done(1);
            turns.done(1);
        }
        assert!(passed <= PATIENCE);
    }
    // It holds all others back until what runs is down to its own limit.
    while turns.at_work() > 1 {
        turns.done(1);
        assert_eq!(all(&mut turns), []);
    }
    turns.done(8);
    assert_eq!(turns.call(), Some(modest));
}

#[test]
fn who_leaves_is_not_called_and_leaving_twice_or_after_the_call_says_so() {
    let mut turns = Turns::default();
    let [first, second, third] = [turns.ask(1, 1), turns.ask(1, 1), turns.ask(2, 1)];
    assert_eq!(all(&mut turns), [first]);
    assert!(!turns.leave(first), "it is at work");
    assert!(turns.leave(second) && !turns.leave(second));
    turns.done(1);
    assert_eq!(all(&mut turns), [third]);
    turns.done(2);
    turns.done(2);
    assert!(turns.is_idle());
}

#[test]
fn a_limit_of_nothing_still_lets_one_go() {
    let mut turns = Turns::default();
    let only = turns.ask(1, 0);
    assert_eq!(all(&mut turns), [only]);
}

/// Numbers of a fixed course, so that a failure can be run again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What the test knows of one who waits.
struct Waits {
    key: u8,
    most: u64,
    /// How many of its line are before it.
    before: u64,
    /// Turns that others had since it asked, and the most that it can be.
    turns: u64,
    bound: u64,
}

/// Whatever comes in whatever order: nobody goes beyond their limit, no place is lost, nobody waits who could go,
/// within a line the order is kept, and nobody waits beyond the bound.
#[test]
fn ten_thousand_random_steps_of_each_course_keep_every_promise() {
    for seed in 0..40 {
        course(&mut Numbers(seed));
    }
}

fn course(numbers: &mut Numbers) {
    let keys = 1 + numbers.below(12);
    let mut most = 1 + numbers.below(6);
    let mut turns = Turns::default();
    let mut waiting: BTreeMap<Ticket, Waits> = BTreeMap::new();
    let mut at_work: Vec<u8> = Vec::new();
    for _ in 0..10_000 {
        match numbers.below(20) {
            0..9 if waiting.len() < 60 => {
                let key = u8::try_from(numbers.below(keys)).unwrap();
                let before = waiting.values().filter(|other| other.key == key).count() as u64;
                let bound = (before + 1) * (u64::from(PATIENCE) + keys + 1);
                waiting.insert(turns.ask(key, most), Waits { key, most, before, turns: 0, bound });
            }
            9..12 if !waiting.is_empty() => {
                let at = usize::try_from(numbers.below(waiting.len() as u64)).unwrap();
                let ticket = *waiting.keys().nth(at).unwrap();
                let gone = waiting.remove(&ticket).unwrap();
                assert!(turns.leave(ticket) && !turns.leave(ticket));
                for (_, later) in waiting.range_mut(ticket..).filter(|(_, other)| other.key == gone.key) {
                    later.before -= 1;
                }
            }
            // A plan with another limit.
            12 => most = 1 + numbers.below(6),
            0..20 => {
                if !at_work.is_empty() {
                    let at = usize::try_from(numbers.below(at_work.len() as u64)).unwrap();
                    turns.done(at_work.swap_remove(at));
                }
            }
            20.. => unreachable!(),
        }
        while let Some(called) = turns.call() {
            let went = waiting.remove(&called).expect("only who waits is called, and once");
            assert_eq!(went.before, 0, "within a line the order is kept");
            assert!((at_work.len() as u64) < went.most, "nobody goes beyond their limit");
            assert!(went.turns <= went.bound, "{} turns of others, at most {}", went.turns, went.bound);
            for other in waiting.values_mut() {
                other.turns += 1;
                other.before -= u64::from(other.key == went.key);
            }
            at_work.push(went.key);
        }
        assert_eq!(turns.at_work(), at_work.len() as u64, "no place is lost");
        if at_work.is_empty() {
            assert!(waiting.is_empty(), "with all places free nobody waits");
        }
    }
    while let Some(key) = at_work.pop() {
        turns.done(key);
        while let Some(called) = turns.call() {
            at_work.push(waiting.remove(&called).unwrap().key);
        }
    }
    assert!(waiting.is_empty() && turns.is_idle(), "as places come back everybody has had a turn");
}
