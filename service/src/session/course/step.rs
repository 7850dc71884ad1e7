//! Each event, and what it makes of a course.

use salaam_core::{id::OperationId, session::Outcome};

use super::{Action, Course, Event, MOST_TURNS, MOST_WAITING, Misstep, RESTS, Seat, Stage};

impl Course {
    /// What follows from `event`; the course itself is as it was before, so that a record that fails changes nothing.
    pub(in crate::session) fn step(&self, event: Event) -> Result<(Self, Vec<Action>), Misstep> {
        let mut next = *self;
        let mut actions = Vec::new();
        match event {
            Event::Ready => next.ready()?,
            Event::Lost { settled } => next.lost(settled, &mut actions),
            Event::Turn { number, calls, awaits } => next.take_turn(number, calls, awaits, &mut actions)?,
            Event::Ended(outcome) => {
                next.asked()?;
                next.close(outcome, &mut actions);
            }
            Event::Answered => next.answered(&mut actions)?,
            Event::Withdrawn => next.withdrawn(&mut actions)?,
            Event::Unknown(operation) => next.unknown(operation, &mut actions)?,
            Event::Reconciled(operation) => next.reconciled(operation)?,
            Event::Message => next.message()?,
            Event::Cancel => {
                next.is_open()?;
                next.close(Outcome::Cancelled, &mut actions);
            }
            Event::Fail => {
                next.is_open()?;
                next.close(Outcome::Failed, &mut actions);
            }
        }
        next.follow(&mut actions);
        Ok((next, actions))
    }

    fn ready(&mut self) -> Result<(), Misstep> {
        match self.seat {
            Seat::Empty => {
                self.seat = Seat::Taken { told: false };
                self.begun = true;
                Ok(())
            }
            Seat::Taken { .. } => Err(Misstep::Impossible),
        }
    }

    fn lost(&mut self, settled: bool, actions: &mut Vec<Action>) {
        self.seat = Seat::Empty;
        self.begun = true;
        match self.stage {
            Stage::Closing { .. } | Stage::Over(_) => return,
            Stage::Asking { .. } => self.stage = Stage::Asking { asked: false },
            Stage::Calling { under_way: true, .. } => actions.push(Action::Void),
            Stage::Calling { under_way: false, .. } | Stage::Unsure { .. } | Stage::Listening => {}
        }
        if settled {
            self.losses = 0;
        }
        match RESTS.get(self.losses) {
            Some(rest) => actions.push(Action::Hire { after: *rest }),
            None => self.close(Outcome::Failed, actions),
        }
        self.losses += 1;
    }

    fn take_turn(&mut self, number: u64, calls: u64, awaits: bool, actions: &mut Vec<Action>) -> Result<(), Misstep> {
        self.asked()?;
        let due = self.turns;
        if number != due {
            return Err(Misstep::WrongTurn { due, found: number });
        }
        self.turns += 1;
        self.awaits = awaits;
        self.losses = 0;
        self.stage = Stage::Calling { next: 0, of: calls, under_way: false };
        if self.turns >= MOST_TURNS {
            self.close(Outcome::Failed, actions);
        }
        Ok(())
    }

    fn answered(&mut self, actions: &mut Vec<Action>) -> Result<(), Misstep> {
        match self.stage {
            Stage::Calling { next, of, under_way: true } => {
                self.stage = Stage::Calling { next: next + 1, of, under_way: false };
                Ok(())
            }
            Stage::Closing { outcome, call, of } => {
                self.conclude(outcome, call + 1, of, actions);
                Ok(())
            }
            Stage::Calling { under_way: false, .. }
            | Stage::Asking { .. }
            | Stage::Unsure { .. }
            | Stage::Listening
            | Stage::Over(_) => Err(Misstep::Impossible),
        }
    }

    fn withdrawn(&mut self, actions: &mut Vec<Action>) -> Result<(), Misstep> {
        match self.stage {
            Stage::Calling { next, of, under_way: true } => {
                self.stage = Stage::Calling { next, of, under_way: false };
                Ok(())
            }
            Stage::Closing { outcome, call, of } => {
                self.conclude(outcome, call, of, actions);
                Ok(())
            }
            Stage::Calling { under_way: false, .. }
            | Stage::Asking { .. }
            | Stage::Unsure { .. }
            | Stage::Listening
            | Stage::Over(_) => Err(Misstep::Impossible),
        }
    }

