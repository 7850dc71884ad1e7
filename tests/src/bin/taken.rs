//! A worker that was taken over: it confines itself exactly as salaam-worker does and then runs the code that it is
//! handed. Test only: packaging/install knows nothing of it.
//!
//! `salaam-tests-taken LAYER…` leaves out every layer (`descriptors limits landlock seccomp`) that is not named, so
//! that an attack can be shown to work without it. Started as the service starts its workers (one word, the state
//! directory) it takes on every layer. The code comes over descriptor 3, as a script does: as it is, or as the text
//! of a script's first turn. A line is one step:
//!
//! ```text
//! attack NAME         what follows belongs to it; its first errno is reported as `NAME ERRNO`, 0 = it worked
//! call NUMBER ARG…    a system call: a number, =HEX bytes, +N room, ^N an iovec of room, *HEX,… words, $K the result
//!                     of the attack's call K
//! i386 NUMBER ARG     the same through the 32-bit gate
//! say HEX             these bytes, to the service
//! flood HEX           the same, until the link ends
//! hear                waits for bytes of the service
//! rest                does nothing any more, whatever comes
//! ```

#![allow(unsafe_code, reason = "whoever took a worker over makes system calls by number, and so does this")]

use std::{
    env,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::FileExt as _,
    },
    process::ExitCode,
};

use nix::{errno::Errno, libc};
use salaam_confine::{
    Keep, Limits, Role, belong_to_creator, close_to_others, confine, enter, keep_descriptors, limit, load,
    no_new_privileges,
};
use salaam_core::script::Script;
use salaam_sys::{descriptors, handed};

const HANDED: i32 = 3;
/// As salaam-worker's.
const LIMITS: Limits = Limits { memory_bytes: 256 << 20, open_files: 8, cpu_seconds: None };

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let mut link = File::from(io::stdin().as_fd().try_clone_to_owned().expect("descriptor 0 is there"));
    let handed = descriptors::take_inherited(HANDED).expect("descriptor 3 is there");
    let kept = [HANDED, link.as_raw_fd()];
    if words.first().is_some_and(|word| word.starts_with('/')) {
        belong_to_creator(&link).expect("the service made the link");
        confine(Role::Worker, &Keep { descriptors: &kept, root: None, limits: LIMITS }).expect("every layer");
    } else {
        let layer = |name: &str| words.iter().any(|word| word == name);
        if words.iter().any(|word| word != "none") {
            close_to_others().expect("it is not dumpable");
        }
        if layer("descriptors") {
            keep_descriptors(&kept).expect("they close");
        }
        if layer("limits") {
            limit(&LIMITS).expect("limits");
        }
        no_new_privileges().expect("no new privileges");
        if layer("landlock") {
            enter(None).expect("a domain");
        }
        if layer("seccomp") {
            load(Role::Worker).expect("a filter");
        }
    }
    let (_, memory) = handed::receive(&handed).expect("code is handed over");
    let code = whole(&File::from(memory));
    run(&code, &mut link);
    ExitCode::SUCCESS
}

fn whole(memory: &File) -> String {
    let mut bytes = vec![0; 1 << 20];
    let got = memory.read_at(&mut bytes, 0).expect("memory can be read");
    bytes.truncate(got);
    match Script::parse(&bytes) {
        Ok(script) => script.turns.into_iter().next().map(|turn| turn.text).unwrap_or_default(),
        Err(_) => String::from_utf8(bytes).expect("code is text"),
    }
}

/// The attack under way.
struct Attack {
    name: String,
    results: Vec<i64>,
    errno: i32,
}

fn report(attack: Option<Attack>) {
    if let Some(attack) = attack {
        println!("{} {}", attack.name, attack.errno);
        drop(io::stdout().flush());
    }
}

