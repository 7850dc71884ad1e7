//! One input made into another.

use crate::Seeded;

/// Larger inputs only cost time: what is large is tested by name beside each limit.
const MAX_INPUT_BYTES: usize = 64 << 10;

/// Numbers at the borders of what code distinguishes.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "255",
    "256",
    "4095",
    "4096",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740992",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "0.5",
    "00",
    "0777",
    "01000",
];

/// Bytes and characters at the borders of what code distinguishes.
const PIECES: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b"/",
    b"..",
    b"../",
    b"\"",
    b"\\",
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"=",
    b"\x1b[2J",
    b"\xff",
    b"\x80",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    "\u{202e}".as_bytes(),
    "\u{200b}".as_bytes(),
    "\u{feff}".as_bytes(),
    b"\\ud800",
    b"\\u0000",
    b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"null",
    b"true",
    b"{}",
    b"[]",
];

/// A few changes to one of `corpus`.
pub(super) fn mutated(seeded: &mut Seeded, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut input = pick(seeded, corpus).clone();
    for _ in 0..=seeded.below(5) {
        change(seeded, &mut input, corpus, words);
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

fn change(seeded: &mut Seeded, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
    let at = place(seeded, input.len() + 1);
    let end = (at + 1 + length(seeded)).min(input.len());
    match seeded.below(12) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << seeded.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = seeded.below(256) as u8;
            }
        }
        2 => drop(input.drain(at.min(end)..end)),
        3 => {
            let again = input[at.min(end)..end].to_vec();
            let times = 1 + place(seeded, 40);
            insert(input, at, &again.repeat(times));
        }
        4 => insert(input, at, PIECES[place(seeded, PIECES.len())]),
        5 | 6 if !words.is_empty() => insert(input, at, words[place(seeded, words.len())].as_bytes()),
        7 if !words.is_empty() => {
            input.drain(at.min(end)..end);
            insert(input, at, words[place(seeded, words.len())].as_bytes());
        }
        8 => number(seeded, input),
        9 => input.truncate(at),
        10 => {
            let other = pick(seeded, corpus).clone();
            let from = place(seeded, other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => {
            let other = pick(seeded, corpus);
            let from = place(seeded, other.len() + 1);
            let to = (from + 1 + length(seeded)).min(other.len());
            insert(input, at, &other[from.min(to)..to]);
        }
    }
}

/// A number that is written out becomes another one.
fn number(seeded: &mut Seeded, input: &mut Vec<u8>) {
    let starts: Vec<usize> = (0..input.len())
        .filter(|at| {
            input[*at].is_ascii_digit() && at.checked_sub(1).is_none_or(|before| !input[before].is_ascii_digit())
        })
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[place(seeded, starts.len())];
    let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    input.drain(start..start + digits);
    insert(input, start, NUMBERS[place(seeded, NUMBERS.len())].as_bytes());
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let at = at.min(input.len());
    input.splice(at..at, bytes.iter().copied());
    input.truncate(MAX_INPUT_BYTES);
}

fn pick<'c>(seeded: &mut Seeded, corpus: &'c [Vec<u8>]) -> &'c Vec<u8> {
    &corpus[place(seeded, corpus.len())]
}

fn place(seeded: &mut Seeded, below: usize) -> usize {
    seeded.below(below as u64) as usize
}

/// Mostly short, at times long.
fn length(seeded: &mut Seeded) -> usize {
    let most = [1, 4, 16, 256][place(seeded, 4)];
    place(seeded, most)
}
