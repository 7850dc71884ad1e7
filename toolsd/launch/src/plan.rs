//! The plan: what launch does before it becomes the command, in a small binary form of its own.
//!
//! Every field is a length or a count as u32, little-endian, then bytes. The first eight bytes name the
//! version; another version is refused, never guessed at.

use std::ffi::CString;

use crate::attack::Attack;

/// The first bytes of every plan; the last one is the version.
pub const MAGIC: &[u8; 8] = b"SALPLAN\x03";

/// The largest encoded plan: the arguments and environment that the kernel takes, and paths.
pub const MAX_BYTES: usize = 4 << 20;

/// Everything that launch is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// What happens in the confined child.
    pub action: Action,
    /// The working directory.
    pub directory: CString,
    /// Resource limits to set, by their numbers in setrlimit(2): soft = hard.
    pub limits: Vec<(u32, u64)>,
    /// The landlock domain, if there is to be one.
    pub landlock: Option<Rules>,
    /// The seccomp program as the kernel's `sock_filter` records, empty for none.
    pub seccomp: Vec<u8>,
    /// Paths that must be the content bound for this command when exec is next.
    pub bound: Vec<Bound>,
    /// Whether bound content is guarded to the end, not only until it was opened: another command that could
    /// replace it runs at the same time.
    pub guard_to_the_end: bool,
    /// Whether [`crate::descriptor::SCRIPT`] is open and stays so.
    pub script: bool,
    /// What keeps the command's processes together.
    pub keeper: Keeper,
    /// Whether [`crate::descriptor::CGROUP`] is open.
    pub cgroup: bool,
}

/// What keeps the processes of a command together, so that none is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keeper {
    /// A pid namespace of its own.
    #[default]
    Namespace,
    /// launch itself, to which every orphan falls: where there are no user namespaces.
    Launch,
}

/// What the confined child does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// exec.
    Exec {
        /// The program and its arguments; a program without a slash is looked up in PATH of `env`.
        argv: Vec<CString>,
        /// The whole environment.
        env: Vec<CString>,
    },
    /// Tries what must be denied and reports the errors.
    Canary(Canary),
}

impl Default for Action {
    fn default() -> Self {
        Self::Exec { argv: Vec::new(), env: Vec::new() }
    }
}

/// What the canary tries, and on what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// A file to read.
    pub read: CString,
    /// A file to create.
    pub write: CString,
    /// A TCP port on 127.0.0.1 that listens.
    pub tcp_port: u16,
    /// An abstract unix socket that listens.
    pub abstract_name: Vec<u8>,
    /// A unix socket with a path that listens.
    pub socket: CString,
    /// A file in the shared memory of the host.
    pub shared_memory: CString,
    /// A process of the same account.
    pub victim: i32,
    /// A TCP port on ::1 that listens; 0 where there is none.
    pub tcp6_port: u16,
    /// A UDP port on 127.0.0.1 that takes what comes.
    pub udp_port: u16,
    /// A segment of System V shared memory; a number that none has where there is none.
    pub segment: i32,
    /// One byte more than a file may have.
    pub file_bytes: u64,
    /// More memory than a process may have.
    pub memory_bytes: u64,
    /// The number of the first descriptor that may not be.
    pub open_files: u64,
    /// Which attacks, in order.
    pub attacks: Vec<Attack>,
}

/// The landlock domain: everything is denied that is not listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Whether launch fails where the kernel has no landlock.
    pub required: bool,
    /// Files are as the account has them; only signals to others are denied, which fails where the kernel cannot.
    pub signals_only: bool,
    /// Beneath these: read and execute.
    pub read: Vec<CString>,
    /// Beneath these: everything but making device nodes.
    pub write: Vec<CString>,
    /// Beneath these: read, write and ioctl of what is there, nothing new.
    pub devices: Vec<CString>,
}

/// A path whose content was bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The path as the command names it, relative to the working directory or absolute.
    pub path: CString,
    /// How many bytes it has.
    pub size: u64,
    /// The path at which the content was put over the workspace.
    pub placed: CString,
}

