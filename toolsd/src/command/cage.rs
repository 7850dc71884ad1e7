//! What the attacks of a probe aim at: files, sockets and a process outside, and a workspace with a repository.

use std::{
    ffi::CString,
    fs, io,
    net::TcpListener,
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

use salaam_launch::{attack::Attack, plan::Canary};

use super::Refusal;
use crate::supervise::Order;

/// Removed when dropped.
pub(super) struct Cage {
    directory: PathBuf,
    shared_memory: PathBuf,
    port: TcpListener,
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
            port: TcpListener::bind(("127.0.0.1", 0))?,
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
        for workspace in [cage.inside(), cage.outside()] {
            fs::create_dir_all(workspace.join(".git/hooks"))?;
            fs::write(workspace.join(".git/config"), "")?;
        }
        Ok(cage)
    }

    /// The workspace that the sandbox shows.
    pub(super) fn inside(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    /// Its like, for the attacks without walls.
    pub(super) fn outside(&self) -> PathBuf {
        self.directory.join("without-walls")
    }

    /// Takes back what an attack outside has done to what is attacked again.
    pub(super) fn again(&self) -> io::Result<()> {
        match fs::remove_file(self.directory.join("written")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A process of this account that does nothing.
    pub(super) fn victim(&self) -> Order {
        let argv = vec![c"sleep".to_owned(), c"60".to_owned()];
        Order { program: c"/bin/sleep".to_owned(), argv, descriptors: Vec::new() }
    }

    /// What the attacks are told.
    pub(super) fn canary(&self, victim: i32, attacks: Vec<Attack>) -> Result<Canary, Refusal> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| Refusal::Plan("a NUL byte"));
        let port = self.port.local_addr().map_err(Refusal::kernel("reading the canary's port"))?.port();
        Ok(Canary {
            read: text(&self.directory.join("secret"))?,
            write: text(&self.directory.join("written"))?,
            tcp_port: port,
            abstract_name: self.name.clone(),
            socket: text(&self.directory.join("socket"))?,
            shared_memory: text(&self.shared_memory)?,
            victim,
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
