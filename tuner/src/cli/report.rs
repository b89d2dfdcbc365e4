//! `nvkv-tune report`: what a database holds, as a page for people or as data for programs.

use super::args::{BadArguments, DbArgs, RowArgs, asked_for};
use super::{Done, NOTHING, print};
use crate::folder::replace_file;
use crate::pipeline::now;
use crate::report::data::{Records, Report};
use crate::report::{export, page, t4};
use nvkv_db::Db;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `report`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// File to write; `-` is stdout [default: report.html, or of the format's ending]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What to write [default: by the ending of --out: .html, .csv or .json]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(flatten)]
    db: DbArgs,
    #[command(flatten)]
    rows: RowArgs,
}

/// What a report is written as.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Format {
    /// A page for people, self-contained
    Html,
    /// A line a trial; units are in the columns' names
    Csv,
    /// The same with every sample
    Json,
    /// The results format T4 of the auto-tuning community, which Kernel Tuner writes
    T4,
}

impl Format {
    fn file(self) -> &'static Path {
        Path::new(match self {
            Self::Html => "report.html",
            Self::Csv => "report.csv",
            Self::Json => "report.json",
            Self::T4 => "report.t4.json",
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let format = args.format()?;
    let out = args.out.as_deref().unwrap_or(format.file());
    if is_database(out) {
        return Err(BadArguments(format!("{} is a database: name another file for the report", out.display())).into());
    }
    let target = args.rows.target()?;
    let records = Records::read(&Db::open_read_only(&args.db.db)?, target, &args.rows.only)?;
    if records.trials.is_empty() {
        eprintln!(
            "{} has no trial{}: `nvkv-tune` records them",
            args.db.db.display(),
            asked_for(target, &args.rows.only)
        );
        return Ok(ExitCode::from(NOTHING));
    }
    let text = match format {
        Format::Html => page::page(&Report::from(records), &args.db.db.display().to_string(), &now()),
        Format::Csv => export::csv(&records)?,
        Format::Json => export::json(&records)?,
        Format::T4 => t4::results(&records)?,
    };
    if out == Path::new("-") {
        print(&text)?;
    } else {
        replace_file(out, text.as_bytes())?;
        eprintln!("{} ({})", out.display(), indicatif::HumanBytes(text.len() as u64));
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn format(&self) -> Result<Format, BadArguments> {
        let ending = self.out.as_deref().and_then(Path::extension).map(|ending| ending.to_string_lossy());
        match (self.format, ending.as_deref()) {
            (Some(format), _) => Ok(format),
            (None, None | Some("html" | "htm")) => Ok(Format::Html),
            (None, Some("csv")) => Ok(Format::Csv),
            (None, Some("json")) => Ok(Format::Json),
            (None, Some(other)) => Err(BadArguments(format!(
                "no format has the ending .{other}: name --out .html, .csv or .json, or say --format html, csv, json or t4"
            ))),
        }
    }
}

/// Whether what is there is an SQLite file (<https://sqlite.org/fileformat.html>, "The Database Header").
fn is_database(path: &Path) -> bool {
    let mut header = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_ok() && header == *b"SQLite format 3\0"
}