/// Bytes that are not a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAPlan;

impl Plan {
    /// The bytes for the memfd.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(MAGIC.to_vec());
        match &self.action {
            Action::Exec { argv, env } => {
                out.number(0);
                out.texts(argv);
                out.texts(env);
            }
            Action::Canary(canary) => {
                out.number(1);
                out.bytes(canary.read.as_bytes());
                out.bytes(canary.write.as_bytes());
                out.number(u32::from(canary.tcp_port));
                out.bytes(&canary.abstract_name);
                out.bytes(canary.socket.as_bytes());
                out.bytes(canary.shared_memory.as_bytes());
                // A pid is never negative; one that is becomes what no reader takes.
                out.number(u32::try_from(canary.victim).unwrap_or(u32::MAX));
                out.number(u32::from(canary.tcp6_port));
                out.number(u32::from(canary.udp_port));
                out.number(u32::try_from(canary.segment).unwrap_or(u32::MAX));
                out.long(canary.file_bytes);
                out.long(canary.memory_bytes);
                out.long(canary.open_files);
                out.count(canary.attacks.len());
                for attack in &canary.attacks {
                    out.number(*attack as u32);
                }
            }
        }
        out.bytes(self.directory.as_bytes());
        out.count(self.limits.len());
        for (resource, value) in &self.limits {
            out.number(*resource);
            out.long(*value);
        }
        match &self.landlock {
            None => out.number(0),
            Some(rules) => {
                out.number(if rules.required { 2 } else { 1 });
                out.number(u32::from(rules.signals_only));
                out.texts(&rules.read);
                out.texts(&rules.write);
                out.texts(&rules.devices);
            }
        }
        out.bytes(&self.seccomp);
        out.count(self.bound.len());
        for bound in &self.bound {
            out.bytes(bound.path.as_bytes());
            out.long(bound.size);
            out.bytes(bound.placed.as_bytes());
        }
        out.number(u32::from(self.guard_to_the_end));
        out.number(u32::from(self.script));
        out.number(match self.keeper {
            Keeper::Namespace => 0,
            Keeper::Launch => 1,
        });
        out.number(u32::from(self.cgroup));
        out.0
    }

    /// Reads what [`Plan::encode`] wrote; anything else, also one byte more, is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAPlan> {
        let mut reader = Reader(bytes.strip_prefix(MAGIC.as_slice()).ok_or(NotAPlan)?);
        let action = match reader.number()? {
            0 => Action::Exec { argv: reader.texts()?, env: reader.texts()? },
            1 => Action::Canary(Canary {
                read: reader.text()?,
                write: reader.text()?,
                tcp_port: reader.number()?.try_into().map_err(|_| NotAPlan)?,
                abstract_name: reader.bytes()?.to_vec(),
                socket: reader.text()?,
                shared_memory: reader.text()?,
                victim: reader.number()?.try_into().map_err(|_| NotAPlan)?,
                tcp6_port: reader.number()?.try_into().map_err(|_| NotAPlan)?,
                udp_port: reader.number()?.try_into().map_err(|_| NotAPlan)?,
                segment: reader.number()?.try_into().map_err(|_| NotAPlan)?,
                file_bytes: reader.long()?,
                memory_bytes: reader.long()?,
                open_files: reader.long()?,
                attacks: reader.list(|reader| Attack::numbered(reader.number()?).ok_or(NotAPlan))?,
            }),
            _ => return Err(NotAPlan),
        };
        let directory = reader.text()?;
        let limits = reader.list(|reader| Ok((reader.number()?, reader.long()?)))?;
        let landlock = match reader.number()? {
            0 => None,
            level @ (1 | 2) => Some(Rules {
                required: level == 2,
                signals_only: reader.flag()?,
                read: reader.texts()?,
                write: reader.texts()?,
                devices: reader.texts()?,
            }),
            _ => return Err(NotAPlan),
        };
        let seccomp = reader.bytes()?.to_vec();
        let bound =
            reader.list(|reader| Ok(Bound { path: reader.text()?, size: reader.long()?, placed: reader.text()? }))?;
        let guard_to_the_end = reader.flag()?;
        let script = reader.flag()?;
        let keeper = if reader.flag()? { Keeper::Launch } else { Keeper::Namespace };
        let cgroup = reader.flag()?;
        if !reader.0.is_empty() {
            return Err(NotAPlan);
        }
        Ok(Self { action, directory, limits, landlock, seccomp, bound, guard_to_the_end, script, keeper, cgroup })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn count(&mut self, value: usize) {
        // What does not fit becomes a count that no reader can satisfy, and so no plan.
        self.number(u32::try_from(value).unwrap_or(u32::MAX));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.0.extend_from_slice(value);
    }

    fn texts(&mut self, values: &[CString]) {
        self.count(values.len());
        for value in values {
            self.bytes(value.as_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], NotAPlan> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(NotAPlan)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, NotAPlan> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| NotAPlan)
    }

    fn flag(&mut self) -> Result<bool, NotAPlan> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NotAPlan),
        }
    }

    fn long(&mut self) -> Result<u64, NotAPlan> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| NotAPlan)
    }

    fn bytes(&mut self) -> Result<&'a [u8], NotAPlan> {
        let length = usize::try_from(self.number()?).map_err(|_| NotAPlan)?;
        self.take(length)
    }

    fn text(&mut self) -> Result<CString, NotAPlan> {
        CString::new(self.bytes()?).map_err(|_| NotAPlan)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, NotAPlan>) -> Result<Vec<T>, NotAPlan> {
        let count = self.number()?;
        // No capacity from an outside number: an item takes at least four bytes, so this ends by itself.
        (0..count).map(|_| item(self)).collect()
    }

    fn texts(&mut self) -> Result<Vec<CString>, NotAPlan> {
        self.list(Self::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Plan {
        Plan {
            action: Action::Exec { argv: vec![c"id".into(), c"-u".into()], env: vec![c"PATH=/usr/bin".into()] },
            directory: c"/srv/x".into(),
            limits: vec![(4, 0), (7, 4096)],
            landlock: Some(Rules {
                required: true,
                signals_only: true,
                read: vec![c"/".into()],
                write: vec![c"/tmp".into()],
                devices: vec![c"/dev".into()],
            }),
            seccomp: vec![1, 2, 3, 4, 5, 6, 7, 8],
            bound: vec![Bound { path: c"./run.sh".into(), size: 7, placed: c"/srv/x/run.sh".into() }],
            guard_to_the_end: true,
            script: true,
            keeper: Keeper::Launch,
            cgroup: true,
        }
    }

    #[test]
    fn plans_round_trip() {
        let canary = Canary {
            read: c"/s".into(),
            write: c"/w".into(),
            tcp_port: 65535,
            abstract_name: vec![0, 255],
            socket: c"/x".into(),
            shared_memory: c"/m".into(),
            victim: 7,
            tcp6_port: 0,
            udp_port: 9,
            segment: i32::MAX,
            file_bytes: 1 << 40,
            memory_bytes: 5,
            open_files: 1024,
            attacks: vec![Attack::Tcp, Attack::MoveGit],
        };
        for plan in [sample(), Plan::default(), Plan { action: Action::Canary(canary), landlock: None, ..sample() }] {
            assert_eq!(Plan::decode(&plan.encode()), Ok(plan));
        }
    }

    #[test]
    fn a_plan_that_is_cut_longer_or_of_another_version_is_refused() {
        let good = sample().encode();
        for length in 0..good.len() {
            assert_eq!(Plan::decode(&good[..length]), Err(NotAPlan), "{length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(Plan::decode(&longer), Err(NotAPlan));
        let mut other = good;
        other[7] = 4;
        assert_eq!(Plan::decode(&other), Err(NotAPlan));
    }
}
