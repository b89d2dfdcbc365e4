//! Every instruction form in the emulator against the answers of an H200.

mod corpus;

use corpus::{Answer, Answers, Form, TARGET, forms};
use rayon::prelude::*;

/// What is wrong with a form; nothing where the emulator gives the GPU's results.
fn fault(form: &Form, answers: &Answers) -> Option<String> {
    let got = match form.emulate() {
        Ok(got) => got,
        Err(error) => return Some(error.to_string()),
    };
    let Some(answer) = answers.of(form) else { return Some("no answer of a GPU: record them".into()) };
    match answer {
        Answer::Results(expected) => form.difference(&got, expected),
        hash => (Answer::of(form, got) != *hash).then(|| "the hash of all results differs".into()),
    }
}

#[test]
fn the_emulator_gives_the_bits_of_an_h200() {
    let answers = Answers::read(include_str!("h200.txt"));
    let wrong: Vec<String> = forms()
        .par_iter()
        .filter_map(|form| fault(form, &answers).map(|fault| format!("{}: {fault}", form.name)))
        .collect();
    assert!(wrong.is_empty(), "{} forms:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = forms().into_iter().map(|form| form.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn answers_are_read_as_they_were_written_and_belong_to_one_question() {
    let mut form = forms().remove(0);
    let mut answers = Answers::default();
    answers.insert(&form, Answer::of(&form, vec![0x01, 0xFE]));
    let read = Answers::read(&answers.text("a GPU"));
    assert_eq!(read.of(&form), Some(&Answer::Results(vec![0x01, 0xFE])));
    form.body += "// another";
    assert_eq!(read.of(&form), None);
}

/// `PTXAS=… cargo test -p nvkv-emulator --test vectors -- --ignored`, after a change of the table.
#[test]
#[ignore = "needs ptxas, which the toolchain of the other tests lacks"]
fn ptxas_accepts_every_kernel() {
    let folder = std::env::temp_dir().join("nvkv-vectors");
    std::fs::create_dir_all(&folder).expect("a folder for PTX");
    let refused: Vec<String> =
        forms().par_iter().enumerate().filter_map(|(i, form)| refusal(form, &folder, i)).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

fn refusal(form: &Form, folder: &std::path::Path, i: usize) -> Option<String> {
    let path = folder.join(format!("{i}.ptx"));
    std::fs::write(&path, form.ptx()).expect("PTX is written");
    let ptxas = std::env::var("PTXAS").unwrap_or_else(|_| "ptxas".into());
    let arch = format!("-arch={TARGET}");
    let output = std::process::Command::new(ptxas).arg(arch).arg(&path).args(["-o", "/dev/null"]).output();
    let output = output.expect("ptxas runs; PTXAS names it");
    (!output.status.success()).then(|| format!("{}: {}", form.name, String::from_utf8_lossy(&output.stderr)))
}
