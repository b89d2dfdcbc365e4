//! `nvkv-tune`: the one binary. Everything it does is in the library.

fn main() -> std::process::ExitCode {
    nvkv_tuner::cli::main()
}