    fn unknown(&mut self, operation: OperationId, actions: &mut Vec<Action>) -> Result<(), Misstep> {
        match self.stage {
            Stage::Calling { next, of, under_way: true } => {
                self.stage = Stage::Unsure { call: next, of, operation };
                Ok(())
            }
            Stage::Closing { outcome, call, of } => {
                self.conclude(outcome, call, of, actions);
                Ok(())
            }
            Stage::Calling { under_way: false, .. }
            | Stage::Asking { .. }
            | Stage::Unsure { .. }
            | Stage::Listening
            | Stage::Over(_) => Err(Misstep::Impossible),
        }
    }

    fn reconciled(&mut self, named: OperationId) -> Result<(), Misstep> {
        match self.stage {
            Stage::Unsure { call, of, operation } if operation == named => {
                self.stage = Stage::Calling { next: call + 1, of, under_way: false };
                Ok(())
            }
            Stage::Unsure { .. }
            | Stage::Asking { .. }
            | Stage::Calling { .. }
            | Stage::Listening
            | Stage::Closing { .. }
            | Stage::Over(_) => Err(Misstep::NotUnsure),
        }
    }

    fn message(&mut self) -> Result<(), Misstep> {
        self.is_open()?;
        if self.waiting >= MOST_WAITING {
            return Err(Misstep::TooManyMessages);
        }
        self.waiting += 1;
        Ok(())
    }

    /// The worker may speak: it is there and was asked.
    const fn asked(&self) -> Result<(), Misstep> {
        match (self.stage, self.seat) {
            (Stage::Asking { asked: true }, Seat::Taken { told: true }) => Ok(()),
            (Stage::Closing { .. } | Stage::Over(_), Seat::Empty | Seat::Taken { .. }) => Err(Misstep::Over),
            (
                Stage::Asking { .. } | Stage::Calling { .. } | Stage::Unsure { .. } | Stage::Listening,
                Seat::Empty | Seat::Taken { .. },
            ) => Err(Misstep::OutOfPhase),
        }
    }

    const fn is_open(&self) -> Result<(), Misstep> {
        match self.stage {
            Stage::Closing { .. } | Stage::Over(_) => Err(Misstep::Over),
            Stage::Asking { .. } | Stage::Calling { .. } | Stage::Unsure { .. } | Stage::Listening => Ok(()),
        }
    }

    fn close(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        if self.seat != Seat::Empty {
            actions.push(Action::Dismiss);
            self.seat = Seat::Empty;
        }
        match self.stage {
            Stage::Calling { next, of, under_way: true } => {
                actions.retain(|action| *action != Action::Void);
                actions.push(Action::CallOff);
                self.stage = Stage::Closing { outcome, call: next, of };
            }
            Stage::Calling { next, of, under_way: false } => self.conclude(outcome, next, of, actions),
            Stage::Unsure { call, of, .. } => self.conclude(outcome, call, of, actions),
            Stage::Asking { .. } | Stage::Listening => self.conclude(outcome, 0, 0, actions),
            Stage::Closing { .. } | Stage::Over(_) => {}
        }
    }

    pub(super) fn conclude(&mut self, outcome: Outcome, from: u64, of: u64, actions: &mut Vec<Action>) {
        actions.push(Action::Conclude { outcome, from, of });
        self.stage = Stage::Over(outcome);
    }

    /// What is due without anything more happening.
    pub(super) fn follow(&mut self, actions: &mut Vec<Action>) {
        if let Stage::Calling { next, of, under_way: false } = self.stage {
            if next < of {
                // Without a worker there is no epoch to propose in.
                if let Seat::Taken { .. } = self.seat {
                    self.stage = Stage::Calling { next, of, under_way: true };
                    actions.push(Action::Carry { call: next });
                }
            } else if self.awaits {
                self.stage = Stage::Listening;
            } else {
                self.stage = Stage::Asking { asked: false };
            }
        }
        if self.stage == Stage::Listening && self.waiting > 0 {
            self.stage = Stage::Asking { asked: false };
        }
        if self.stage == (Stage::Asking { asked: false })
            && let Seat::Taken { told } = self.seat
        {
            let message = self.awaits;
            self.waiting = self.waiting.saturating_sub(u64::from(message));
            self.awaits = false;
            actions.push(Action::Ask { begin: !told, message });
            self.stage = Stage::Asking { asked: true };
            self.seat = Seat::Taken { told: true };
        }
    }
}
