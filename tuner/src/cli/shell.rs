//! `nvkv-tune completions` and `nvkv-tune man`: from the definition of the command line itself.

use super::args::BadArguments;
use super::{Cli, Done, print};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use std::process::ExitCode;

/// Arguments of `completions`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Your shell
    shell: Shell,
}

/// Arguments of `man`.
#[derive(clap::Args, Clone, Debug)]
pub struct ManArgs {
    /// The page of one command, such as `query` [default: of nvkv-tune]
    command: Option<String>,
}

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nvkv-tune", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a page in roff.
pub fn man(args: &ManArgs) -> Done {
    let mut command = Cli::command();
    command.build();
    let visible = |name: &str| command.get_subcommands().find(|c| c.get_name() == name && !c.is_hide_set()).cloned();
    let command = match &args.command {
        None => command,
        Some(name) => {
            let unknown = || BadArguments(format!("no command is named `{name}`: `nvkv-tune --help` lists them"));
            visible(name).ok_or_else(unknown)?.version(env!("CARGO_PKG_VERSION"))
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    print(&String::from_utf8(page)?)?;
    Ok(ExitCode::SUCCESS)
}
