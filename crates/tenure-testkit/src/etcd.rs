//! Private etcd servers: one node, or a cluster whose nodes can be killed, frozen and cut off.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ports::free_ports;
use crate::proxy::Proxy;
use crate::watchdog::Watchdog;

const START_ATTEMPTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A certificate and its key for a server, and the authority that signed it: files in PEM.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The authority, also of clients.
    pub ca: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What a cluster is like.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// Clients speak TLS and show a certificate.
    pub tls: Option<ServerTls>,
    /// More arguments for every node.
    pub arguments: Vec<String>,
}

/// Nodes that belong to one test process.
#[derive(Debug)]
pub struct Etcd {
    binary: PathBuf,
    /// `None` only while dropping.
    folder: Option<TempDir>,
    options: EtcdOptions,
    nodes: Vec<Node>,
    watchdog: Watchdog,
}

#[derive(Debug)]
struct Node {
    client: u16,
    /// Where others reach it, and where it really listens.
    peer: Proxy,
    process: Option<Child>,
}

impl Etcd {
    /// Starts one node with durable settings.
    ///
    /// # Errors
    /// Says what to install if etcd is missing, and shows the node's log if it did not start.
    pub fn start() -> Result<Self> {
        Self::start_with(1, EtcdOptions::default())
    }

    /// Starts a cluster.
    pub fn start_cluster(nodes: usize) -> Result<Self> {
        Self::start_with(nodes, EtcdOptions::default())
    }

    /// Starts a cluster that is different.
    pub fn start_with(nodes: usize, options: EtcdOptions) -> Result<Self> {
        let binary = binary()?;
        for attempt in 1.. {
            // Between looking for free ports and using them, somebody else may take one.
            match Self::try_start(binary.clone(), nodes, options.clone()) {
                Ok(this) => return Ok(this),
                Err(error) if attempt == START_ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
        bail!("etcd did not start")
    }

    fn try_start(binary: PathBuf, count: usize, options: EtcdOptions) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tenure-etcd-")
            .tempdir()
            .context("making a folder for the servers")?;
        let watchdog = Watchdog::over(folder.path())?;
        let ports = free_ports(count * 2)?;
        let nodes = ports
            .chunks(2)
            .map(|pair| Ok(Node { client: pair[0], peer: Proxy::start(pair[1])?, process: None }))
            .collect::<Result<Vec<_>>>()?;
        let mut this = Self { binary, folder: Some(folder), options, nodes, watchdog };
        for node in 0..count {
            this.launch(node)?;
        }
        for node in 0..count {
            this.wait_until_ready(node)?;
        }
        Ok(this)
    }

    fn launch(&mut self, node: usize) -> Result<()> {
        let folder = self.folder().join(node.to_string());
        std::fs::create_dir_all(&folder)?;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .context("opening the node's log")?;
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        let cluster: Vec<String> = (0..self.nodes.len())
            .map(|n| format!("n{n}=http://127.0.0.1:{}", self.nodes[n].peer.port()))
            .collect();
        let clients = format!("{scheme}://127.0.0.1:{}", self.nodes[node].client);
        let listen = format!("http://127.0.0.1:{}", self.nodes[node].peer.target());
        let peers = format!("http://127.0.0.1:{}", self.nodes[node].peer.port());
        let mut command = Command::new(&self.binary);
        command
            .current_dir(&folder)
            .process_group(0)
            .args(["--name", &format!("n{node}"), "--data-dir", "data"])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &listen, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &cluster.join(","), "--logger", "zap"])
            .args(&self.options.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(tls) = &self.options.tls {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(&tls.ca)
                .arg("--cert-file")
                .arg(&tls.certificate)
                .arg("--key-file")
                .arg(&tls.key);
        }
        let process = command.spawn().context("starting etcd")?;
        // For the watchdog, should this process die.
        std::fs::write(folder.join("pid"), process.id().to_string())?;
        self.nodes[node].process = Some(process);
        Ok(())
    }

