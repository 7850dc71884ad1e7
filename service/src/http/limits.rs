//! Every limit on what a client may use, with its reason.

use std::time::Duration;

/// How long a client and we may take for the parts of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// From the first moment of a connection, or the end of the last answer, to a whole request head.
    pub(super) head: Duration,
    /// From a request's head to the end of its body.
    pub(super) body: Duration,
    /// For an answer that waits neither for people nor for commands.
    pub(super) answer: Duration,
}

impl Times {
    /// A local client needs milliseconds; these are for a host that swaps.
    pub(super) const USUAL: Self =
        Self { head: Duration::from_secs(10), body: Duration::from_secs(30), answer: Duration::from_secs(30) };
}

/// Bytes of a socket path with its terminator (`sun_path`, unix(7)).
pub(super) const SUN_PATH_BYTES: usize = 108;
/// Connections that the kernel holds for us before they are accepted: more than there are seats, so that a
/// burst waits instead of failing.
pub(super) const BACKLOG: i32 = 512;
/// Connections at once, where there are descriptors for them ([`seats`]).
pub(super) const SEATS: usize = 256;
/// Descriptors that one connection has: its own, and the one that watches for its end.
const SEAT_DESCRIPTORS: u64 = 2;
/// Descriptors that connections leave to the rest of the service: journal, executor, output files.
const OTHER_DESCRIPTORS: u64 = 256;

/// How many connections a limit of `descriptors` (RLIMIT_NOFILE) allows: clients never use up what commands
/// and their records need. The usual 1024 allow all [`SEATS`].
pub(super) fn seats(descriptors: u64) -> usize {
    let room = descriptors.saturating_sub(OTHER_DESCRIPTORS) / SEAT_DESCRIPTORS;
    usize::try_from(room).unwrap_or(SEATS).clamp(FEWEST_SEATS, SEATS)
}

/// An operator can always get in.
const FEWEST_SEATS: usize = 8;
/// The share of the seats for requests that last as long as the client wants (followers, attached operations,
/// downloads): one in two. The other half is always there for requests with a deadline, a grant or a denial
/// above all.
pub(super) const STAY_SHARE: usize = 2;
/// Peers that are no operators and are being told so. They can take nobody's seat.
pub(super) const STRANGERS: usize = 16;
/// One request head. The longest that the CLI sends has about 300 bytes; hyper's least is 8 KiB.
pub(super) const HEAD_BYTES: usize = 16 * 1024;
/// Header fields of one request.
pub(super) const HEAD_FIELDS: usize = 64;
/// A request body; the largest legitimate ones are a path or a comment.
pub(super) const BODY_BYTES: usize = 1 << 20;
/// The body of POST /v1/operations: 16 MiB of standard input as base64, 1.5 MiB of arguments, and JSON around.
pub(super) const PROPOSAL_BYTES: usize = 24 << 20;
/// The body of POST /v1/sessions: a script of 8 MiB, a task, and JSON around.
pub(super) const SESSION_BYTES: usize = 9 << 20;
/// The body of a message to an agent, and what it says.
pub(super) const MESSAGE_BYTES: usize = 256 << 10;
/// Bodies that are held in memory at once, all requests together: four of the largest.
pub(super) const BODIES_BYTES: usize = 96 << 20;
/// What requests in progress get when the service stops: their last words, as operations have ended by then.
/// `salaam service stop` promises 20 s in all, and the application waits 3 s for us.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(2);
/// How long accepting rests when the process or the host is out of descriptors or memory.
pub(super) const ACCEPT_REST: Duration = Duration::from_millis(100);
/// How long the account database may take to name a uid; then the number stands for the name.
pub(super) const NAME_TIME: Duration = Duration::from_secs(2);
/// Events that are read from the journal at once.
pub(super) const EVENT_BATCH: u32 = 256;
/// How often an event stream (SSE) shows that it lives; proxies and browsers give up after about 30 s.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Bytes of kept output that are read at once.
pub(super) const READ_BYTES: usize = 256 * 1024;
/// Operations that one listing has at the most, and when nothing is said.
pub(super) const LIST_MOST: u32 = 1000;
/// See [`LIST_MOST`].
pub(super) const LIST_DEFAULT: u32 = 50;
/// A path (PATH_MAX of Linux).
pub(super) const PATH_BYTES: usize = 4096;
/// The name of a workspace.
pub(super) const NAME_BYTES: usize = 64;
/// A comment on a decision; it is recorded and told to the proposer.
pub(super) const COMMENT_BYTES: usize = 4096;
/// A `request_id`; a UUID has 36.
pub(super) const REQUEST_ID_BYTES: usize = 128;
/// A binding as it is given; a real one has 64 digits.
pub(super) const BINDING_BYTES: usize = 128;
/// The longest drain: a day, and what `salaam service stop` takes after it.
pub(super) const DRAIN_SECONDS: u64 = 90_000;
/// What is quoted of a client's mistake.
pub(super) const QUOTE_CHARS: usize = 512;
