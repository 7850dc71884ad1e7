//! Work that waits for a disk, on a thread of which nobody else expects an answer.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does `work` here while the runtime gives what else this thread had to do to another.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // Outside a runtime, or in one of a single thread: there is no other to give it to.
        Ok(_) | Err(_) => work(),
    }
}
