//! Who is on the other end, by the kernel's word, and the first sixteen bytes each way.

use std::{io, os::fd::BorrowedFd};

use salaam_core::{
    bridge::{ANSWER_MAGIC, HELLO_BYTES, HELLO_MAGIC, VERSION, hello_bytes, hello_version},
    check::Check,
    policy::Mode,
};
use salaam_sys::{
    handed,
    peer::Credentials,
    pidfd,
    vouched::{self, Vouched},
};
use tokio::{io::Interest, net::UnixStream};

use super::{classify, spawn::Spawn};
use crate::{child::Watched, group::Room};

/// Who said hello.
#[derive(Debug)]
pub(super) struct Greeted {
    pub(super) pid: i32,
    pub(super) process: Watched,
    /// Whether it is in the group that was made for it.
    pub(super) grouped: bool,
}

/// What came instead of a good hello.
#[derive(Debug)]
pub(super) enum NoHello {
    /// The stream ended: sudo or the executor will say why by its exit.
    Ended,
    /// Somebody who is not the executor, or speaks otherwise.
    Failed(Check),
}

/// Waits for the hello, checks it, takes the sender by pidfd, and answers; the answer carries the doors of its room.
pub(super) async fn greet(bridge: &UnixStream, spawn: &Spawn, room: Option<&Room>) -> Result<Greeted, NoHello> {
    let failed = |step: &str, error: io::Error| NoHello::Failed(identity(spawn, format!("{step}: {error}")));
    let mut hello = [0; HELLO_BYTES];
    let vouched = loop {
        bridge.readable().await.map_err(|error| failed("waiting for the hello", error))?;
        match bridge.try_io(Interest::READABLE, || vouched::receive(bridge, &mut hello)) {
            Ok(vouched) => break vouched,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(NoHello::Ended),
            Err(error) => return Err(failed("receiving the hello", error)),
        }
    };
    let sender = judge(spawn, &vouched, &hello)?;
    let more = vouched::has_more(std::os::fd::AsFd::as_fd(bridge)).map_err(|error| failed("after the hello", error))?;
    if more {
        return Err(NoHello::Failed(identity(spawn, "it went on speaking before it was answered".into())));
    }
    let held = match vouched.pidfd {
        Some(held) => held,
        // Before Linux 6.5. Were the number used again already, the stream would have ended, which is seen.
        None => pidfd::open(sender.pid).map_err(|error| failed("opening a pidfd of the executor", error))?,
    };
    let process = Watched::new(held).map_err(|error| failed("watching the executor", error))?;
    // HTTP/2 carries no credentials; without this the kernel would attach them to every read.
    vouched::attach(bridge, false).map_err(|error| failed("SO_PASSCRED", error))?;
    // Somebody may have moved it, as pam_systemd does where the sudo rule lets it; what is elsewhere gets no doors: the
    // limits would hold, and the lever that ends all of it would not.
    let grouped = spawn.group.as_ref().is_some_and(|group| group.holds(sender.pid));
    let doors = room.filter(|_| grouped).map(Room::doors).unwrap_or_default();
    answer(bridge, &doors).await.map_err(|error| failed("answering the hello", error))?;
    Ok(Greeted { pid: sender.pid, process, grouped })
}

