//! The examples run, and show what they claim to show.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};

/// Every example, and a line that it prints only once it has shown its point.
const EXAMPLES: [(&str, &str); 5] = [
    ("runner_liveness", "so nobody takes it for its former self"),
    ("runner_reservation", "Both are done, and runner-1 is free."),
    ("async_calls", "All three are done, 3 by worker-1, none of them twice."),
    ("leader_failover", "A late write under token"),
    ("slot_workers", "from then on at most 1 is at work"),
];

/// They take a few seconds; whoever takes this long hangs.
const AT_LONGEST: Duration = Duration::from_secs(90);

pub(crate) fn add(trials: &mut Trials) {
    trials.test("examples::are_all_run", || async { are_all_run() });
    for (name, line) in EXAMPLES {
        trials.test(format!("examples::{name}_runs"), move || async move {
            tokio::task::spawn_blocking(move || run(name, line)).await?
        });
    }
}

fn are_all_run() -> Result<(), Failure> {
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        ensure!(EXAMPLES.iter().any(|(known, _)| *known == name), "nobody runs {name}");
    }
    Ok(())
}

fn run(name: &str, line: &str) -> Result<(), Failure> {
    let mut child = Command::new(built(name)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let began = SystemClock.uptime();
    // What it prints fits into a pipe, so it need not be read before the end.
    while child.try_wait()?.is_none() {
        if SystemClock.uptime() - began > AT_LONGEST {
            child.kill()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, complained) = (text(&output.stdout), text(&output.stderr));
    ensure!(
        output.status.success(),
        "{name} ended with {}:\n{printed}\n{complained}",
        output.status
    );
    ensure!(printed.contains(line), "{name} did not say {line:?}, but:\n{printed}");
    Ok(())
}

/// The program of an example. `cargo test` builds examples along with the tests; only where somebody
/// asked for this one test binary they may be missing.
fn built(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).ok_or("this binary is nowhere")?;
    let program = folder.join("examples").join(name);
    if !program.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let package = ["build", "--quiet", "--package", env!("CARGO_PKG_NAME")];
        let built = Command::new(cargo).args(package).args(["--example", name]).status()?;
        ensure!(built.success(), "{name} does not build");
    }
    Ok(program)
}
