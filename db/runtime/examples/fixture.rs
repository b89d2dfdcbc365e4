//! Writes a small bundle of made-up kernels into a folder, for tests in other languages.

use nvkv_runtime::fixture;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: fixture FOLDER");
        return ExitCode::from(2);
    };
    match fixture::write(Path::new(&folder), &fixture::small()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{folder}: {error}");
            ExitCode::FAILURE
        }
    }
}
