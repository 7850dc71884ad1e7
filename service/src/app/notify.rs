//! What a service manager is told: readiness, stopping, and that the service still works (sd_notify(3)).
//!
//! Invariant: the watchdog is fed only after the journal's writer has answered and the accept loop has taken a
//! connection and dealt with it. Without `NOTIFY_SOCKET` nothing happens.

use std::{
    convert::Infallible,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::Path,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{host::Variables, store::Store};

/// How long one word to the manager may take: its queue may be full for a moment, and the word is not to be lost.
const SEND: Duration = Duration::from_secs(2);
/// What the accept loop is asked. It need not be health: that a request is dealt with is what counts.
const ASK: &[u8] = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The service manager that started this process: systemd, or another that speaks its protocol.
#[derive(Debug)]
pub(super) struct Systemd {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often it wants to hear that the service works.
    every: Option<Duration>,
}

impl Systemd {
    /// The one that the variables name, if there is one. One that cannot be spoken to is logged: it will then say
    /// itself that it heard nothing.
    pub(super) fn of(variables: &Variables) -> Option<Self> {
        let name = variables.path("NOTIFY_SOCKET")?;
        let socket = address(&name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND))?;
            Ok((socket, address))
        });
        match socket {
            Ok((socket, address)) => Some(Self { socket, address, every: watchdog(variables) }),
            Err(error) => {
                tracing::warn!(%error, socket = %name.display(), "the service manager in NOTIFY_SOCKET cannot be told anything");
                None
            }
        }
    }

    /// Operators are served.
    pub(super) fn ready(&self) {
        self.say(b"READY=1");
    }

    /// The service ends, and means to.
    pub(super) fn stopping(&self) {
        self.say(b"STOPPING=1");
    }

    /// Feeds the watchdog, if one is wanted, for as long as the service works.
    pub(super) async fn feed(&self, store: &Store, operators: &Path) -> Infallible {
        let Some(every) = self.every else { return std::future::pending().await };
        let mut turn = interval(every);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turn.tick().await;
            match timeout(every, works(store, operators)).await {
                Ok(Ok(())) => self.say(b"WATCHDOG=1"),
                Ok(Err(error)) => tracing::error!(%error, "the service does not work; its watchdog is not fed"),
                Err(_) => tracing::error!(?every, "a part of the service did not answer; its watchdog is not fed"),
            }
        }
    }

    fn say(&self, word: &[u8]) {
        if let Err(error) = self.socket.send_to_addr(word, &self.address) {
            let word = String::from_utf8_lossy(word);
            tracing::warn!(%error, %word, "the service manager could not be told");
        }
    }
}

/// Serves until a signal says to stop, and tells the service manager, where there is one, how things are.
pub(super) async fn until_told(systemd: Option<Systemd>, store: &Store, socket: &Path) {
    let Some(systemd) = systemd else { return wait_for_signal().await };
    systemd.ready();
    tokio::select! {
        () = wait_for_signal() => {}
        never = systemd.feed(store, socket) => match never {},
    }
    systemd.stopping();
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let term = signal(SignalKind::terminate());
    let int = signal(SignalKind::interrupt());
    match (term, int) {
        (Ok(mut term), Ok(mut int)) => tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        },
        (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "signals cannot be received; stopping"),
    }
}

/// A path, or an abstract name after `@`.
fn address(name: &Path) -> io::Result<SocketAddr> {
    match name.as_os_str().as_bytes().split_first() {
        Some((b'@', rest)) => SocketAddr::from_abstract_name(rest),
        Some((b'/', _)) => SocketAddr::from_pathname(name),
        Some(_) | None => Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor an abstract name")),
    }
}

/// Half of the time that the manager waits, as sd_watchdog_enabled(3) advises; none where another process is meant.
fn watchdog(variables: &Variables) -> Option<Duration> {
    let for_us = variables.number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = variables.number("WATCHDOG_USEC").filter(|limit| for_us && *limit >= 2)?;
    Some(Duration::from_micros(limit / 2))
}

