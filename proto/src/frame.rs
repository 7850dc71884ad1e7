//! Messages over a stream socket: a little-endian u32 with the length, then the message. For the worker's and the
//! reader's socketpairs; the blocking form is here, and what an asynchronous one shares with it.

use std::io::{self, Read, Write};

/// Bytes of the length before each message.
pub const HEADER_BYTES: usize = 4;

/// Why the link cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[from] io::Error),
    /// A message is longer than one may be.
    #[error("a message of {given} bytes; {most} is the most")]
    TooLong {
        /// Its length.
        given: usize,
        /// The most that is taken.
        most: usize,
    },
    /// The other side closed in the middle of a message.
    #[error("the other side closed in the middle of a message")]
    Torn,
    /// The bytes are no such message.
    #[error("the bytes are no message of the contract")]
    Malformed,
    /// It is one that no honest peer sends.
    #[error("an impossible message: {0}")]
    Impossible(#[from] crate::WireError),
}

/// The length in a header.
///
/// # Errors
/// It is more than `most`.
pub const fn length(header: [u8; HEADER_BYTES], most: usize) -> Result<usize, FrameError> {
    let given = u32::from_le_bytes(header) as usize;
    if given > most { Err(FrameError::TooLong { given, most }) } else { Ok(given) }
}

/// The message with its header, in one piece: so that one write sends it.
///
/// # Errors
/// It is longer than `most`.
pub fn framed(message: &impl prost::Message, most: usize) -> Result<Vec<u8>, FrameError> {
    let given = message.encoded_len();
    let header = u32::try_from(given).ok().filter(|_| given <= most).ok_or(FrameError::TooLong { given, most })?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + given);
    bytes.extend_from_slice(&header.to_le_bytes());
    // The vector grows as needed, so there is always room.
    message.encode(&mut bytes).map_err(|_| FrameError::TooLong { given, most })?;
    Ok(bytes)
}

/// A message from its bytes, as a checked value.
///
/// # Errors
/// The bytes are no message, or an impossible one.
pub fn value<W, T>(bytes: &[u8]) -> Result<T, FrameError>
where
    W: prost::Message + Default,
    T: TryFrom<W, Error = crate::WireError>,
{
    let message = W::decode(bytes).map_err(|_| FrameError::Malformed)?;
    Ok(T::try_from(message)?)
}

/// Sends one message.
///
/// # Errors
/// It is longer than `most`, or the socket failed.
pub fn write(to: &mut impl Write, message: &impl prost::Message, most: usize) -> Result<(), FrameError> {
    to.write_all(&framed(message, most)?)?;
    Ok(to.flush()?)
}

/// Receives the bytes of one message; absent = the other side closed between two messages. Memory grows with what
/// arrives, not with what the header promises.
///
/// # Errors
/// It is longer than `most`, is torn, or the socket failed.
pub fn read(from: &mut impl Read, most: usize) -> Result<Option<Vec<u8>>, FrameError> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    from.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(None);
    }
    let header = <[u8; HEADER_BYTES]>::try_from(header).map_err(|_| FrameError::Torn)?;
    let length = length(header, most)?;
    let mut bytes = Vec::new();
    from.by_ref().take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() == length { Ok(Some(bytes)) } else { Err(FrameError::Torn) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker_wire as wire;

    #[test]
    fn frames_are_golden_and_come_back_one_by_one() {
        let message = wire::Message { text: "hi".into() };
        let mut sent = Vec::new();
        write(&mut sent, &message, 4).unwrap();
        assert_eq!(sent, b"\x04\0\0\0\x0a\x02hi");
        write(&mut sent, &wire::Stop {}, 4).unwrap();
        let mut from = sent.as_slice();
        assert_eq!(read(&mut from, 4).unwrap().unwrap(), b"\x0a\x02hi");
        assert_eq!(read(&mut from, 4).unwrap().unwrap(), b"");
        assert_eq!(read(&mut from, 4).unwrap(), None);
    }

    #[test]
    fn what_is_too_long_or_torn_ends_the_link() {
        let message = wire::Message { text: "hi".into() };
        assert!(matches!(framed(&message, 3), Err(FrameError::TooLong { given: 4, most: 3 })));
        for (bytes, what) in [
            (&b"\x05\0\0\0"[..], "long"),
            (b"\xff\xff\xff\xff", "long"),
            (b"\x04\0", "torn"),
            (b"\x04\0\0\0\x0a", "torn"),
        ] {
            let said = read(&mut &*bytes, 4).unwrap_err();
            assert_eq!(matches!(said, FrameError::TooLong { .. }), what == "long", "{bytes:?}");
            assert_eq!(matches!(said, FrameError::Torn), what == "torn", "{bytes:?}");
        }
    }
}
