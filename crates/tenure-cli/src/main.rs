//! The `tenure` command.

mod exit;
mod json;
mod object;
mod store;
mod stores;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Who holds what, until when?
///
/// Versioned objects with compare-and-swap on the store you already run: one SQLite file by default,
/// a directory, or Postgres.
#[derive(Parser)]
#[command(name = "tenure", version, after_long_help = exit::HELP, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Look at a store: what it promises, whether it keeps its promises, migrations.
    #[command(subcommand)]
    Store(store::Command),
    /// Read, write and watch versioned objects.
    #[command(subcommand)]
    Object(object::Command),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TENURE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tenure: no runtime: {error}");
            return ExitCode::from(exit::FAILED);
        }
    };
    let result = runtime.block_on(async {
        match arguments.command {
            Command::Store(command) => command.run().await,
            Command::Object(command) => command.run().await,
        }
    });
    // A blocked background thread must not keep a finished command from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match result {
        Ok(code) => code,
        Err(error) if exit::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure: {error:#}");
            ExitCode::from(exit::code(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