async fn works(store: &Store, operators: &Path) -> io::Result<()> {
    if !store.answers().await {
        return Err(io::Error::other("the thread that writes the journal is gone"));
    }
    let mut stream = UnixStream::connect(operators).await?;
    // A full house closes a newcomer, perhaps before it has spoken: that too was the loop, at work.
    match stream.write_all(ASK).await {
        Ok(()) => {}
        Err(error) if is_closed(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    match stream.read(&mut [0; 64]).await {
        Ok(_) => Ok(()),
        Err(error) if is_closed(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, path::PathBuf};

    use super::*;
    use crate::clock::Clock;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("salaam-notify-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
    }

    fn hear(socket: &UnixDatagram, within: Duration) -> Option<String> {
        let mut bytes = [0; 64];
        socket.set_read_timeout(Some(within)).unwrap();
        let got = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..got]).into_owned())
    }

    #[test]
    fn a_manager_behind_a_path_or_an_abstract_name_hears_each_word() {
        let place = Place::new("words");
        let path = place.0.join("notify");
        let name = format!("salaam-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (variable, listener) in [
            (path.display().to_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}"), UnixDatagram::bind_addr(&abstract_address).unwrap()),
        ] {
            let systemd = Systemd::of(&variables(&[("NOTIFY_SOCKET", &variable)])).unwrap();
            systemd.ready();
            systemd.stopping();
            assert_eq!(hear(&listener, SEND).as_deref(), Some("READY=1"));
            assert_eq!(hear(&listener, SEND).as_deref(), Some("STOPPING=1"));
        }
    }

    #[test]
    fn without_a_manager_or_with_one_that_cannot_be_named_nothing_is_told() {
        assert!(Systemd::of(&variables(&[])).is_none());
        for name in ["", "vsock:2:1", "relative", &format!("/{}", "x".repeat(200))] {
            assert!(Systemd::of(&variables(&[("NOTIFY_SOCKET", name)])).is_none(), "{name}");
        }
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_time_and_only_by_the_process_that_is_meant() {
        let own = std::process::id().to_string();
        let every = |pairs: &[(&str, &str)]| watchdog(&variables(pairs));
        let half = Some(Duration::from_secs(5));
        assert_eq!(every(&[("WATCHDOG_USEC", "10000000")]), half);
        assert_eq!(every(&[("WATCHDOG_USEC", "10000000"), ("WATCHDOG_PID", &own)]), half);
        assert_eq!(every(&[("WATCHDOG_USEC", "10000000"), ("WATCHDOG_PID", "1")]), None);
        for nothing in ["0", "1", "", "-3", "soon"] {
            assert_eq!(every(&[("WATCHDOG_USEC", nothing)]), None, "{nothing}");
        }
    }

    /// What is heard of the watchdog in a while, with a writer and an accept loop that work or do not.
    async fn fed(name: &str, accepts: bool, writes: bool) -> bool {
        let place = Place::new(name);
        let heard = UnixDatagram::bind(place.0.join("notify")).unwrap();
        let operators = place.0.join("operator.sock");
        let listener = tokio::net::UnixListener::bind(&operators).unwrap();
        let store = Store::open(&place.0, Clock).unwrap();
        if !writes {
            store.close().await;
        }
        let notify = place.0.join("notify").display().to_string();
        let systemd = Systemd::of(&variables(&[("NOTIFY_SOCKET", &notify), ("WATCHDOG_USEC", "200000")])).unwrap();
        // Closing what comes is what a full house does.
        let accepting = async {
            loop {
                let taken = listener.accept().await;
                // One that is taken and held is never answered.
                if accepts { drop(taken) } else { std::mem::forget(taken) }
            }
        };
        let _time_is_up =
            timeout(Duration::from_millis(500), async { tokio::join!(systemd.feed(&store, &operators), accepting) })
                .await;
        store.close().await;
        hear(&heard, Duration::from_millis(1)).is_some_and(|word| word == "WATCHDOG=1")
    }

    #[tokio::test]
    async fn the_watchdog_starves_when_the_writer_or_the_accept_loop_is_dead() {
        assert!(fed("well", true, true).await);
        assert!(!fed("deaf", false, true).await);
        assert!(!fed("mute", true, false).await);
    }
}
