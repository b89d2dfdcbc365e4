//! The tuner as a library: workers, verification, measurement, and the pipeline over them.

/// Shadows `std::eprintln` in this crate on purpose: that one panics where stderr is closed (`2>&1 | head -1`, a
/// terminal that is gone), and a run must not end because nobody reads its progress.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::writeln!(::std::io::stderr(), $($text)*);
    }};
}

/// The same for `std::eprint`.
macro_rules! eprint {
    ($($text:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::write!(::std::io::stderr(), $($text)*);
    }};
}

pub mod bundle;
pub mod cli;
pub mod folder;
pub mod gpu;
mod measure;
pub mod models;
pub mod pipeline;
pub mod report;
pub mod search;
pub mod verify;
pub mod worker;
