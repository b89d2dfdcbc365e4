//! Machine code as hexadecimal text, so that one JSON frame carries a whole message.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Writes `bytes` as lower-case hexadecimal digits.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let text: String =
        bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|nibble| DIGITS[usize::from(nibble)] as char).collect();
    serializer.serialize_str(&text)
}

/// Reads them back.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(D::Error::custom("odd number of hexadecimal digits"));
    }
    pairs
        .iter()
        .map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?))
        .collect::<Option<_>>()
        .ok_or_else(|| D::Error::custom("not a hexadecimal digit"))
}
