//! What the service starts a worker with.

use salaam_confine::{Limits, Program, Role};

/// Parsed, the largest script and a whole transcript take a third of it.
const MEMORY_BYTES: u64 = 256 << 20;
/// The five that it has, and one that is handed over.
const OPEN_FILES: u64 = 8;

/// A worker; what it is given is the socket over which descriptors come.
pub(crate) const WORKER: Program = Program {
    name: "salaam-worker",
    role: Role::Worker,
    given: 3,
    limits: Limits { memory_bytes: MEMORY_BYTES, open_files: OPEN_FILES, cpu_seconds: None },
};
