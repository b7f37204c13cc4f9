//! Private NATS servers: one, or a cluster of them.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::install;
use crate::watchdog::Watchdog;

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const START_ATTEMPTS: u32 = 3;

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// Servers of the cluster; 1 is no cluster.
    pub servers: usize,
    /// `sync_interval`: `always`, or an interval. `None` leaves it to the server, as most do.
    pub sync: Option<&'static str>,
    /// More lines of configuration for every server.
    pub extra: String,
}

impl Default for NatsSettings {
    fn default() -> Self {
        Self { servers: 1, sync: Some("always"), extra: String::new() }
    }
}

/// NATS servers with JetStream that belong to one test process.
#[derive(Debug)]
pub struct Nats {
    binary: PathBuf,
    /// `None` only while dropping.
    folder: Option<TempDir>,
    settings: NatsSettings,
    servers: Vec<Server>,
    watchdog: Watchdog,
    buckets: AtomicU32,
}

#[derive(Debug)]
struct Server {
    name: String,
    port: u16,
    route: u16,
    monitor: u16,
    process: Option<Child>,
}

impl Nats {
    /// One server that flushes every write.
    ///
    /// # Errors
    /// Says what to install if NATS is missing or too old, and shows the log if it did not start.
    pub fn start() -> Result<Self> {
        Self::start_with(NatsSettings::default())
    }

