//! The `tenure` command.

// They panic if nobody reads what they print: see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod duration;
mod elect;
mod examples;
mod exit;
mod follow;
mod hand_over;
mod history;
mod json;
mod lease;
mod logging;
mod manual;
mod object;
mod orphans;
mod output;
mod progress;
mod run;
mod serve;
mod servers;
mod slots;
mod store;
mod stores;
mod table;
mod token;

use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Every lease and call takes and frees small pieces of memory, often on different threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Who holds what, until when?
///
/// Leases, slots, leader election and versioned objects on the store you already run; one SQLite file
/// by default.
///
/// A lease is held on a scope: `billing.nightly/close` is the key `close` in the namespace
/// `billing.nightly`. A group of slots, of which so many may be held at once, is a namespace. Whoever
/// holds has a token, a number greater than that of every holder before it: what is written to can
/// refuse whoever comes late. To hold something around a command, `tenure run`.
#[derive(Parser)]
#[command(name = "tenure", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Serve(serve::Arguments),
    /// See who holds what and who waits for it; have it handed over; end somebody's tenure.
    ///
    /// To hold a lease, `tenure run SCOPE -- COMMAND`.
    #[command(subcommand)]
    Lease(lease::Command),
    /// See and resize groups of slots; have one handed over.
    ///
    /// To hold a slot, `tenure run GROUP --slots N -- COMMAND`.
    #[command(subcommand)]
    Slots(slots::Command),
    /// See who leads; have somebody else lead.
    ///
    /// To lead is to hold the scope of the election: `tenure run SCOPE -- COMMAND`.
    #[command(subcommand)]
    Elect(elect::Command),
    /// Look at a store: what it promises, whether it keeps its promises, migrations.
    #[command(subcommand)]
    Store(store::Command),
    /// Read, write and watch versioned objects.
    ///
    /// An object has a kind and an id, a payload, and perhaps a name, labels and a life. Its version counts
    /// its changes; a revision counts those of the whole store, and says where a watch may begin.
    #[command(subcommand)]
    Object(object::Command),
    Token(token::Arguments),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    Man(manual::Arguments),
    /// Becomes the command of `run`.
    #[command(hide = true)]
    RunIt {
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Guards the command of `run`.
    #[command(hide = true)]
    RunGuard(run::GuardArguments),
}

fn main() -> ExitCode {
    let command = match arguments().command {
        // They need neither a store nor a runtime, and must be quick.
        Command::RunIt { command } => return run::become_command(&command),
        Command::RunGuard(arguments) => return arguments.run(),
        Command::Completions { shell } => return end(completions(shell)),
        command => command,
    };
    logging::start(matches!(command, Command::Serve(_)));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::say(format_args!("no runtime: {error}"));
            return ExitCode::from(exit::FAILED);
        }
    };
    let result = runtime.block_on(async {
        match command {
            Command::Run(arguments) => arguments.run().await,
            Command::Serve(arguments) => arguments.run().await,
            Command::Token(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(command_line()),
            Command::Lease(command) => command.run().await,
            Command::Slots(command) => command.run().await,
            Command::Elect(command) => command.run().await,
            Command::Store(command) => command.run().await,
            Command::Object(command) => command.run().await,
            Command::RunIt { .. } | Command::RunGuard(_) | Command::Completions { .. } => {
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // A blocked background thread must not keep a finished command from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    end(result)
}

/// The exit code, and what there is to say about it.
fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(format_args!("{error:#}"));
            ExitCode::from(exit::code(&error))
        }
    }
}

/// Everything that can be asked for, with the manual.
fn command_line() -> clap::Command {
    without_empty(manual::complete(Arguments::command()))
}

/// A variable that is set to nothing is not set, as files of settings often have it.
fn without_empty(command: clap::Command) -> clap::Command {
    let is_empty =
        |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|set| set.is_empty());
    command
        .mut_args(|argument| match argument.get_env().is_some_and(is_empty) {
            true => argument.env(Resettable::Reset),
            false => argument,
        })
        .mut_subcommands(without_empty)
}

fn arguments() -> Arguments {
    let given = command_line().get_matches();
    let arguments = Arguments::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    if let Command::Run(run) = &arguments.command {
        run.check(&mut command_line());
    }
    arguments
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command_line(), "tenure", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command_line().debug_assert();
    }
}