async fn answer(bridge: &UnixStream, doors: &[BorrowedFd<'_>]) -> io::Result<()> {
    bridge.writable().await?;
    let bytes = hello_bytes(ANSWER_MAGIC, VERSION);
    // An empty socket buffer takes sixteen bytes or none.
    bridge.try_io(Interest::WRITABLE, || handed::send_all(bridge, &bytes, doors))
}

/// Length first: at the end of a stream the kernel names pid 0 and uid 0, which a check of the uid alone
/// could take for somebody.
fn judge(spawn: &Spawn, vouched: &Vouched, hello: &[u8; HELLO_BYTES]) -> Result<Credentials, NoHello> {
    let refuse = |evidence: String| Err(NoHello::Failed(identity(spawn, evidence)));
    match vouched.bytes {
        0 => return Err(NoHello::Ended),
        HELLO_BYTES => {}
        other => return refuse(format!("its hello has {other} bytes instead of {HELLO_BYTES}")),
    }
    let Some(sender) = vouched.credentials else { return refuse("the kernel does not say who sent the hello".into()) };
    if sender.pid <= 0 {
        return refuse("the kernel does not know the sender's process".into());
    }
    let stranger = match spawn.mode {
        Mode::ToolsUser => sender.uid == spawn.service_uid || sender.uid == 0,
        Mode::ServiceUser => sender.uid == 0,
    };
    if sender.uid != spawn.tools_uid || stranger {
        return refuse(format!("uid {} said hello instead of uid {}", sender.uid, spawn.tools_uid));
    }
    match hello_version(HELLO_MAGIC, hello) {
        Some(VERSION) => Ok(sender),
        Some(theirs) => Err(NoHello::Failed(classify::versions(spawn, theirs))),
        None => refuse("its hello is not that of salaam-toolsd".into()),
    }
}

pub(super) fn identity(spawn: &Spawn, evidence: String) -> Check {
    let toolsd = salaam_core::show::line(std::os::unix::ffi::OsStrExt::as_bytes(spawn.toolsd.as_os_str()));
    let fix = format!("look at who wrote {toolsd} (ls -l --time-style=full-iso), then {}", spawn.reinstall());
    Check::fail("executor-identity", evidence, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::spawn::sample;

    #[test]
    fn only_the_exact_hello_of_the_tools_user_is_taken() {
        let spawn = sample(Mode::ToolsUser);
        let good = Credentials { pid: 7, uid: 997, gid: 997 };
        let hello = hello_bytes(HELLO_MAGIC, VERSION);
        let judged = |bytes, credentials, hello| {
            let vouched = Vouched { bytes, credentials, pidfd: None };
            judge(&spawn, &vouched, &hello).map_err(|none| match none {
                NoHello::Ended => "ended".to_owned(),
                NoHello::Failed(check) => check.id,
            })
        };
        assert_eq!(judged(16, Some(good), hello), Ok(good));
        let refused = |id: &str| Err(id.to_owned());
        // The trap: the end of the stream comes with root's credentials and no process.
        assert_eq!(judged(0, Some(Credentials { pid: 0, uid: 0, gid: 0 }), [0; 16]), refused("ended"));
        for (bytes, credentials, hello) in [
            (15, Some(good), hello),
            (16, None, hello),
            (16, Some(Credentials { pid: 0, ..good }), hello),
            (16, Some(Credentials { uid: 0, ..good }), hello),
            (16, Some(Credentials { uid: 1001, ..good }), hello),
            (16, Some(Credentials { uid: 998, ..good }), hello),
            (16, Some(good), [0; 16]),
            (16, Some(good), hello_bytes(ANSWER_MAGIC, VERSION)),
        ] {
            assert_eq!(judged(bytes, credentials, hello), refused("executor-identity"), "{bytes} {credentials:?}");
        }
        assert_eq!(judged(16, Some(good), hello_bytes(HELLO_MAGIC, VERSION + 1)), refused("executor-version"));
    }

    #[test]
    fn a_tools_uid_that_is_the_service_or_root_never_passes() {
        for (tools_uid, mode) in [(1001, Mode::ToolsUser), (0, Mode::ToolsUser), (0, Mode::ServiceUser)] {
            let spawn = Spawn { tools_uid, ..sample(mode) };
            let credentials = Some(Credentials { pid: 7, uid: tools_uid, gid: 7 });
            let vouched = Vouched { bytes: 16, credentials, pidfd: None };
            assert!(judge(&spawn, &vouched, &hello_bytes(HELLO_MAGIC, VERSION)).is_err());
        }
    }
}
