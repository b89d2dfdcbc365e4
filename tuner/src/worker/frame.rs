//! Messages between parent and worker: a length (u32, little endian), then that many bytes of JSON.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// A longer message is taken for garbage: no source or cubin comes near.
const LONGEST: u32 = 256 << 20;

/// A worker's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply<T> {
    /// What it answers.
    pub(super) answer: T,
    /// The worker ends after this one: its CUDA context is lost.
    pub(super) last: bool,
}

/// Writes one message.
pub(super) fn write(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    to.write_all(&(message.len() as u32).to_le_bytes())?;
    to.write_all(message)?;
    to.flush()
}

/// Reads one message; `None` where the other side has closed.
pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut message = vec![0; length as usize];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}

/// A message's bytes.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(message).map_err(io::Error::other)
}

/// The message of these bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(io::Error::other)
}
