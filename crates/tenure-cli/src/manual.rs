//! The manual: what `--help` says at its end, and the pages that `tenure man` writes. Both are made from
//! the same words: the options themselves, [`exit`] and [`examples`].

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::output::print;
use crate::{examples, exit};

/// The section of commands.
const SECTION: &str = "1";

/// Write the manual pages, one for every command.
///
/// They say what `--help` says: tenure(1), tenure-run(1), tenure-lease-ls(1) and so on. Put them where
/// `man` looks, and it finds them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder for them, made if it is not there.
    folder: PathBuf,
}

impl Arguments {
    pub(crate) fn run(&self, root: clap::Command) -> anyhow::Result<ExitCode> {
        let folder = &self.folder;
        let count = write(root, folder)
            .with_context(|| format!("cannot write the pages into {}", folder.display()))?;
        print(format_args!("{count} pages in {}", folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The command line with the end that every `--help` has: examples, exit codes, environment.
pub(crate) fn complete(root: clap::Command) -> clap::Command {
    let root = root.after_long_help(all());
    root.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        if !command.has_subcommands() {
            return with_end(command, &name);
        }
        command.mut_subcommands(|inner| {
            let name = format!("{name} {}", inner.get_name());
            with_end(inner, &name)
        })
    })
}

fn with_end(command: clap::Command, name: &str) -> clap::Command {
    let mut end = String::new();
    for (what, line) in examples::of(name) {
        let before = if end.is_empty() { "Examples:" } else { "" };
        let _ = write!(end, "{before}\n  # {what}\n  {line}\n");
    }
    if name == "run" {
        let _ = write!(end, "\n{}", codes());
    } else {
        end.push_str("\nExit codes and environment: tenure --help");
    }
    command.after_long_help(end)
}

/// What `tenure --help` ends with.
fn all() -> String {
    let mut text = codes() + "\nEnvironment:\n";
    for (name, what) in exit::ENVIRONMENT {
        let _ = writeln!(text, "  {name:<13} {what}");
    }
    text + "\n`tenure COMMAND --help` has examples; `tenure man FOLDER` writes manual pages."
}

fn codes() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for (code, what) in exit::CODES {
        let _ = writeln!(text, "  {code:<3} {what}");
    }
    let _ = writeln!(text, "  {}", exit::OF_RUN);
    text
}

/// Writes all pages, and tells how many.
fn write(root: clap::Command, folder: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(folder)?;
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let all = pages(&root);
    for (name, text) in &all {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(all.len())
}

/// The pages of a command that is built, and of those below it: file name and text.
fn pages(command: &clap::Command) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![page(command)];
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    all.extend(below.flat_map(pages));
    all
}

fn page(command: &clap::Command) -> (String, Vec<u8>) {
    let name = command.get_display_name().unwrap_or("tenure").to_owned();
    let man = Man::new(command.clone())
        .section(SECTION)
        // Not empty, or what follows would stand in its place.
        .date(" ")
        .source(concat!("tenure ", env!("CARGO_PKG_VERSION")))
        .manual("Tenure");
    let mut text = Vec::new();
    // Nothing can go wrong when writing to memory.
    let mut ours = |render: &dyn Fn(&mut dyn std::io::Write) -> std::io::Result<()>| {
        let _ = render(&mut text);
    };
    ours(&|out| man.render_title(out));
    ours(&|out| man.render_name_section(out));
    ours(&|out| man.render_synopsis_section(out));
    ours(&|out| man.render_description_section(out));
    ours(&|out| man.render_options_section(out));
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        ours(&|out| man.render_subcommands_section(out));
    }
    ours(&|out| examples_section(command).to_writer(out));
    ours(&|out| exit_section(&name).to_writer(out));
    ours(&|out| environment_section(command).to_writer(out));
    ours(&|out| see_also(command, &name).to_writer(out));
    (format!("{name}.{SECTION}"), text)
}

fn examples_section(command: &clap::Command) -> Roff {
    let mut roff = Roff::new();
    let line = command.get_bin_name().unwrap_or_default();
    let examples = examples::of(line.strip_prefix("tenure ").unwrap_or_default());
    if examples.is_empty() {
        return roff;
    }
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in examples {
        entry(&mut roff, [roman(format!("{what}:"))], line);
    }
    roff
}

fn exit_section(name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, what) in exit::CODES {
        entry(&mut roff, [bold(code.to_string())], what);
    }
    if matches!(name, "tenure" | "tenure-run") {
        roff.control("PP", []);
        roff.text([roman(capital(exit::OF_RUN))]);
    }
    roff
}

fn environment_section(command: &clap::Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, what) in exit::ENVIRONMENT {
        entry(&mut roff, [bold(*name)], what);
    }
    for argument in command.get_arguments() {
        let (Some(name), Some(long)) = (argument.get_env(), argument.get_long()) else { continue };
        let name = name.to_string_lossy();
        if exit::ENVIRONMENT.iter().all(|(known, _)| *known != name) {
            entry(&mut roff, [bold(name)], &format!("stands for --{long}"));
        }
    }
    roff
}

/// The page above, and those below.
fn see_also(command: &clap::Command, name: &str) -> Roff {
    let mut roff = Roff::new();
    let above = name.rsplit_once('-').map(|(above, _)| above.to_owned());
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    let below = below.map(|command| format!("{name}-{}", command.get_name()));
    let pages: Vec<_> =
        above.into_iter().chain(below).map(|page| format!("{page}({SECTION})")).collect();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages.join(", "))]);
    roff
}

fn entry<const N: usize>(roff: &mut Roff, head: [Inline; N], body: &str) {
    roff.control("TP", []);
    roff.text(head);
    roff.text([roman(body)]);
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
