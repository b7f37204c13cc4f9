//! One private Postgres.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::fakeclock::FakeClock;
use crate::install::{self, Ids};
use crate::watchdog::Watchdog;

const USER: &str = "postgres";
/// Asked for over TCP, so that tests can also give a wrong one.
const PASSWORD: &str = "a-private-server";
const START_ATTEMPTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Ends sessions, writes everything out.
    Fast,
    /// Ends at once, as if it had crashed; the next start recovers from the log.
    Immediate,
}

/// A Postgres server that belongs to one test process.
#[derive(Debug)]
pub struct Postgres {
    binaries: PathBuf,
    /// `None` only while dropping.
    folder: Option<TempDir>,
    user: Option<Ids>,
    port: u16,
    server: Option<Child>,
    clock: Option<FakeClock>,
    watchdog: Watchdog,
    databases: AtomicU32,
}

impl Postgres {
    /// Starts a fresh server with durable settings.
    ///
    /// # Errors
    /// Says what to install if Postgres is missing, and shows the server's log if it did not start.
    pub fn start() -> Result<Self> {
        Self::start_with(false)
    }

    /// Starts a fresh server whose wall clock can be stepped with [`Postgres::step_clock`].
    pub fn start_with_fake_clock() -> Result<Self> {
        Self::start_with(true)
    }

    fn start_with(fake_clock: bool) -> Result<Self> {
        let binaries = install::postgres_binaries()?;
        let user = install::server_user()?;
        let folder = tempfile::Builder::new()
            .prefix("tenure-postgres-")
            // The server's own user must be able to enter it.
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .context("making a folder for the server")?;
        if let Some(Ids { uid, gid }) = user {
            chown(folder.path(), Some(uid), Some(gid)).context("handing the folder to postgres")?;
        }
        let clock = fake_clock.then(|| FakeClock::new(folder.path())).transpose()?;
        let watchdog = Watchdog::over(folder.path())?;
        let mut this = Self {
            binaries,
            folder: Some(folder),
            user,
            port: 0,
            server: None,
            clock,
            watchdog,
            databases: AtomicU32::new(0),
        };
        this.initialise()?;
        for attempt in 1.. {
            // Between looking for a free port and using it, somebody else may take it.
            this.port = free_port()?;
            match this.launch() {
                Ok(()) => break,
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => this.stop(StopMode::Immediate)?,
            }
        }
        Ok(this)
    }

