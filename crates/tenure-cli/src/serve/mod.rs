//! `tenure serve`: the server over any store.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tenure::Error;
use tenure_server::{Server, Shutdown};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::duration::parse_duration;
use crate::stores;

/// Where it listens unless told otherwise.
const LISTEN: &str = "127.0.0.1:8368";

/// Serve a store to programs in any language: gRPC and HTTP/JSON on one port.
///
/// Any number of servers may run on one Postgres, etcd or NATS; clients that lose one go on at another.
/// TERM or INT ends it in an orderly way: nothing that was begun is cut off, and whoever waits or watches
/// is sent to another server. A second one ends it at once.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, env = "TENURE_LISTEN", value_name = "ADDRESS", default_value = LISTEN)]
    listen: SocketAddr,
    /// The store.
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL", help = stores::HELP)]
    store: Option<String>,
    /// How long what was begun gets to finish at the end.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    grace: Duration,
}

impl Arguments {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let url = match &self.store {
            Some(url) if stores::is_server(url) => {
                let reason = "a server serves a store, not another server";
                return Err(Error::invalid(format!("store {url:?}"), reason).into());
            }
            Some(url) => url.clone(),
            None => stores::default_url()?,
        };
        let store = stores::open(&url).await?;
        let shutdown = Shutdown::default();
        let server = Server::builder(store.clone())
            .shutdown(shutdown.clone())
            .grace(self.grace)
            .build()
            .map_err(anyhow::Error::from)?;
        let listener = TcpListener::bind(self.listen)
            .await
            .with_context(|| format!("cannot listen on {}; give another --listen", self.listen))?;
        let address = listener.local_addr()?;
        println!("tenure: listening on http://{address}, store {}", stores::redacted(&url));
        end_on_signals(shutdown)?;
        server.serve(listener).await?;
        store.close().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// The first signal begins the end, the second is the end.
fn end_on_signals(shutdown: Shutdown) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for told in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if told > 0 {
                std::process::exit(i32::from(crate::exit::FAILED));
            }
            eprintln!("tenure: shutting down");
            shutdown.begin();
        }
    });
    Ok(())
}
