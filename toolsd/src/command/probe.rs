//! The sandbox, tried on this host: built as for a command, with a canary in place of one.

use std::{
    ffi::CString,
    fs, io,
    net::TcpListener,
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, OpenOptionsExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use nix::libc;
use salaam_core::{
    bridge::{RunPlan, SandboxStatus},
    check::Check,
    command::Command,
    id::{OperationId, WorkspaceId},
    limits::Limits,
    policy::{Landlock, Network, Profile},
    result::Sandbox,
};
use salaam_launch::{
    plan::Canary,
    report::{Denials, Record},
};

use super::{Refusal, job, runner::Shared, stage, workspace::Workspace};
use crate::sandbox;

/// The steps, in the order in which one rests on the other.
const STEPS: [&str; 6] =
    ["sandbox-userns", "sandbox-mount", "sandbox-net", "sandbox-landlock", "sandbox-seccomp", "sandbox-canary"];

/// Where the canary's workspace is inside: not below the private /tmp, in which a write beside it would land.
const INSIDE: &str = "/canary";

/// Tries the sandbox.
pub(super) async fn probe(shared: &Shared, landlock: Landlock) -> SandboxStatus {
    let cage = match Cage::build() {
        Ok(cage) => cage,
        Err(error) => {
            let evidence = format!("the canary's own files could not be made in {}: {error}", temporary().display());
            let fix = "let this account write in its temporary directory";
            return SandboxStatus { sandbox: None, checks: vec![Check::fail("sandbox-canary", evidence, fix)] };
        }
    };
    match sing(shared, landlock, &cage).await {
        Ok((sandbox, denials)) => judged(sandbox, denials),
        Err(refusal) => {
            let (id, evidence, fix) = match refusal {
                Refusal::Sandbox(diagnosis) => (diagnosis.id.to_owned(), diagnosis.evidence, diagnosis.fix.to_owned()),
                Refusal::NoSandbox(failure) => {
                    (failure.id, failure.message, "install or update the package `bubblewrap`".to_owned())
                }
                other => {
                    // Of this process, not of the host.
                    let failure = other.into_failure();
                    let fix = "start the service again; if it stays, report it with the evidence";
                    ("sandbox-canary".to_owned(), format!("{}: {}", failure.id, failure.message), fix.to_owned())
                }
            };
            failed(&id, evidence, fix)
        }
    }
}

async fn sing(shared: &Shared, landlock: Landlock, cage: &Cage) -> Result<(Sandbox, Denials), Refusal> {
    let kit = shared.kit.as_ref().map_err(|failure| Refusal::NoSandbox(failure.clone()))?;
    let root = sandbox::open_plain(&cage.workspace()).map_err(Refusal::WorkspacePath)?;
    let workspace = Workspace::scratch(INSIDE.into(), root);
    let staged = stage::canary(kit, &workspace, &plan(landlock), cage.canary()?)?;
    let (mut tree, layers) = job::come_up(&shared.spawner, staged.start, staged.stderr.as_fd(), true).await?;
    let sandbox = job::measured(kit, &tree, layers, true);
    let song = tree.record().await;
    tree.kill();
    tree.gone().await;
    match song {
        Some(Record::Canary(denials)) => Ok((sandbox, denials)),
        Some(Record::Layers(_) | Record::Failed(..) | Record::Ended(_)) | None => {
            Err(Refusal::Kernel { attempted: "hearing the canary", source: io::ErrorKind::UnexpectedEof.into() })
        }
    }
}

fn plan(landlock: Landlock) -> RunPlan {
    RunPlan {
        operation: OperationId::new(0, [0; 10]),
        epoch: 0,
        workspace: WorkspaceId::new(0, [0; 10]),
        command: Command::Argv(Vec::new()),
        stdin: None,
        profile: Profile::WorkspaceWrite,
        network: Network::None,
        landlock,
        allow_unsandboxed: false,
        limits: Limits::default(),
        files: Vec::new(),
        read_paths: Vec::new(),
        protected_paths: Vec::new(),
        environment: Vec::new(),
    }
}

/// A denial counts by its errno: any other one may mean that the probe itself is broken.
fn judged(sandbox: Sandbox, denials: Denials) -> SandboxStatus {
    let absent: &[i32] = &[libc::ENOENT, libc::ENOTDIR];
    let tries: [(&str, i32, &[i32]); 5] = [
        ("read outside", denials.read, absent),
        ("write outside", denials.write, &[libc::ENOENT, libc::ENOTDIR, libc::EROFS]),
        ("connect to a port outside", denials.connect, &[libc::ECONNREFUSED, libc::ENETUNREACH]),
        ("connect to an abstract socket outside", denials.abstract_connect, &[libc::ECONNREFUSED, libc::EPERM]),
        ("make a user namespace", denials.user_namespace, &[libc::EPERM]),
    ];
    let heard: Vec<String> = tries
        .iter()
        .map(|(what, errno, _)| match errno {
            0 => format!("{what}: not denied"),
            errno => format!("{what}: {:?}", nix::errno::Errno::from_raw(*errno)),
        })
        .collect();
    let evidence = heard.join("; ");
    if tries.iter().any(|(_, errno, right)| !right.contains(errno)) {
        return failed("sandbox-canary", evidence, "report this: the sandbox stands and does not hold".to_owned());
    }
    let landlock = if sandbox.landlock == "fully-enforced" {
        Check::pass("sandbox-landlock", format!("ABI {}, {}", sandbox.landlock_abi, sandbox.landlock))
    } else {
        Check::warn(
            "sandbox-landlock",
            sandbox.landlock.clone(),
            "add landlock to the kernel's security modules (boot parameter lsm=landlock,…)",
        )
    };
    let namespaces = sandbox.namespaces.join(", ");
    let checks = vec![
        Check::pass("sandbox-userns", format!("own namespaces: {namespaces}")),
        Check::pass("sandbox-mount", format!("bubblewrap {}", sandbox.version)),
        Check::pass("sandbox-net", "a private network with a loopback of its own"),
        landlock,
        Check::pass("sandbox-seccomp", "the filter is loaded"),
        Check::pass("sandbox-canary", evidence),
    ];
    SandboxStatus { sandbox: Some(sandbox), checks }
}

/// The probe itself died.
pub(super) fn broken(evidence: String) -> SandboxStatus {
    failed("sandbox-canary", evidence, "start the service again; if it stays, report it with the evidence".to_owned())
}

/// The steps before the failed one stand; those after it were not reached.
fn failed(id: &str, evidence: String, fix: String) -> SandboxStatus {
    let at = STEPS.iter().position(|step| *step == id);
    let before = STEPS.iter().take(at.unwrap_or(0)).map(|step| Check::pass(step, "passed on the way"));
    let checks = before.chain([Check::fail(id, evidence, fix)]).collect();
    SandboxStatus { sandbox: None, checks }
}

/// What the canary tries to reach: it works out here, which is shown before it is tried inside.
struct Cage {
    directory: PathBuf,
    port: TcpListener,
    name: Vec<u8>,
    _socket: UnixListener,
}

impl Cage {
    fn build() -> io::Result<Self> {
        let name = format!("salaam-canary-{}-{:x}", std::process::id(), fresh()?);
        let directory = temporary().join(&name);
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let cage = Self {
            port: TcpListener::bind(("127.0.0.1", 0))?,
            _socket: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?,
            name: name.into_bytes(),
            directory,
        };
        fs::create_dir(cage.workspace())?;
        fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(cage.directory.join("secret"))?;
        cage.works_outside()?;
        Ok(cage)
    }

    /// A denial proves something only where the attempt works without the sandbox.
    fn works_outside(&self) -> io::Result<()> {
        fs::read(self.directory.join("secret"))?;
        fs::write(self.directory.join("written"), "")?;
        fs::remove_file(self.directory.join("written"))?;
        std::net::TcpStream::connect(self.port.local_addr()?)?;
        std::os::unix::net::UnixStream::connect_addr(&SocketAddr::from_abstract_name(&self.name)?)?;
        Ok(())
    }

    fn workspace(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    fn canary(&self) -> Result<Canary, Refusal> {
        let path = |name: &str| {
            CString::new(self.directory.join(name).as_os_str().as_bytes()).map_err(|_| Refusal::Plan("a NUL byte"))
        };
        let port = self.port.local_addr().map_err(Refusal::kernel("reading the canary's port"))?.port();
        Ok(Canary { read: path("secret")?, write: path("written")?, tcp_port: port, abstract_name: self.name.clone() })
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // Left behind it is an empty directory in /tmp, no harm.
        drop(fs::remove_dir_all(&self.directory));
    }
}

fn temporary() -> &'static Path {
    Path::new("/tmp")
}

/// A number that a second probe at the same time does not have.
fn fresh() -> io::Result<u64> {
    let mut bytes = [0; 8];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