    fn initialise(&self) -> Result<()> {
        let password_file = self.folder().join("password");
        std::fs::write(&password_file, PASSWORD).context("writing the password file")?;
        let output = self
            .command("initdb")
            .arg("--pgdata")
            .arg(self.data())
            .args(["--username", USER, "--encoding", "UTF8", "--locale", "C.UTF-8"])
            .args(["--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-instructions"])
            // Only the making of the empty cluster skips flushing; the server itself never does.
            .arg("--no-sync")
            .arg("--pwfile")
            .arg(&password_file)
            .output()
            .context("running initdb")?;
        if !output.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .context("opening the server's log")?;
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-k"])
            .arg(self.folder())
            .args(["-c", "max_connections=500"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        self.server = Some(command.spawn().context("starting postgres")?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let looks = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if let Some(server) = &mut self.server
                && let Some(status) = server.try_wait().context("looking after postgres")?
            {
                bail!("postgres ended with {status}; the end of its log:\n{}", self.log_tail());
            }
            if self.psql(USER, "select 1").is_ok() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("postgres was not ready within {PATIENCE:?}; its log:\n{}", self.log_tail())
    }

    /// The address of the database everybody has; prefer [`Postgres::fresh_database`].
    pub fn url(&self) -> String {
        self.url_of(USER)
    }

    /// The address of a database by name.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with the server's unix socket.
    pub fn socket_folder(&self) -> &Path {
        self.folder()
    }

    /// Makes an empty database and gives its address.
    pub fn fresh_database(&self) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        self.psql(USER, &format!("create database {name}"))?;
        Ok(self.url_of(&name))
    }

    /// Runs SQL in a database and gives what it prints, one row a line, columns parted by `|`.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let output = Command::new(self.binaries.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-h"])
            .arg(self.folder())
            .args(["-p", &self.port.to_string(), "-d", database, "-c", sql])
            .stdin(Stdio::null())
            .output()
            .context("running psql")?;
        if !output.status.success() {
            bail!("psql: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Stops the server and waits until it is gone.
    pub fn stop(&mut self, mode: StopMode) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let signal = match mode {
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        // A paused server would keep the signal for later.
        for pid in family(pid_of(&server)?) {
            let _ = kill_process(pid, Signal::CONT);
        }
        kill_process(pid_of(&server)?, signal).context("stopping postgres")?;
        server.wait().context("waiting for postgres to end")?;
        Ok(())
    }

    /// Starts a stopped server again, on the same port and data.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        self.launch()
    }

    /// Encrypts connections from now on, with this certificate and key (PEM), and takes none by TCP
    /// that are not encrypted.
    pub fn encrypt(&self, certificate: &str, key: &str) -> Result<()> {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.data().join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {name}"))?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, mode).context("protecting the key")?;
            if let Some(Ids { uid, gid }) = self.user {
                chown(&path, Some(uid), Some(gid)).context("handing it to postgres")?;
            }
        }
        let rules = "local all all trust\nhostssl all all all scram-sha-256\n";
        std::fs::write(self.data().join("pg_hba.conf"), rules).context("writing pg_hba.conf")?;
        self.psql(USER, "alter system set ssl = on")?;
        self.psql(USER, "select pg_reload_conf()")?;
        Ok(())
    }

    /// Stops and starts.
    pub fn restart(&mut self, mode: StopMode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    /// Stops, and starts as a standby of nobody: it answers reads with what it has, until
    /// [`Postgres::promote`].
    pub fn restart_as_standby(&mut self) -> Result<()> {
        self.stop(StopMode::Fast)?;
        std::fs::write(self.data().join("standby.signal"), "").context("writing standby.signal")?;
        self.start_again()
    }

    /// Makes a primary of a standby.
    pub fn promote(&self) -> Result<()> {
        self.psql(USER, "select pg_promote()").map(drop)
    }

    /// Freezes the server and every session: connections stay open and nobody answers.
    pub fn pause(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Undoes [`Postgres::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    /// Freezes these sessions alone, by the ids the server gives them: what they are asked stays unread.
    pub fn pause_sessions(&self, pids: &[i32]) -> Result<()> {
        self.signal_sessions(pids, Signal::STOP)
    }

    /// Undoes [`Postgres::pause_sessions`].
    pub fn resume_sessions(&self, pids: &[i32]) -> Result<()> {
        self.signal_sessions(pids, Signal::CONT)
    }

    fn signal_sessions(&self, pids: &[i32], signal: Signal) -> Result<()> {
        let server = self.server.as_ref().context("the server is stopped")?;
        let family = family(pid_of(server)?);
        for &pid in pids {
            let ours = family.iter().find(|process| process.as_raw_nonzero().get() == pid);
            let ours = ours.with_context(|| format!("{pid} is no session of this server"))?;
            kill_process(*ours, signal)?;
        }
        Ok(())
    }

    /// Steps the server's wall clock; its steady clocks go on as if nothing had happened.
    pub fn step_clock(&mut self, by_seconds: i64) -> Result<()> {
        let clock = self.clock.as_mut();
        clock.context("this server was not started with a fake clock")?.step(by_seconds)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let server = self.server.as_ref().context("the server is stopped")?;
        for pid in family(pid_of(server)?) {
            // A session may end between being listed and being told.
            let _ = kill_process(pid, signal);
        }
        Ok(())
    }

    fn command(&self, binary: &str) -> Command {
        let mut command = Command::new(self.binaries.join(binary));
        // Away from a working folder that the other user may not enter, and out of reach of a
        // Ctrl-C, so that only we stop it.
        command.current_dir(self.folder()).process_group(0);
        if let Some(Ids { uid, gid }) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn folder(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// The last lines of the server's log, for a failed test to show.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.stop(StopMode::Immediate);
        self.folder.take();
        self.watchdog.dismiss();
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

fn pid_of(child: &Child) -> Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("no such pid"))
}

/// The server's first process, then the ones it started.
fn family(pid: Pid) -> Vec<Pid> {
    let raw = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{raw}/task/{raw}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    std::iter::once(pid).chain(pids).collect()
}