    fn wait_until_ready(&mut self, node: usize) -> Result<()> {
        let looks = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if let Some(process) = &mut self.nodes[node].process
                && let Some(status) = process.try_wait().context("looking after etcd")?
            {
                bail!("etcd ended with {status}; the end of its log:\n{}", self.log_tail(node));
            }
            if self.log(node).contains("serving client traffic") {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("etcd was not ready within {PATIENCE:?}; its log:\n{}", self.log_tail(node))
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none, which never is so.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The address of one node, as `host:port`.
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].client)
    }

    /// The address of all nodes as a store takes it, with a prefix.
    pub fn url(&self, prefix: &str) -> String {
        let nodes: Vec<String> = (0..self.nodes.len()).map(|node| self.address(node)).collect();
        format!("etcd://{}/{prefix}", nodes.join(","))
    }

    /// Runs `etcdctl` on a node and gives what it prints.
    pub fn ctl(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.address(node)]);
        if let Some(tls) = &self.options.tls {
            command.arg("--cacert").arg(&tls.ca).arg("--cert").arg(&tls.certificate);
            command.arg("--key").arg(&tls.key);
        }
        let output = command.args(arguments).stdin(Stdio::null()).output().context(
            "etcdctl cannot be run; run ./test, which installs it, or `apt-get install etcd-client`",
        )?;
        if !output.status.success() {
            bail!("etcdctl: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The node that leads, by what this node knows.
    pub fn leader(&self, asked: usize) -> Result<Option<usize>> {
        let status = self.ctl(asked, &["endpoint", "status", "-w", "json"])?;
        let number = |name: &str| {
            let (_, rest) = status.split_once(&format!("\"{name}\":"))?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let leader = number("leader").filter(|leader| *leader != 0);
        let Some(leader) = leader.map(|leader| format!("{leader:x}")) else { return Ok(None) };
        Ok((0..self.nodes.len()).find(|node| self.id(*node).is_some_and(|id| id == leader)))
    }

    /// The node that leads, once there is one.
    pub fn find_leader(&self) -> Result<usize> {
        let looks = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            for node in 0..self.nodes.len() {
                if self.nodes[node].process.is_some()
                    && let Ok(Some(leader)) = self.leader(node)
                    && self.nodes[leader].process.is_some()
                {
                    return Ok(leader);
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("the nodes elected nobody within {PATIENCE:?}")
    }

    /// Makes another node the leader.
    pub fn move_leader(&self, from: usize, to: usize) -> Result<()> {
        let id = self.id(to).context("the node's log does not tell its id")?;
        self.ctl(from, &["move-leader", &id]).map(drop)
    }

    /// The id that a node gave itself, in hexadecimal.
    fn id(&self, node: usize) -> Option<String> {
        let folder = self.folder().join(node.to_string());
        let logs = ["log", "before"].map(|log| folder.join(log));
        let logs = logs.iter().filter_map(|log| std::fs::read_to_string(log).ok());
        logs.filter_map(|log| {
            let (_, rest) = log.rsplit_once("local-member-id\":\"")?;
            Some(rest.chars().take_while(char::is_ascii_hexdigit).collect())
        })
        .next()
    }

    /// Kills a node with no chance to say goodbye.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        let Some(mut process) = self.nodes[node].process.take() else { return Ok(()) };
        process.kill().context("killing etcd")?;
        process.wait().context("waiting for etcd to end")?;
        // A log from before does not tell that the next start is ready.
        let log = self.folder().join(node.to_string()).join("log");
        let _ = std::fs::rename(&log, log.with_file_name("before"));
        Ok(())
    }

    /// Starts a killed node again, on the same ports and data.
    pub fn start_again(&mut self, node: usize) -> Result<()> {
        if self.nodes[node].process.is_some() {
            return Ok(());
        }
        self.launch(node)?;
        self.wait_until_ready(node)
    }

    /// Freezes a node: its connections stay open and nobody answers.
    pub fn pause(&self, node: usize) -> Result<()> {
        self.signal(node, Signal::STOP)
    }

    /// Undoes [`Etcd::pause`].
    pub fn resume(&self, node: usize) -> Result<()> {
        self.signal(node, Signal::CONT)
    }

    /// Cuts a node off from the others, in both directions; clients still reach it.
    pub fn cut_off(&self, node: usize) -> Result<()> {
        let id = self.id(node).context("the node's log does not tell its id")?;
        for (other, it) in self.nodes.iter().enumerate() {
            match other == node {
                true => it.peer.shut(),
                false => it.peer.bar(&id),
            }
        }
        Ok(())
    }

    /// Undoes [`Etcd::cut_off`], for all nodes.
    pub fn heal(&self) {
        for node in &self.nodes {
            node.peer.open();
        }
    }

    fn signal(&self, node: usize, signal: Signal) -> Result<()> {
        let process = self.nodes[node].process.as_ref().context("the node is not running")?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| anyhow!("no such pid"))?, signal).context("a signal to etcd")
    }

    fn folder(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("/nonexistent"), TempDir::path)
    }

    fn log(&self, node: usize) -> String {
        let log = self.folder().join(node.to_string()).join("log");
        std::fs::read_to_string(log).unwrap_or_default()
    }

    /// The last lines of a node's log, for a failed test to show.
    pub fn log_tail(&self, node: usize) -> String {
        let log = self.log(node);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            let _ = self.kill(node);
        }
        self.folder.take();
        self.watchdog.dismiss();
    }
}

fn binary() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd"));
    found.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        anyhow!(
            "etcd is not installed: there is no `etcd` in PATH; run ./test, which installs it, or \
             `apt-get install etcd-server`"
        )
    })
}
