//! The output of a command while it runs: read from what is kept of it, as it is kept.
//!
//! What is followed is the kept output, so a stream that is longer than its limit goes on from its head to its tail
//! without a mark, as in the kept blob; the receipt says how much there was.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use salaam_core::{bridge::Stream, id::OperationId};
use tokio::sync::watch;

use crate::store::Store;

/// How much of each stream can be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub stdout: u64,
    pub stderr: u64,
}

impl Written {
    const fn of(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// One stream of one open operation, from its beginning to the receipt.
#[derive(Debug)]
pub struct Flow {
    store: Store,
    operation: OperationId,
    stream: Stream,
    /// Ends with the owner, which is after the receipt.
    written: watch::Receiver<Written>,
    file: Option<Arc<File>>,
    given: u64,
}

impl Flow {
    pub(super) const fn new(
        store: Store,
        operation: OperationId,
        stream: Stream,
        written: watch::Receiver<Written>,
    ) -> Self {
        Self { store, operation, stream, written, file: None, given: 0 }
    }

    /// The next bytes, at most `most`; nothing = the operation is over and everything was given. May be dropped.
    ///
    /// # Errors
    /// What is kept cannot be read.
    pub async fn next(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        loop {
            let there = self.written.borrow_and_update().of(self.stream);
            let over = self.written.has_changed().is_err();
            if over || there > self.given {
                let bytes = self.read(most).await?;
                if !bytes.is_empty() {
                    self.given += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                if over {
                    return Ok(None);
                }
            }
            // An error means that it is over: the next round reads what is left.
            drop(self.written.changed().await);
        }
    }

    /// Off the runtime's threads.
    async fn read(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let (store, operation, stream, at) = (self.store.clone(), self.operation, self.stream, self.given);
        let open = self.file.clone();
        let read = move || -> io::Result<(Option<Arc<File>>, Vec<u8>)> {
            let open = match open {
                Some(file) => Some(file),
                None => store.blob(operation, stream).map_err(io::Error::other)?.map(Arc::new),
            };
            let mut bytes = Vec::new();
            if let Some(file) = &open {
                bytes.resize(most, 0);
                let count = file.read_at(&mut bytes, at)?;
                bytes.truncate(count);
            }
            Ok((open, bytes))
        };
        let (file, bytes) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        self.file = file;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt as _;

    use super::*;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_follower_gets_head_and_tail_in_order_and_ends_with_the_owner() {
        let state = std::env::temp_dir().join(format!("salaam-flow-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        let store = Store::open(&state, Clock).unwrap();
        let id = OperationId::new(1, [3; 10]);
        let written = watch::Sender::new(Written::default());
        let mut flow = Flow::new(store.clone(), id, Stream::Stdout, written.subscribe());
        let mut spool = store.spool(id, Stream::Stdout, 8);
        spool.write(b"abc").unwrap();
        written.send_replace(Written { stdout: spool.readable(), stderr: 0 });
        assert_eq!(flow.next(2).await.unwrap().unwrap(), b"ab");
        assert_eq!(flow.next(64).await.unwrap().unwrap(), b"c");
        // Nothing new: it waits.
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), flow.next(64)).await;
        assert!(waits.is_err());
        spool.write(b"defghijkl").unwrap();
        written.send_replace(Written { stdout: spool.readable(), stderr: 0 });
        assert_eq!(flow.next(64).await.unwrap().unwrap(), b"d", "the head has room for four");
        spool.finish().unwrap();
        drop(written);
        assert_eq!(flow.next(64).await.unwrap().unwrap(), b"ijkl");
        assert_eq!(flow.next(64).await.unwrap(), None);
        let mut silent =
            Flow::new(store.clone(), id, Stream::Stderr, watch::Sender::new(Written::default()).subscribe());
        assert_eq!(silent.next(64).await.unwrap(), None);
        store.close().await;
        std::fs::remove_dir_all(state).unwrap();
    }
}
