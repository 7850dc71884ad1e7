//! Messages that are larger than one may be: cut into parts on one side, joined on the other.

use salaam_core::{
    bridge::{CHUNK_BYTES, MAX_EDIT_FRAME_BYTES},
    edit::MAX_EDIT_BYTES,
};

use crate::{bounds::WireError, wire};

/// The largest message that crosses in parts: the contents of an edit, and its frame.
pub const MAX_PARTED_BYTES: usize = MAX_EDIT_BYTES + MAX_EDIT_FRAME_BYTES;

/// The parts of a message, in order.
///
/// # Errors
/// It is larger than [`MAX_PARTED_BYTES`].
pub fn parted(message: &impl prost::Message) -> Result<Vec<wire::Part>, WireError> {
    let given = message.encoded_len();
    if given > MAX_PARTED_BYTES {
        return Err(WireError::TooLong { field: "parts", given, most: MAX_PARTED_BYTES });
    }
    let whole = message.encode_to_vec();
    let mut parts: Vec<wire::Part> =
        whole.chunks(CHUNK_BYTES).map(|chunk| wire::Part { bytes: chunk.to_vec().into(), last: false }).collect();
    match parts.last_mut() {
        Some(last) => last.last = true,
        None => parts.push(wire::Part { bytes: Vec::new().into(), last: true }),
    }
    Ok(parts)
}

/// Joins what [`parted`] cut.
#[derive(Debug, Default)]
pub struct Parts {
    bytes: Vec<u8>,
    complete: bool,
}

impl Parts {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next part; says whether it was the last.
    ///
    /// # Errors
    /// It is too long, it adds nothing, or the last came before.
    pub fn push(&mut self, part: &wire::Part) -> Result<bool, WireError> {
        if self.complete {
            return Err(WireError::Form { field: "part.last", form: "on the last part" });
        }
        if part.bytes.len() > CHUNK_BYTES {
            return Err(WireError::TooLong { field: "part.bytes", given: part.bytes.len(), most: CHUNK_BYTES });
        }
        if part.bytes.is_empty() && !(part.last && self.bytes.is_empty()) {
            return Err(WireError::Missing { field: "part.bytes" });
        }
        let given = self.bytes.len() + part.bytes.len();
        if given > MAX_PARTED_BYTES {
            return Err(WireError::TooLong { field: "parts", given, most: MAX_PARTED_BYTES });
        }
        self.bytes.extend_from_slice(&part.bytes);
        self.complete = part.last;
        Ok(part.last)
    }

    /// The whole message as a checked value.
    ///
    /// # Errors
    /// The last part has not come, the bytes are no such message, or it is one that no honest peer sends.
    pub fn value<W, T>(self) -> Result<T, WireError>
    where
        W: prost::Message + Default,
        T: TryFrom<W, Error = WireError>,
    {
        if !self.complete {
            return Err(WireError::Missing { field: "part.last" });
        }
        let message = W::decode(self.bytes.as_slice())
            .map_err(|_| WireError::Form { field: "parts", form: "a message of the contract" })?;
        T::try_from(message)
    }
}

#[cfg(test)]
mod tests {
    use salaam_core::{bridge::FilesRead, edit::Image};

    use super::*;

    fn part(bytes: &[u8], last: bool) -> wire::Part {
        wire::Part { bytes: bytes.to_vec().into(), last }
    }

    #[test]
    fn what_was_cut_is_joined_again() {
        for size in [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1] {
            let image = Image { content: vec![7; size], mode: 0o644 };
            let read = FilesRead { files: vec![(b"f".to_vec(), Some(image))] };
            let cut = parted(&wire::FilesRead::from(read.clone())).unwrap();
            let mut parts = Parts::new();
            for (at, part) in cut.iter().enumerate() {
                assert_eq!(parts.push(part), Ok(at + 1 == cut.len()));
            }
            assert_eq!(parts.value::<wire::FilesRead, FilesRead>(), Ok(read));
        }
    }

    #[test]
    fn parts_that_no_honest_peer_sends_are_refused() {
        assert!(Parts::new().push(&part(&[0; CHUNK_BYTES + 1], false)).is_err());
        assert!(Parts::new().push(&part(b"", false)).is_err(), "an endless stream of nothing");
        let mut ended = Parts::new();
        assert_eq!(ended.push(&part(b"", true)), Ok(true));
        assert!(ended.push(&part(b"x", false)).is_err());
        let mut open = Parts::new();
        assert_eq!(open.push(&part(b"x", false)), Ok(false));
        assert!(open.push(&part(b"", true)).is_err());
        assert_eq!(open.value::<wire::FilesRead, FilesRead>(), Err(WireError::Missing { field: "part.last" }));
        let mut noise = Parts::new();
        assert_eq!(noise.push(&part(b"\xff\xff", true)), Ok(true));
        assert!(noise.value::<wire::FilesRead, FilesRead>().is_err());
        let mut endless = Parts::new();
        let chunk = part(&[0; CHUNK_BYTES], false);
        let refused = (0..=MAX_PARTED_BYTES / CHUNK_BYTES).find_map(|_| endless.push(&chunk).err());
        assert!(matches!(refused, Some(WireError::TooLong { field: "parts", .. })));
    }
}
