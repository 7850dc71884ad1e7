//! What the attacks of a probe aim at: files, sockets and a process outside, and a workspace with a repository.

use std::{
    ffi::{CStr, CString},
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, OpenOptionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use salaam_core::limits::Limits;
use salaam_launch::{attack::Attack, plan::Canary};
use salaam_sys::segment::Segment;

use super::Refusal;
use crate::supervise::Order;

/// When it is shown that the attacks work: before the walls are tried, and after, so that what was attacked was there
/// all the time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Turn {
    Before,
    After,
}

/// Where coreutils lie.
const SLEEP: &[&CStr] = &[c"/bin/sleep", c"/usr/bin/sleep", c"/run/current-system/sw/bin/sleep"];

/// Removed when dropped.
pub(super) struct Cage {
    directory: PathBuf,
    shared_memory: PathBuf,
    port: TcpListener,
    /// A host may have no IPv6, and no shared memory of System V: what is tried on them then fails outside, too.
    port6: Option<TcpListener>,
    datagrams: UdpSocket,
    segment: Option<Segment>,
    name: Vec<u8>,
    _abstract: UnixListener,
    _socket: UnixListener,
}

impl Cage {
    pub(super) fn build() -> io::Result<Self> {
        let name = format!("salaam-canary-{}-{:x}", std::process::id(), fresh()?);
        let directory = temporary().join(&name);
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let shared_memory = Path::new("/dev/shm").join(&name);
        let cage = Self {
            port: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            port6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok(),
            datagrams: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
            segment: Segment::new().ok(),
            _abstract: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?,
            _socket: UnixListener::bind(directory.join("socket"))?,
            name: name.into_bytes(),
            shared_memory,
            directory,
        };
        let secret = |path: &Path| fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path);
        secret(&cage.directory.join("secret"))?;
        // A host may have none: the attack then fails outside too, and shows nothing.
        drop(secret(&cage.shared_memory));
        for workspace in [cage.inside(), cage.outside(Turn::Before), cage.outside(Turn::After)] {
            fs::create_dir_all(workspace.join(".git/hooks"))?;
            fs::write(workspace.join(".git/config"), "")?;
            fs::create_dir(workspace.join(".vscode"))?;
            fs::write(workspace.join(".vscode/tasks.json"), "")?;
        }
        Ok(cage)
    }

    /// The workspace that the sandbox shows.
    pub(super) fn inside(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    /// Its like, for the attacks without walls.
    pub(super) fn outside(&self, turn: Turn) -> PathBuf {
        self.directory.join(match turn {
            Turn::Before => "before",
            Turn::After => "after",
        })
    }

    /// Takes back what an attack outside has done to what is attacked again.
    pub(super) fn again(&self) -> io::Result<()> {
        match fs::remove_file(self.directory.join("written")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A process of this account that does nothing. Not one of Salaam's own: nobody can look into those.
    pub(super) fn victim(&self) -> Order {
        let there = |place: &&&CStr| place.to_str().is_ok_and(|path| Path::new(path).exists());
        let program = SLEEP.iter().find(there).copied().unwrap_or(c"/bin/sleep");
        let argv = vec![c"sleep".to_owned(), c"60".to_owned()];
        Order { program: program.to_owned(), argv, descriptors: Vec::new() }
    }

    /// What the attacks are told.
    pub(super) fn canary(&self, victim: i32, attacks: Vec<Attack>) -> Result<Canary, Refusal> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| Refusal::Plan("a NUL byte"));
        let failed = Refusal::kernel;
        let port = self.port.local_addr().map_err(failed("reading the canary's port"))?.port();
        let port6 = self.port6.as_ref().and_then(|port| port.local_addr().ok()).map_or(0, |address| address.port());
        let udp_port = self.datagrams.local_addr().map_err(failed("reading the canary's port"))?.port();
        let limits = Limits::default();
        Ok(Canary {
            read: text(&self.directory.join("secret"))?,
            write: text(&self.directory.join("written"))?,
            tcp_port: port,
            abstract_name: self.name.clone(),
            socket: text(&self.directory.join("socket"))?,
            shared_memory: text(&self.shared_memory)?,
            victim,
            tcp6_port: port6,
            udp_port,
            segment: self.segment.as_ref().map_or(i32::MAX, Segment::id),
            file_bytes: limits.file_bytes + 1,
            memory_bytes: limits.memory_bytes + 1,
            open_files: limits.open_files,
            attacks,
        })
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // Left behind they are an empty file and a small directory, no harm.
        drop(fs::remove_file(&self.shared_memory));
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Where cages stand.
pub(super) fn temporary() -> &'static Path {
    Path::new("/tmp")
}

/// A number that a second probe at the same time does not have.
fn fresh() -> io::Result<u64> {
    let mut bytes = [0; 8];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
