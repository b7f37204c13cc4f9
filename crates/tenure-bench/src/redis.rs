//! A private Redis as a peer, spoken to with the few bytes that a lock needs.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::measure::rate;

/// A server in a temporary folder, with every write flushed before it is acknowledged.
pub(crate) struct Redis {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// Starts one; `None` if there is none to start, which is said.
    pub(crate) async fn start() -> anyhow::Result<Option<Self>> {
        let folder = tempfile::tempdir_in(".")?;
        let port = free_port()?;
        let spawned = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                eprintln!(
                    "no redis-server to compare with ({error}); apt-get install redis-server"
                );
                return Ok(None);
            }
        };
        let redis = Self { child, port, _folder: folder };
        for _ in 0..100 {
            if redis.connect().await.is_ok() {
                return Ok(Some(redis));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("redis-server did not come up within 5 s")
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    async fn connect(&self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Takes and drops a lock of its own per client, a connection each. It is dropped without a look
    /// at whose it is, so an owner that is late drops another's.
    pub(crate) async fn cycle_rate(&self, clients: usize, time: Duration) -> anyhow::Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(Mutex::new(self.connect().await?));
        }
        let connections = Arc::new(connections);
        rate(clients, time, move |client, _| {
            let connections = Arc::clone(&connections);
            async move {
                let mut stream = connections[client].lock().await;
                let key = format!("lock:{client}");
                let set = ["SET", &key, "me", "NX", "PX", "30000"];
                anyhow::ensure!(ask(&mut stream, &set).await?.starts_with(b"+OK"), "not taken");
                anyhow::ensure!(ask(&mut stream, &["DEL", &key]).await?.starts_with(b":1"), "gone");
                Ok(())
            }
        })
        .await
    }

    /// The same as Redis's manual has it: the lock holds a value that only its owner knows, and a script
    /// drops it only if that is still there. No token fences off a late owner.
    pub(crate) async fn owned_cycle_rate(
        &self,
        clients: usize,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(Mutex::new(self.connect().await?));
        }
        let loaded = ask(&mut self.connect().await?, &["SCRIPT", "LOAD", DROP_OWN]).await?;
        let loaded = String::from_utf8(loaded)?;
        let script = loaded.lines().nth(1).context("the script's name")?.to_owned();
        let shared = Arc::new((connections, script));
        rate(clients, time, move |client, turn| {
            let shared = Arc::clone(&shared);
            async move {
                let (connections, script) = &*shared;
                let mut stream = connections[client].lock().await;
                let (key, value) = (format!("owned:{client}"), format!("client-{client}#{turn}"));
                let set = ["SET", &key, &value, "NX", "PX", "30000"];
                anyhow::ensure!(ask(&mut stream, &set).await?.starts_with(b"+OK"), "not taken");
                let drop = ["EVALSHA", script, "1", &key, &value];
                anyhow::ensure!(ask(&mut stream, &drop).await?.starts_with(b":1"), "gone");
                Ok(())
            }
        })
        .await
    }
}

/// Drops a lock if it holds the owner's value.
const DROP_OWN: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One command and its short answer, of one line or of a length and a line.
async fn ask(stream: &mut TcpStream, words: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes()).await?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 64]);
    while !is_whole(&answer) {
        let read = stream.read(&mut chunk).await?;
        anyhow::ensure!(read > 0, "redis closed the connection");
        answer.extend_from_slice(&chunk[..read]);
    }
    Ok(answer)
}

fn is_whole(answer: &[u8]) -> bool {
    let lines = if answer.starts_with(b"$") { 2 } else { 1 };
    answer.ends_with(b"\n") && answer.iter().filter(|byte| **byte == b'\n').count() == lines
}

fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("a free port")?;
    Ok(listener.local_addr()?.port())
}
