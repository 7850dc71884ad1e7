//! How the lines of one file become those of another: a shortest script (Myers, 1986) as long as that costs little,
//! and a plainer one beyond. Every script is right; only its length differs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Edits that the search goes up to: its memory is the square of it.
const MAX_DISTANCE: usize = 2000;
/// Steps of the search; one compares two lines or 64 bytes of them.
const MAX_STEPS: usize = 40_000_000;
/// Lines of one side that are held apart; a larger side is shown as replaced.
pub(super) const MAX_LINES: usize = 1 << 19;

/// The lines of a text, each with its ending.
pub(super) fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// One stretch of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Lines that both have.
    pub(super) kept: usize,
    /// Lines of the old file that follow, and go.
    pub(super) gone: usize,
    /// Lines of the new file that come instead.
    pub(super) come: usize,
}

/// The script from `old` to `new`: stretches in order that together use every line of both. All but the last change
/// something.
pub(super) fn script(old: &[&[u8]], new: &[&[u8]]) -> Vec<Stretch> {
    let lines = Lines { old: hashed(old), new: hashed(new) };
    let pairs = shortest(&lines).unwrap_or_else(|| side_by_side(&lines));
    stretches(&pairs, old.len(), new.len())
}

struct Lines<'a> {
    old: Vec<(u64, &'a [u8])>,
    new: Vec<(u64, &'a [u8])>,
}

fn hashed<'a>(lines: &[&'a [u8]]) -> Vec<(u64, &'a [u8])> {
    let hash = |line: &'a [u8]| {
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        (hasher.finish(), line)
    };
    lines.iter().copied().map(hash).collect()
}

impl Lines<'_> {
    fn same(&self, x: usize, y: usize) -> bool {
        matches!((self.old.get(x), self.new.get(y)), (Some(old), Some(new)) if old == new)
    }

    fn cost(&self, x: usize) -> usize {
        1 + self.old.get(x).map_or(0, |(_, line)| line.len() / 64)
    }
}

/// Runs of equal lines: where they begin in both, and how long they are.
type Runs = Vec<(usize, usize, usize)>;

/// The greedy search: for each distance the furthest place on each diagonal. Absent = it costs too much.
fn shortest(lines: &Lines<'_>) -> Option<Runs> {
    let (n, m) = (lines.old.len(), lines.new.len());
    let most = (n + m).min(MAX_DISTANCE);
    let mut trace: Vec<Vec<u32>> = Vec::new();
    let mut steps = 0_usize;
    for distance in 0..=most {
        let mut reached = Vec::with_capacity(distance + 1);
        for way in 0..=distance {
            let mut x = begin(trace.last().map(Vec::as_slice), distance, way);
            // Diagonal k = x - y, from -distance to distance in steps of two.
            let mut y = (x + distance).checked_sub(2 * way)?;
            while lines.same(x, y) {
                steps += lines.cost(x);
                x += 1;
                y += 1;
            }
            steps += 1;
            if (x, y) == (n, m) {
                return Some(walk(&trace, distance, way, x));
            }
            if steps > MAX_STEPS {
                return None;
            }
            reached.push(u32::try_from(x).ok()?);
        }
        trace.push(reached);
    }
    None
}

/// Where diagonal number `way` of `distance` begins: one line deleted or inserted after the better neighbour.
fn begin(before: Option<&[u32]>, distance: usize, way: usize) -> usize {
    let Some(before) = before else { return 0 };
    let reached = |way: Option<usize>| way.and_then(|way| before.get(way)).map(|x| *x as usize);
    let down = reached(Some(way).filter(|way| *way < distance));
    let right = reached(way.checked_sub(1)).map(|x| x + 1);
    down.max(right).unwrap_or(0)
}

/// From the end back to the beginning, collecting what was equal.
fn walk(trace: &[Vec<u32>], distance: usize, way: usize, end: usize) -> Runs {
    let mut runs = Runs::new();
    let (mut way, mut x) = (way, end);
    for distance in (0..=distance).rev() {
        let before = distance.checked_sub(1).and_then(|at| trace.get(at)).map(Vec::as_slice);
        let start = begin(before, distance, way);
        let y = (start + distance).saturating_sub(2 * way);
        if x > start {
            runs.push((start, y, x - start));
        }
        let Some(before) = before else { break };
        // The same choice as on the way there.
        let right = way.checked_sub(1).and_then(|way| before.get(way)).map(|x| *x as usize + 1);
        let down = before.get(way).map(|x| *x as usize).filter(|_| way < distance);
        if right > down {
            way = way.saturating_sub(1);
            x = start.saturating_sub(1);
        } else {
            x = start;
        }
    }
    runs.reverse();
    runs
}

/// Without a search: a line stays where it has the same number in both, if both have as many, else none does.
fn side_by_side(lines: &Lines<'_>) -> Runs {
    if lines.old.len() != lines.new.len() {
        return Runs::new();
    }
    (0..lines.old.len()).filter(|at| lines.same(*at, *at)).map(|at| (at, at, 1)).collect()
}

fn stretches(runs: &[(usize, usize, usize)], old: usize, new: usize) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let (mut x, mut y, mut kept) = (0, 0, 0);
    for (at, to, length) in runs.iter().copied().chain([(old, new, 0)]) {
        let (gone, come) = (at - x, to - y);
        if gone > 0 || come > 0 {
            stretches.push(Stretch { kept, gone, come });
            kept = 0;
        }
        kept += length;
        (x, y) = (at + length, to + length);
    }
    if kept > 0 {
        stretches.push(Stretch { kept, gone: 0, come: 0 });
    }
    stretches
}