    /// Servers as described.
    pub fn start_with(settings: NatsSettings) -> Result<Self> {
        for attempt in 1.. {
            // Between looking for free ports and using them, somebody else may take one.
            match Self::try_start(settings.clone()) {
                Ok(nats) => return Ok(nats),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
        bail!("unreachable: the last attempt returns")
    }

    fn try_start(settings: NatsSettings) -> Result<Self> {
        let binary = install::nats_server()?;
        let folder = tempfile::Builder::new()
            .prefix("tenure-nats-")
            .tempdir()
            .context("making a folder for the server")?;
        let watchdog = Watchdog::over(folder.path())?;
        let servers = (1..=settings.servers)
            .map(|n| {
                let (port, route, monitor) = (free_port()?, free_port()?, free_port()?);
                Ok(Server { name: format!("n{n}"), port, route, monitor, process: None })
            })
            .collect::<Result<_>>()?;
        let mut this = Self {
            binary,
            folder: Some(folder),
            settings,
            servers,
            watchdog,
            buckets: AtomicU32::new(0),
        };
        for n in 0..this.servers.len() {
            this.launch(n)?;
        }
        for n in 0..this.servers.len() {
            this.wait_until_ready(n)?;
        }
        Ok(this)
    }

    fn configuration(&self, n: usize) -> String {
        let Server { name, port, route, monitor, .. } = &self.servers[n];
        let folder = self.folder().join(name);
        let sync =
            self.settings.sync.map_or_else(String::new, |sync| format!("sync_interval: {sync}"));
        let mut text = format!(
            "server_name: {name}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
             pid_file: {pid:?}\njetstream {{ store_dir: {folder:?}\n{sync}\n}}\n{extra}\n",
            pid = self.folder().join(format!("{name}.pid")),
            extra = self.settings.extra,
        );
        if self.servers.len() > 1 {
            let routes: Vec<String> =
                self.servers.iter().map(|s| format!("nats://127.0.0.1:{}", s.route)).collect();
            let routes = routes.join(", ");
            text.push_str(&format!(
                "cluster {{ name: tenure\nlisten: 127.0.0.1:{route}\nroutes: [{routes}]\n}}\n"
            ));
        }
        text
    }

    fn launch(&mut self, n: usize) -> Result<()> {
        let name = self.servers[n].name.clone();
        let file = self.folder().join(format!("{name}.conf"));
        std::fs::write(&file, self.configuration(n)).context("writing the configuration")?;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder().join(format!("{name}.log")))
            .context("opening the server's log")?;
        let process = Command::new(&self.binary)
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // Out of reach of a Ctrl-C, so that only we stop it.
            .process_group(0)
            .spawn()
            .context("starting nats-server")?;
        self.servers[n].process = Some(process);
        Ok(())
    }

    /// Ready is what the server itself calls healthy, JetStream and cluster included.
    fn wait_until_ready(&mut self, n: usize) -> Result<()> {
        for _ in 0..PATIENCE.as_millis() / LOOK_EVERY.as_millis() {
            if let Some(process) = &mut self.servers[n].process
                && let Some(status) = process.try_wait().context("looking after nats-server")?
            {
                bail!("nats-server ended with {status}; the end of its log:\n{}", self.log_tail());
            }
            let health = http(self.servers[n].monitor, "/healthz");
            if health.is_ok_and(|answer| answer.contains(" 200 ")) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("nats-server was not ready within {PATIENCE:?}; its log:\n{}", self.log_tail())
    }

    /// The address of a bucket that nobody else uses, on all servers.
    pub fn fresh_bucket(&self) -> String {
        let number = self.buckets.fetch_add(1, Ordering::Relaxed);
        self.url_of(&format!("test-{}-{number}", std::process::id()))
    }

    /// The address of a bucket by name.
    pub fn url_of(&self, bucket: &str) -> String {
        let hosts: Vec<String> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("nats://{}/{bucket}", hosts.join(","))
    }

    /// The port of a server on 127.0.0.1.
    pub fn port(&self, n: usize) -> u16 {
        self.servers[n].port
    }

    /// The monitoring endpoint of a server.
    pub fn monitor(&self, n: usize) -> String {
        format!("http://127.0.0.1:{}", self.servers[n].monitor)
    }

    /// Which server leads a stream at present, as the servers themselves say.
    pub fn leader_of(&self, stream: &str) -> Result<Option<usize>> {
        for server in self.servers.iter().filter(|server| server.process.is_some()) {
            let Ok(answer) = http(server.monitor, "/jsz?streams=true&accounts=true") else {
                continue;
            };
            let Some((_, rest)) = answer.split_once(&format!("\"name\": \"{stream}\"")) else {
                continue;
            };
            let leader =
                rest.split_once("\"leader\": \"").and_then(|(_, rest)| rest.split_once('"'));
            if let Some((leader, _)) = leader {
                return Ok(self.servers.iter().position(|server| server.name == leader));
            }
        }
        Ok(None)
    }

    /// Kills a server at once, as if it had crashed.
    pub fn kill(&mut self, n: usize) -> Result<()> {
        self.end(n, Signal::KILL)
    }

    /// Stops a server in order.
    pub fn stop(&mut self, n: usize) -> Result<()> {
        self.end(n, Signal::TERM)
    }

    fn end(&mut self, n: usize, signal: Signal) -> Result<()> {
        let Some(mut process) = self.servers[n].process.take() else { return Ok(()) };
        // A paused server would keep the signal for later.
        let _ = kill_process(pid_of(&process)?, Signal::CONT);
        kill_process(pid_of(&process)?, signal).context("ending nats-server")?;
        process.wait().context("waiting for nats-server to end")?;
        Ok(())
    }

    /// Starts a stopped server again, on the same ports and data.
    pub fn start_again(&mut self, n: usize) -> Result<()> {
        if self.servers[n].process.is_none() {
            self.launch(n)?;
        }
        self.wait_until_ready(n)
    }

    /// Notes what a stopped server has on its disk, for [`Nats::put_back`].
    pub fn save(&self, n: usize) -> Result<()> {
        let data = self.folder().join(&self.servers[n].name);
        replace(&data, &data.with_extension("saved"))
    }

    /// Gives a stopped server the disk back that it had when it was saved: all that came later is
    /// lost, as in a power cut before it was flushed.
    pub fn put_back(&self, n: usize) -> Result<()> {
        let data = self.folder().join(&self.servers[n].name);
        replace(&data.with_extension("saved"), &data)
    }

    /// Freezes a server: connections stay open and nobody answers. Returns when it has stopped.
    pub fn pause(&self, n: usize) -> Result<()> {
        self.signal(n, Signal::STOP)?;
        let process = self.servers[n].process.as_ref().context("the server is stopped")?;
        for _ in 0..PATIENCE.as_millis() / LOOK_EVERY.as_millis() {
            if has_stopped(process.id())? {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("nats-server did not freeze within {PATIENCE:?}")
    }

    /// Undoes [`Nats::pause`].
    pub fn resume(&self, n: usize) -> Result<()> {
        self.signal(n, Signal::CONT)
    }

    fn signal(&self, n: usize, signal: Signal) -> Result<()> {
        let process = self.servers[n].process.as_ref().context("the server is stopped")?;
        kill_process(pid_of(process)?, signal).context("signalling nats-server")
    }

    fn folder(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    /// The last lines of the servers' logs, for a failed test to show.
    pub fn log_tail(&self) -> String {
        let tail = |server: &Server| {
            let file = self.folder().join(format!("{}.log", server.name));
            let log = std::fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        self.servers.iter().map(tail).collect::<Vec<_>>().join("\n---\n")
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        for n in 0..self.servers.len() {
            let _ = self.kill(n);
        }
        self.folder.take();
        self.watchdog.dismiss();
    }
}

/// A folder in the place of another.
fn replace(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).context("emptying a folder")?;
    }
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    match copied.context("copying a folder")?.success() {
        true => Ok(()),
        false => bail!("{} was not copied", from.display()),
    }
}

/// Whether every thread of a process stands still.
fn has_stopped(pid: u32) -> Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("looking at the threads")? {
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        if stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One question to a monitoring endpoint.
fn http(port: u16, path: &str) -> Result<String> {
    use std::io::{Read as _, Write as _};
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(connection, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

fn pid_of(child: &Child) -> Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("no such pid"))
}