fn run(code: &str, link: &mut File) {
    let mut attack = None;
    for line in code.lines() {
        let mut words = line.split_whitespace();
        let step = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        match step {
            "attack" => report(attack.replace(Attack { name: rest.join(" "), results: Vec::new(), errno: 0 })),
            "call" | "i386" => {
                let attack = attack.as_mut().expect("a call belongs to an attack");
                // What depends on a call that failed is not tried.
                if attack.errno == 0 {
                    match system_call(step == "i386", &rest, &attack.results) {
                        Ok(result) => attack.results.push(result),
                        Err(errno) => attack.errno = errno,
                    }
                }
            }
            "say" => drop(link.write_all(&bytes(rest[0]))),
            "flood" => {
                let bytes = bytes(rest[0]);
                while link.write_all(&bytes).is_ok() {}
            }
            "hear" => drop(link.read(&mut [0; 65536])),
            // Not even the end of the link makes it leave.
            "rest" => loop {
                let word = 0_u32;
                plain(libc::SYS_futex, [(&raw const word) as i64, i64::from(libc::FUTEX_WAIT), 0, 0, 0, 0]);
            },
            _ => panic!("no step: {line}"),
        }
    }
    report(attack);
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
        .collect()
}

/// One call; what its arguments point to stays alive through it.
fn system_call(by_the_gate: bool, words: &[&str], results: &[i64]) -> Result<i64, i32> {
    let mut room: Vec<Vec<u8>> = Vec::new();
    let mut pointers: Vec<Vec<usize>> = Vec::new();
    let mut numbers = [0_i64; 7];
    for (slot, word) in numbers.iter_mut().zip(words) {
        *slot = match word.split_at(1) {
            ("=", hex) => keep(&mut room, bytes(hex)),
            ("+", size) => keep(&mut room, vec![0; size.parse().expect("a size")]),
            ("^", size) => {
                let size: usize = size.parse().expect("a size");
                let base = keep(&mut room, vec![0; size]);
                keep_words(&mut pointers, vec![base as usize, size])
            }
            ("*", list) => {
                let mut all: Vec<usize> =
                    list.split(',').map(|hex| keep(&mut room, [bytes(hex), vec![0]].concat()) as usize).collect();
                all.push(0);
                keep_words(&mut pointers, all)
            }
            ("$", place) => results[place.parse::<usize>().expect("a place")],
            (_, _) => word.parse().expect("a number"),
        };
    }
    let [number, arguments @ ..] = numbers;
    let result = if by_the_gate { gate(number, arguments[0]) } else { plain(number, arguments) };
    // A copy of this process has nothing to do.
    if result == 0 && [libc::SYS_clone, libc::SYS_clone3].contains(&number) {
        // SAFETY: it ends the copy at once.
        unsafe { libc::_exit(0) };
    }
    if result < 0 { Err(i32::try_from(-result).unwrap_or(-1)) } else { Ok(result) }
}

fn keep(room: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) -> i64 {
    // Never empty, so that there is an address.
    bytes.reserve(1);
    room.push(bytes);
    room.last_mut().expect("pushed").as_mut_ptr() as i64
}

fn keep_words(pointers: &mut Vec<Vec<usize>>, words: Vec<usize>) -> i64 {
    pointers.push(words);
    pointers.last_mut().expect("pushed").as_mut_ptr() as i64
}

fn plain(number: i64, [a, b, c, d, e, f]: [i64; 6]) -> i64 {
    // SAFETY: none is claimed: this is what an attacker does. Pointers are to memory of the caller's.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { -i64::from(Errno::last_raw()) } else { result }
}

#[cfg(target_arch = "x86_64")]
fn gate(number: i64, first: i64) -> i64 {
    let mut result = number;
    // SAFETY: as above; the kernel keeps every register but eax (and r8 to r11 of older ones). rbx is the compiler's
    // own, so it is put back.
    unsafe {
        std::arch::asm!(
            "push rbx", "mov ebx, {first:e}", "int 0x80", "pop rbx",
            first = in(reg) first,
            inout("rax") result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    i64::from(result as i32)
}

#[cfg(not(target_arch = "x86_64"))]
fn gate(_: i64, _: i64) -> i64 {
    -i64::from(libc::ENOSYS)
}
