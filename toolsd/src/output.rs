//! What a command writes: read from its pipes in large pieces, sent on with back-pressure, complete when the
//! command's tree is gone.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::fcntl::{FcntlArg, fcntl};
use salaam_core::bridge::{CHUNK_BYTES, RunEvent, Stream};
use tokio::{
    net::unix::pipe,
    sync::{mpsc, watch},
};

/// What a pipe holds: larger saves wake-ups; 1 MiB is the most that the kernel gives without a privilege.
const PIPE_BYTES: i32 = 1 << 20;

/// Enlarges a pipe; an account over its quota of pipe memory keeps the ordinary size.
pub fn enlarge(pipe: impl AsFd) {
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
}

/// Sends everything that comes out of `pipe` until its end, or until `gone` turns true: then what the command
/// wrote lies in the pipe already, so that much is read and no more, whoever else may still hold the pipe.
///
/// Returns early where nobody takes the events any more.
pub async fn forward(
    pipe: OwnedFd,
    stream: Stream,
    events: mpsc::Sender<RunEvent>,
    mut gone: watch::Receiver<bool>,
) -> io::Result<()> {
    let pipe = pipe::Receiver::from_owned_fd(pipe)?;
    let mut left = loop {
        tokio::select! {
            ready = pipe.readable() => {
                ready?;
                match take(&pipe, CHUNK_BYTES)? {
                    Taken::Nothing => {}
                    Taken::End => return Ok(()),
                    Taken::Bytes(bytes) => {
                        if events.send(RunEvent::Output(stream, bytes)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
            // An error means that the sender is dropped: the command's task is over and waits for nobody.
            _ = ended(&mut gone) => break salaam_sys::file::waiting_bytes(&pipe)?,
        }
    };
    while left > 0 {
        match take_now(&pipe, left.min(CHUNK_BYTES))? {
            Taken::Nothing | Taken::End => return Ok(()),
            Taken::Bytes(bytes) => {
                left = left.saturating_sub(bytes.len());
                if events.send(RunEvent::Output(stream, bytes)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Reads what lies in the pipe by the kernel's word. The runtime's own word comes late: until its reactor has seen
/// the bytes arrive, `try_read_buf` says that there are none, and a short command's output would be lost.
fn take_now(pipe: &pipe::Receiver, most: usize) -> io::Result<Taken> {
    let mut bytes = vec![0; most];
    match nix::unistd::read(pipe, &mut bytes) {
        Ok(0) => Ok(Taken::End),
        Ok(count) => {
            bytes.truncate(count);
            Ok(Taken::Bytes(bytes))
        }
        Err(nix::errno::Errno::EAGAIN) => Ok(Taken::Nothing),
        Err(error) => Err(error.into()),
    }
}

async fn ended(gone: &mut watch::Receiver<bool>) {
    drop(gone.wait_for(|gone| *gone).await);
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Nothing,
    End,
    Bytes(Vec<u8>),
}

fn take(pipe: &pipe::Receiver, most: usize) -> io::Result<Taken> {
    let mut bytes = Vec::with_capacity(most);
    match pipe.try_read_buf(&mut bytes) {
        Ok(0) => Ok(Taken::End),
        Ok(_) => {
            // A prompt of ten bytes must not hold 64 KiB in the queue.
            if bytes.len() < most / 16 {
                bytes.shrink_to_fit();
            }
            Ok(Taken::Bytes(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Taken::Nothing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_before_the_end_arrives_although_the_reactor_has_not_seen_it() {
        let (from, to) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK).unwrap();
        // Somebody else still holds the writing end: there is no end of file.
        nix::unistd::write(&to, b"last words").unwrap();
        // On a runtime of one thread that has not polled since, the reactor knows nothing of these bytes.
        let pipe = pipe::Receiver::from_owned_fd(from.try_clone().unwrap()).unwrap();
        assert_eq!(take(&pipe, 64).unwrap(), Taken::Nothing, "this is what loses them");
        assert_eq!(take_now(&pipe, 64).unwrap(), Taken::Bytes(b"last words".to_vec()));
        drop(pipe);

        nix::unistd::write(&to, b"more").unwrap();
        let (events, mut heard) = mpsc::channel(4);
        let (_gone, told) = watch::channel(true);
        forward(from, Stream::Stdout, events, told).await.unwrap();
        assert_eq!(heard.recv().await, Some(RunEvent::Output(Stream::Stdout, b"more".to_vec())));
        assert_eq!(heard.recv().await, None);
        drop(to);
    }
}
