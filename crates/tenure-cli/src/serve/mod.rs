//! `tenure serve`: the server over any store.

#[cfg(test)]
mod documented;
mod flags;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tenure::Error;
use tenure::store::Reach;
use tenure_server::auth::check_exposure;
use tenure_server::{Fault, Server, Shutdown, listen_addresses};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::flags::Flags;
use self::settings::{Settings, Tls};
use crate::duration::parse_duration;
use crate::json::millis;
use crate::output::{print, say};
use crate::{run, stores};

/// Serve a store to programs in any language: gRPC and HTTP/JSON on one port.
///
/// Any number of servers may run on one Postgres, etcd or NATS; clients that lose one go on at another.
/// TERM or INT ends it in an orderly way: nothing that was begun is cut off, and whoever waits or watches
/// is sent to another server. A second one ends it at once.
///
/// On loopback everybody may do everything. Any other address needs TLS and tokens, signed tokens or
/// client certificates, unless --insecure says that the network itself keeps strangers out.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen, an address or a name with a port; port 0 takes a free one [default:
    /// 127.0.0.1:8368].
    #[arg(long, env = "TENURE_LISTEN", value_name = "ADDRESS")]
    listen: Option<String>,
    /// The store.
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL", help = stores::help_to_serve())]
    store: Option<String>,
    /// Settings in a TOML file; what is given here or in the environment wins.
    ///
    /// There is a key for every flag, with durations in milliseconds.
    /// Its keys: listen, store, insecure, grace_ms; cert and key in `[tls]`; token_file in `[auth]`; issuer,
    /// audience, jwks_url, jwks_file, hs256_secret_file and tenant_claim in `[auth.jwt]`; client_ca and
    /// required in `[auth.mtls]`; and in `[limits]` connections, requests, streams, streams_per_client, waiters,
    /// waiters_per_client, message_bytes, wait_max_ms, request_timeout_ms and header_timeout_ms.
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's certificate, with the chain (PEM). Renewed ones are taken without a restart.
    #[arg(long, env = "TENURE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, env = "TENURE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The tokens that are let in, and what each may do; make one with `tenure token`.
    #[arg(long, env = "TENURE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Listen where others can reach it without TLS or without asking who they are.
    #[arg(long, env = "TENURE_INSECURE")]
    insecure: bool,
    /// How long what was begun gets to finish at the end [default: 10s].
    #[arg(long, env = "TENURE_GRACE", value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    #[command(flatten)]
    more: Flags,
}

impl Arguments {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings()?;
        let url = match &settings.store {
            Some(url) if stores::is_server(url) => {
                let reason = "a server serves a store, not another server";
                return Err(Error::invalid(format!("store {url:?}"), reason).into());
            }
            Some(url) => url.clone(),
            None => stores::default_url()?,
        };
        let (tls, auth) = (settings.tls.is_some(), settings.auth.is_on());
        let listen = settings.listen();
        let addresses = listen_addresses(listen).await?;
        for address in &addresses {
            check_exposure(*address, tls, auth, settings.insecure)?;
        }
        let shutdown = Shutdown::default();
        let store = tenure_connect::connect(&url).await?;
        // Where replicas may be anywhere, people want to know which one leads.
        let shared = store.capabilities().reach == Reach::Network;
        let mut builder = Server::builder(store);
        // Whoever asks who leads is to recognise it.
        if let Some(name) = run::host() {
            builder = builder.name(name);
        }
        let builder = builder
            .campaigns(shared)
            .shutdown(shutdown.clone())
            .grace(settings.grace())
            .limits(settings.limits.clone().into());
        let server = settings.secure(builder)?.build().map_err(told)?;
        let listener = TcpListener::bind(&addresses[..])
            .await
            .with_context(|| format!("cannot listen on {listen}; give another --listen"))?;
        let address = listener.local_addr()?;
        let scheme = if tls { "https" } else { "http" };
        // Whether or not somebody reads it.
        let shown = tenure_connect::redacted(&url);
        let _ = print(format_args!("tenure: listening on {scheme}://{address}, store {shown}"));
        end_on_signals(shutdown)?;
        let store = server.api().store().clone();
        server.serve(listener).await?;
        store.close().await;
        Ok(ExitCode::SUCCESS)
    }

    /// The file's settings, with what was given here in their place.
    fn settings(self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        settings.listen = self.listen.or(settings.listen);
        settings.store = self.store.or(settings.store);
        settings.insecure |= self.insecure;
        settings.grace_ms = self.grace.map(millis).or(settings.grace_ms);
        if let (Some(cert), Some(key)) = (self.tls_cert, self.tls_key) {
            settings.tls = Some(Tls { cert, key });
        }
        settings.auth.token_file = self.token_file.or(settings.auth.token_file);
        self.more.apply(&mut settings)?;
        Ok(settings)
    }
}

/// What the library said, for the exit code to tell.
fn told(fault: Fault) -> anyhow::Error {
    match fault {
        Fault::Store(error) => error.into(),
        other => other.into(),
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
            say("shutting down");
            shutdown.begin();
        }
    });
    Ok(())
}
