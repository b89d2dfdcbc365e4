//! What a GPU answered: a line a form, in hexadecimal.
//!
//! ```text
//! # GPU, driver, day
//! add.s32 INPUTS RESULTS
//! ```
//!
//! `INPUTS` is a hash of body and operands, so that answers to another question are not taken for this one's.
//! `RESULTS` are those of each thread in order, little-endian, or, where they are long, `=` and their hash.

use super::table::Form;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of results above which only their hash is kept.
const LONGEST: usize = 16 << 10;

/// Results of one form, as they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Results(Vec<u8>),
    Hash(String),
}

/// Answers by the name of the form.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    by_name: BTreeMap<String, (String, Answer)>,
}

impl Answer {
    /// `results` as they are kept. Results within a tolerance have no hash.
    pub fn of(form: &Form, results: Vec<u8>) -> Self {
        if results.len() <= LONGEST || form.tolerance != super::Tolerance::Bits {
            return Self::Results(results);
        }
        Self::Hash(blake3::hash(&results).to_hex()[..32].to_string())
    }
}

impl Form {
    /// Hash of what is asked.
    fn question(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.body.as_bytes()).update(&self.input());
        hasher.finalize().to_hex()[..8].to_string()
    }
}

impl Answers {
    /// Reads a file. It belongs to the tests: a mistake in it is a panic.
    pub fn read(text: &str) -> Self {
        let mut by_name = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split_whitespace();
            let [Some(name), Some(question), Some(results)] = [fields.next(), fields.next(), fields.next()] else {
                panic!("not three fields in `{line}`");
            };
            let answer = match results.strip_prefix('=') {
                Some(hash) => Answer::Hash(hash.to_string()),
                None => Answer::Results(from_hex(results)),
            };
            by_name.insert(name.to_string(), (question.to_string(), answer));
        }
        Self { by_name }
    }

    /// The answer to this form's kernel on these operands.
    pub fn of(&self, form: &Form) -> Option<&Answer> {
        let (question, answer) = self.by_name.get(&form.name)?;
        (*question == form.question()).then_some(answer)
    }

    pub fn insert(&mut self, form: &Form, answer: Answer) {
        self.by_name.insert(form.name.clone(), (form.question(), answer));
    }

    /// The file's text, below `head`.
    pub fn text(&self, head: &str) -> String {
        let mut text = format!("# {head}\n");
        for (name, (question, answer)) in &self.by_name {
            let _ = match answer {
                Answer::Results(bytes) => writeln!(text, "{name} {question} {}", to_hex(bytes)),
                Answer::Hash(hash) => writeln!(text, "{name} {question} ={hash}"),
            };
        }
        text
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("`{pair}` is no byte"))).collect()
}
