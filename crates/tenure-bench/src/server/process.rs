//! The server in a process of its own: this program again, told to serve.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use tenure::store::memory::MemoryStore;
use tenure_server::Server;
use tenure_sqlite::SqliteStore;
use tokio::net::TcpListener;

/// What makes this program the server.
pub(crate) const SERVE: &str = "serve-for-bench";

/// A running server, killed when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Served {
    pub(crate) fn start(memory: bool) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir_in(".")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SERVE).stdout(Stdio::piped());
        if !memory {
            command.arg(folder.path().join("tenure.db"));
        }
        let mut child = command.spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("the server's output")?;
        BufReader::new(out).read_line(&mut line)?;
        let address = line.trim().parse().context("the server's address")?;
        Ok(Self { child, address, _folder: folder })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of the server that are in memory.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        crate::footprint::resident(&format!("/proc/{}/status", self.child.id()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves a SQLite file until killed; without one, what is in memory.
pub(crate) async fn serve(file: Option<&std::path::Path>) -> anyhow::Result<()> {
    let store = match file {
        Some(file) => SqliteStore::open(file)?.into_store(),
        None => MemoryStore::new().into_store(),
    };
    let server = Server::builder(store).build()?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?);
    Ok(server.serve(listener).await?)
}
