//! PTX text to tokens. A word keeps its dots, so an opcode with all its modifiers is one token.

use crate::EmulationError;

/// Characters of a line that a message quotes.
const MOST_QUOTED: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Opcode, directive, name.
    Word(String),
    Integer(i64),
    Float32(u32),
    Float64(u64),
    /// Without its quotes.
    Text(String),
    Mark(char),
}

/// Tokens with their lines.
pub(super) fn tokens(text: &str) -> Result<Vec<(u32, Token)>, EmulationError> {
    let mut found = Vec::new();
    let mut in_comment = false;
    for (line, full) in (1..).zip(text.lines()) {
        let mut rest = full;
        loop {
            if in_comment {
                let Some((_, after)) = rest.split_once("*/") else { break };
                (rest, in_comment) = (after, false);
            }
            rest = rest.trim_start();
            if rest.is_empty() || rest.starts_with("//") {
                break;
            }
            if let Some(after) = rest.strip_prefix("/*") {
                (rest, in_comment) = (after, true);
                continue;
            }
            let (token, length) = token(rest).ok_or_else(|| EmulationError::Syntax {
                line,
                text: excerpt(full),
                problem: format!("`{}` begins with no token", excerpt(rest)),
            })?;
            found.push((line, token));
            rest = &rest[length..];
        }
    }
    Ok(found)
}

/// What a message quotes of a line.
pub(super) fn excerpt(line: &str) -> String {
    let line = line.trim();
    line.char_indices().nth(MOST_QUOTED).map_or(line.to_string(), |(end, _)| format!("{}...", &line[..end]))
}

/// The first token of `text` and its length.
fn token(text: &str) -> Option<(Token, usize)> {
    let first = text.chars().next()?;
    let second = text[first.len_utf8()..].chars().next().unwrap_or(' ');
    if first.is_ascii_digit() || first == '-' && second.is_ascii_digit() {
        return number(text);
    }
    if first == '"' {
        let end = text[1..].find('"')? + 1;
        return Some((Token::Text(text[1..end].to_string()), end + 1));
    }
    if is_word(first) {
        let length = word_length(text);
        return Some((Token::Word(text[..length].to_string()), length));
    }
    ",;{}[]()<>|!@=:+-".contains(first).then_some((Token::Mark(first), 1))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._$%".contains(c)
}

/// Modifiers such as `L1::no_allocate` have a double colon; a single one ends a label.
fn word_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b':' if bytes.get(at + 1) == Some(&b':') => at += 2,
            byte if is_word(char::from(byte)) => at += 1,
            _ => break,
        }
    }
    at
}

fn number(text: &str) -> Option<(Token, usize)> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let sign = text.len() - digits.len();
    let length = digits.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(digits.len());
    let literal = &digits[..length];
    let token = match literal.as_bytes() {
        [b'0', b'f' | b'F', ..] if length == 10 => Token::Float32(u32::from_str_radix(&literal[2..], 16).ok()?),
        [b'0', b'd' | b'D', ..] if length == 18 => Token::Float64(u64::from_str_radix(&literal[2..], 16).ok()?),
        _ => {
            let plain = literal.strip_suffix('U').unwrap_or(literal);
            // PTX ISA, "Integer Constants".
            let (digits, radix) = match plain.as_bytes() {
                [b'0', b'x' | b'X', ..] => (&plain[2..], 16),
                [b'0', b'b' | b'B', ..] => (&plain[2..], 2),
                [b'0', _, ..] => (&plain[1..], 8),
                _ => (plain, 10),
            };
            let magnitude = u64::from_str_radix(digits, radix).ok()?;
            let value = magnitude as i64;
            Token::Integer(if sign == 1 { value.wrapping_neg() } else { value })
        }
    };
    Some((token, sign + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Token> {
        tokens(text).unwrap().into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn numbers_of_every_notation() {
        let expected = [
            Token::Integer(-9216),
            Token::Integer(0xFFFF_FFFF),
            Token::Float32(0xFF80_0000),
            Token::Float64(0x3FF0_0000_0000_0000),
            Token::Integer(17),
            Token::Integer(-1),
        ];
        assert_eq!(words("-9216 0xFFFFFFFFU 0fFF800000 0d3FF0000000000000 17 18446744073709551615"), expected);
    }

    /// PTX ISA, "Integer Constants".
    #[test]
    fn integers_of_every_base() {
        let expected = [8, 0o1777, 5, 5, 0, 255].map(Token::Integer);
        assert_eq!(words("010 01777U 0b101 0B101U 0 0XFF"), expected);
        for wrong in ["08", "0b2", "0x", "1UU"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_end_where_double_colons_go_on() {
        let word = |w: &str| Token::Word(w.to_string());
        assert_eq!(words("$L__BB0_1: ret;"), [word("$L__BB0_1"), Token::Mark(':'), word("ret"), Token::Mark(';')]);
        assert_eq!(words("ld.global.L1::no_allocate.b32")[0], word("ld.global.L1::no_allocate.b32"));
    }

    #[test]
    fn comments_are_skipped_and_lines_counted() {
        let found = tokens("// one\n/* two\nthree */ ret; // four\nexit").unwrap();
        assert_eq!(found.iter().map(|t| t.0).collect::<Vec<_>>(), [3, 3, 4]);
    }

    #[test]
    fn what_is_no_token_is_named_with_its_line() {
        let error = tokens("ret;\n  mov ^ x;").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("mov ^ x;"), "{error}");
    }
}
