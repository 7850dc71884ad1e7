//! What a file and the temporary name beside it say about an edit that was begun: pure, and the only place
//! where it is decided whether an edit is in force, can be taken back, or neither.
//!
//! It rests on the order of the steps. Every new file stands under its temporary name before the first swap;
//! deletions come first, then exchanges, then creations; no temporary name goes before the last swap was
//! checked. So between the first and the last swap there is always at least one temporary name.

/// What an edit makes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// It goes.
    Delete,
    /// It becomes another.
    Replace,
    /// It comes.
    Create,
}

/// What stands at a name, held against what the edit expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing.
    Absent,
    /// The file as it was approved to stand before.
    Old,
    /// The file as it was approved to stand after.
    New,
    /// Something else.
    Foreign,
}

/// How one file of the edit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// As before, and nothing lies beside it.
    Untouched,
    /// As before, or as somebody else made it; what lies beside it is the new file, whole or in part.
    Staged,
    /// Swapped; the old file, if there was one, lies beside it.
    Swapped,
    /// Swapped, and nothing lies beside it any more.
    Cleared,
    /// The new file stands, and so it does beside: somebody else made the same.
    Twice,
    /// Swapped, and changed by somebody else since; the old file lies beside it.
    Overlaid,
    /// Swapped with a file that somebody else had changed, which lies beside it.
    Displaced,
    /// Anything else: what was done here cannot be told, or not be taken back.
    Unclear,
}

/// Reads the standing of one file from its name and the temporary name.
pub(super) const fn standing(kind: Kind, at: Seen, beside: Seen) -> Standing {
    use Seen::{Absent, Foreign, New, Old};
    match kind {
        Kind::Replace => match (at, beside) {
            (Old, Absent) => Standing::Untouched,
            // Written in part, it is neither old nor new.
            (Old, Old | New | Foreign) | (Absent | Foreign, New) => Standing::Staged,
            (New, Old) => Standing::Swapped,
            (New, Absent) => Standing::Cleared,
            (New, New) => Standing::Twice,
            (New, Foreign) => Standing::Displaced,
            (Absent | Foreign, Old) => Standing::Overlaid,
            (Absent | Foreign, Absent | Foreign) => Standing::Unclear,
        },
        Kind::Create => match (at, beside) {
            (Absent, Absent) => Standing::Untouched,
            (Absent | Foreign, New) | (Absent, Old | Foreign) => Standing::Staged,
            (New, Absent) => Standing::Swapped,
            (New, New) => Standing::Twice,
            (New, Old | Foreign) | (Old | Foreign, Absent | Old | Foreign) | (Old, New) => Standing::Unclear,
        },
        Kind::Delete => match (at, beside) {
            (Old, Absent) => Standing::Untouched,
            (Absent, Old) => Standing::Swapped,
            (Absent, Absent) => Standing::Cleared,
            (Absent, Foreign) => Standing::Displaced,
            (Foreign, Old) => Standing::Overlaid,
            (Old | Foreign, New | Foreign) | (Old, Old) | (Foreign, Absent) | (New, _) | (Absent, New) => {
                Standing::Unclear
            }
        },
    }
}

/// What is to be done about an edit that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every file was swapped: clear what lies beside.
    Finish,
    /// Not every file was: take back what was.
    RollBack,
    /// Somebody else's changes do not let either be told or done.
    Undecided,
}

/// Decides over all files, each with whether something lies beside it.
pub(super) fn verdict(files: &[(Standing, bool)]) -> Verdict {
    let (mut old, mut swapped, mut forward_only) = (false, false, false);
    for (standing, _) in files {
        match standing {
            Standing::Untouched | Standing::Staged => old = true,
            // It was never checked, so the edit was not over; and it must go back to where it was.
            Standing::Displaced => (old, swapped) = (true, true),
            Standing::Swapped => swapped = true,
            Standing::Cleared | Standing::Twice | Standing::Overlaid => forward_only = true,
            Standing::Unclear => return Verdict::Undecided,
        }
    }
    let anything_beside = files.iter().any(|(_, beside)| *beside);
    match (old, swapped, forward_only) {
        (false, _, _) => Verdict::Finish,
        (true, _, true) => Verdict::Undecided,
        (true, false, false) => Verdict::RollBack,
        // With nothing beside, this edit did not do it: somebody made the very files that it would have made.
        (true, true, false) if anything_beside => Verdict::RollBack,
        (true, true, false) => Verdict::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Standing::{Cleared, Displaced, Overlaid, Staged, Swapped, Twice, Unclear, Untouched};

    #[test]
    fn a_file_never_stands_swapped_and_not_swapped() {
        let all = [Seen::Absent, Seen::Old, Seen::New, Seen::Foreign];
        for kind in [Kind::Delete, Kind::Replace, Kind::Create] {
            for at in all {
                for beside in all {
                    let found = standing(kind, at, beside);
                    // What is taken away in either direction is never something that only somebody else has.
                    let foreign_beside = beside == Seen::Foreign && found == Swapped;
                    let foreign_at = at == Seen::Foreign && matches!(found, Untouched | Swapped | Cleared);
                    assert!(!foreign_beside && !foreign_at, "{kind:?} {at:?} {beside:?} {found:?}");
                }
            }
        }
    }

    #[test]
    fn an_edit_is_finished_only_if_every_file_was_swapped() {
        let decide = |standings: &[Standing]| {
            let beside = |s: &Standing| !matches!(s, Untouched | Cleared);
            verdict(&standings.iter().map(|s| (*s, beside(s))).collect::<Vec<_>>())
        };
        for all_new in [&[Swapped, Cleared] as &[_], &[Cleared], &[Twice, Swapped], &[Overlaid, Cleared], &[]] {
            assert_eq!(decide(all_new), Verdict::Finish, "{all_new:?}");
        }
        for part in
            [&[Untouched] as &[_], &[Staged, Untouched], &[Swapped, Staged], &[Displaced], &[Displaced, Swapped]]
        {
            assert_eq!(decide(part), Verdict::RollBack, "{part:?}");
        }
        for odd in [&[Cleared, Staged] as &[_], &[Overlaid, Untouched], &[Twice, Staged], &[Swapped, Unclear]] {
            assert_eq!(decide(odd), Verdict::Undecided, "{odd:?}");
        }
    }

    #[test]
    fn what_somebody_else_made_the_same_is_not_taken_back() {
        let files = [(standing(Kind::Create, Seen::New, Seen::Absent), false), (Untouched, false)];
        assert_eq!(verdict(&files), Verdict::Undecided);
    }
}
