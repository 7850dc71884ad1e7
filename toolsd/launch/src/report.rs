//! The report: fixed records of [`BYTES`] bytes, so that one write is one record and a reader cannot lose
//! its place.

use crate::attack::Attack;

/// The size of a record, far below PIPE_BUF: a write of it is atomic.
pub const BYTES: usize = 48;

/// One thing that launch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// All layers hold and exec is next.
    Layers(Layers),
    /// A step failed; nothing was exec'd.
    Failed(Step, i32),
    /// What one attack of the canary met: an errno, 0 = it was not denied.
    Attacked(Attack, i32),
    /// The command ended and nothing of it is left inside.
    Ended(Ended),
}

/// The layers that took hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// The landlock ABI in force, 0 = none.
    pub landlock_abi: u32,
    /// How much of what was asked of landlock is enforced.
    pub landlock: Enforcement,
    /// Whether the seccomp program is loaded.
    pub seccomp: bool,
}

/// How much of a landlock ruleset is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// All.
    Fully,
    /// Some.
    Partially,
    /// Nothing.
    Not,
}

/// The steps of launch, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reading the plan.
    Plan,
    /// Making the child.
    Fork,
    /// Entering the working directory.
    Directory,
    /// Setting resource limits.
    Limits,
    /// Forbidding new privileges.
    NoNewPrivileges,
    /// Entering the landlock domain.
    Landlock,
    /// Loading the seccomp program.
    Seccomp,
    /// Comparing bound content.
    Bound,
    /// exec.
    Exec,
}

impl Step {
    const ALL: [Self; 9] = [
        Self::Plan,
        Self::Fork,
        Self::Directory,
        Self::Limits,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::Seccomp,
        Self::Bound,
        Self::Exec,
    ];
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, if it exited.
    pub code: i32,
    /// The signal that ended it, 0 = it exited.
    pub signal: i32,
    /// Processes that were still there and were ended.
    pub left: u32,
    /// User and system time of the whole tree in microseconds.
    pub cpu_us: u64,
    /// The largest resident set of one process in KiB.
    pub peak_kib: u64,
}

impl Record {
    /// The bytes of the record.
    pub fn encode(&self) -> [u8; BYTES] {
        let numbers: [u64; 6] = match *self {
            Self::Layers(layers) => {
                [1, u64::from(layers.landlock_abi), enforcement(layers.landlock), u64::from(layers.seccomp), 0, 0]
            }
            Self::Failed(step, errno) => [2, step as u64, signed(errno), 0, 0, 0],
            Self::Attacked(attack, errno) => [3, attack as u64, signed(errno), 0, 0, 0],
            Self::Ended(e) => [4, signed(e.code), signed(e.signal), u64::from(e.left), e.cpu_us, e.peak_kib],
        };
        let mut bytes = [0; BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads a record; `None` for bytes that launch does not write.
    pub fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let mut numbers = [0u64; 6];
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_le_bytes(place.try_into().ok()?);
        }
        let [tag, a, b, c, d, e] = numbers;
        let int = |n: u64| i32::try_from(n).ok();
        Some(match tag {
            1 => Self::Layers(Layers {
                landlock_abi: u32::try_from(a).ok()?,
                landlock: match b {
                    0 => Enforcement::Not,
                    1 => Enforcement::Partially,
                    2 => Enforcement::Fully,
                    _ => return None,
                },
                seccomp: match c {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
            }),
            2 => Self::Failed(*Step::ALL.get(usize::try_from(a).ok()?)?, int(b)?),
            3 => Self::Attacked(Attack::numbered(u32::try_from(a).ok()?)?, int(b)?),
            4 => Self::Ended(Ended {
                code: int(a)?,
                signal: int(b)?,
                left: u32::try_from(c).ok()?,
                cpu_us: d,
                peak_kib: e,
            }),
            _ => return None,
        })
    }
}

/// Errnos, codes and signals are never negative; one that is becomes a number that no reader takes.
fn signed(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

const fn enforcement(enforcement: Enforcement) -> u64 {
    match enforcement {
        Enforcement::Not => 0,
        Enforcement::Partially => 1,
        Enforcement::Fully => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_foreign_bytes_are_refused() {
        let ended = Ended { code: 3, signal: 0, left: 2, cpu_us: 1 << 40, peak_kib: 9 };
        let layers = Layers { landlock_abi: 7, landlock: Enforcement::Fully, seccomp: true };
        for record in [
            Record::Layers(layers),
            Record::Failed(Step::Exec, 2),
            Record::Failed(Step::Plan, 0),
            Record::Attacked(Attack::MoveGit, 16),
            Record::Ended(ended),
        ] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&[0xff; BYTES]), None);
        assert_eq!(Record::decode(&[0; BYTES]), None);
    }

    #[test]
    fn steps_are_numbered_in_order() {
        for (number, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, number);
        }
    }
}
