//! HTTP/1.1 on the operator socket.
//!
//! Promise: a request reaches [`crate::app::App`] only from a peer whom the kernel names as the service's
//! account, root, or a member of the operators group; everything that a client controls has a named limit; a
//! client that goes away drops its handler. Absent on purpose: a TCP listener, tokens, cookies, redirects.

mod ask;
mod front;
mod limits;
mod lines;
mod peer;
mod refuse;
mod routes;
pub mod schema;
mod seat;
mod serve;
mod socket;
mod verbs;
mod wire;

pub use peer::{Admission, Peer, Verdict, admit};
pub use routes::openapi;
pub use socket::{Listening, SOCKET_NAME, SocketError, listen};

#[cfg(test)]
mod tests;
