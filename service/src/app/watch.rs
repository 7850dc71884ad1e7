//! The look at the host that is taken again and again: after every start of an executor, on a timer, and when an
//! operator asks. A required check that begins to fail stops new grants until it holds again.

use std::{collections::BTreeSet, os::unix::fs::MetadataExt as _, sync::Arc, time::Duration};

use salaam_core::{check::Check, time::Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

use super::start::dedup;
use crate::{
    operation::{Context, Tools},
    probe::{ATTACKS, Depth, Engine},
};

/// One look that somebody asks for.
#[derive(Debug)]
pub(super) struct Look {
    depth: Depth,
    done: Option<oneshot::Sender<()>>,
}

impl Look {
    /// After the start of an executor: a quiet one, so that one that dies again and again does not fill the
    /// system's log. Nobody waits for it.
    pub(super) const fn of_executor() -> Self {
        Self { depth: Depth::Quiet, done: None }
    }

    /// A whole one, or a proof; the receiver resolves when its outcome is in force.
    pub(super) fn answered(prove: bool) -> (Self, oneshot::Receiver<()>) {
        let (done, receiver) = oneshot::channel();
        (Self { depth: if prove { Depth::Proof } else { Depth::Whole }, done: Some(done) }, receiver)
    }
}

/// What a rule of sudo or a membership is written in: their times say that a whole look is due. It is taken only
/// then, since sudo mails root each time that somebody without a rule asks it.
const RULES: [&str; 4] = ["/etc/sudoers", "/etc/sudoers.d", "/etc/group", "/etc/passwd"];

/// The owner of the checks while the service runs.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) context: Arc<Context>,
    pub(super) engine: Engine,
    pub(super) tools: watch::Sender<Tools>,
    pub(super) checks: watch::Sender<Vec<(Check, Timestamp)>>,
    /// Between two looks of the timer.
    pub(super) every: Duration,
}

impl Watch {
    /// Looks until nobody can ask any more.
    pub(super) async fn run(self, mut asked: mpsc::Receiver<Look>) {
        let mut raised = BTreeSet::new();
        let mut rules = written();
        loop {
            let look = tokio::select! {
                look = asked.recv() => match look {
                    Some(look) => Some(look),
                    None => return,
                },
                () = tokio::time::sleep(self.every) => None,
            };
            let now = written();
            // What a program showed can be taken back only by a program.
            let due = now != rules || !raised.is_empty();
            let depth = match look.as_ref().map(|look| look.depth) {
                Some(asked @ (Depth::Proof | Depth::Whole)) => asked,
                Some(Depth::Quiet) | None => {
                    if due {
                        Depth::Whole
                    } else {
                        Depth::Quiet
                    }
                }
            };
            rules = now;
            self.look(depth, &mut raised).await;
            if let Some(done) = look.and_then(|look| look.done) {
                // Whoever asked may have gone away.
                let _ = done.send(());
            }
        }
    }

    async fn look(&self, depth: Depth, raised: &mut BTreeSet<String>) {
        let mut found = self.engine.alone(depth).await;
        if let Ok(link) = self.context.executor.link() {
            let measured = self.engine.with_executor(&link, self.context.manifest.landlock, depth).await;
            // An executor that was lost meanwhile showed nothing.
            let lives = self.context.executor.link().is_ok_and(|now| now.epoch() == link.epoch());
            if lives {
                found.extend(measured.checks);
                found.push(self.context.group.to_check_with(link.is_grouped()));
                self.tools.send_replace(Tools { sandbox: measured.sandbox });
            }
        }
        dedup(&mut found);
        for check in &found {
            if check.blocks() && !raised.contains(&check.id) {
                raised.insert(check.id.clone());
                self.context.control_failed(&check.id, &check.evidence).await;
            } else if !check.blocks() && raised.contains(&check.id) {
                self.context.control_restored(&check.id, &check.evidence).await;
                if !self.context.controls.failed().contains(&check.id) {
                    raised.remove(&check.id);
                }
            }
        }
        let at = self.context.clock.now();
        self.checks.send_modify(|rows| merge(rows, found, at));
    }
}

/// New rows take the place of those of their ids; what was not tried this time stands, but for the single attacks of
/// a proof: they belong to it.
fn merge(rows: &mut Vec<(Check, Timestamp)>, found: Vec<Check>, at: Timestamp) {
    rows.retain(|(row, _)| !row.id.starts_with(ATTACKS));
    for check in found {
        match rows.iter_mut().find(|(row, _)| row.id == check.id) {
            Some(row) => *row = (check, at),
            None => rows.push((check, at)),
        }
    }
}

fn written() -> Vec<Option<(i64, i64)>> {
    RULES.iter().map(|path| std::fs::metadata(path).ok().map(|meta| (meta.ctime(), meta.ctime_nsec()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_row_takes_the_place_of_the_old_one_and_untried_ones_stand() {
        let (first, second) = (Timestamp::from_micros(1), Timestamp::from_micros(2));
        let mut rows = ["a", "b", "sandbox-attack-x"].map(|id| (Check::pass(id, "1"), first)).to_vec();
        merge(&mut rows, vec![Check::fail("b", "2", "mend"), Check::pass("c", "2")], second);
        let seen: Vec<_> = rows.iter().map(|(check, at)| (check.id.as_str(), check.refuses(), *at)).collect();
        assert_eq!(seen, [("a", false, first), ("b", true, second), ("c", false, second)]);
    }
}
