//! Which store a command works on: what its flags say, or the environment, or a file of this user's.

use std::path::{Path, PathBuf};

use tenure::backend::local::place;
use tenure::lease::Coordinator;
use tenure::store::Store;
use tenure::{Error, Result};
use tenure_connect::{URLS, connect};

use crate::run;
use crate::servers::Login;

/// Of an argument that is a store.
pub(crate) fn help() -> String {
    format!("The store: {URLS}, or http://HOST:PORT of a server")
}

/// Of `--store`.
fn help_or_env() -> String {
    format!("The store: {URLS} [env: TENURE_STORE] [default: a SQLite file of this user]")
}

/// Of a server's, which serves no other one.
pub(crate) fn help_to_serve() -> String {
    format!("The store: {URLS} [default: a SQLite file of this user]")
}

/// `--store` and `--server` of every command that works on a store.
#[derive(clap::Args, Clone)]
pub(crate) struct StoreArgument {
    /// The store.
    #[arg(long, value_name = "URL", help = help_or_env(), conflicts_with = "server")]
    store: Option<String>,
    /// A running `tenure serve` instead of a store, for instance http://127.0.0.1:8368; more separated by
    /// commas, as in https://a:8368,https://b:8368 [env: TENURE_SERVER]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    login: Login,
}

/// Where to work.
enum Chosen {
    /// At these servers.
    Server(String),
    /// On this store, as somebody said.
    Store(String),
    /// On a file of this user's, since nobody said anything.
    Usual(String),
}

impl StoreArgument {
    /// To write: what is not there yet is made.
    pub(crate) async fn open(&self) -> Result<Store> {
        match self.chosen()? {
            Chosen::Server(url) => self.login.open(&url).await,
            Chosen::Store(url) | Chosen::Usual(url) => connect(&url).await,
        }
    }

    /// To read only: a path that was given and has nothing is a mistake, and nothing is made there.
    pub(crate) async fn open_to_read(&self) -> Result<Store> {
        if let Chosen::Store(url) = self.chosen()? {
            refuse_absent(&url)?;
        }
        self.open().await
    }

    /// Somebody to ask about leases, who may change them.
    pub(crate) async fn coordinator(&self) -> Result<Coordinator> {
        coordinator(self.open().await?)
    }

    /// Somebody to ask about leases, and no more.
    pub(crate) async fn reader(&self) -> Result<Coordinator> {
        coordinator(self.open_to_read().await?)
    }

    /// Whether no other process can see what is done there.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self.chosen(), Ok(Chosen::Store(url)) if url.starts_with("memory:"))
    }

    fn chosen(&self) -> Result<Chosen> {
        match (&self.server, &self.store) {
            (Some(url), _) => Ok(Chosen::Server(url.clone())),
            (None, Some(url)) => Ok(Chosen::of(url)),
            (None, None) => from_env(),
        }
    }
}

impl Chosen {
    fn of(url: &str) -> Self {
        if is_server(url) { Self::Server(url.into()) } else { Self::Store(url.into()) }
    }
}

fn coordinator(store: Store) -> Result<Coordinator> {
    let mut builder = Coordinator::builder(store);
    // Whoever is asked or revoked reads who it was.
    if let Some(name) = run::host() {
        builder = builder.name(name);
    }
    builder.start()
}

/// What the environment says, or a file of this user's.
fn from_env() -> Result<Chosen> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (variable("TENURE_SERVER"), variable("TENURE_STORE")) {
        (Some(_), Some(_)) => Err(Error::invalid(
            "environment",
            "both TENURE_SERVER and TENURE_STORE are set; unset one, or give --server or --store",
        )),
        (Some(url), None) => Ok(Chosen::Server(url)),
        (None, Some(url)) => Ok(Chosen::of(&url)),
        (None, None) => Ok(Chosen::Usual(default_url()?)),
    }
}

/// Refuses the URL of an embedded store where there is none: whoever only looks has mistyped it.
pub(crate) fn refuse_absent(url: &str) -> Result<()> {
    let Some((kind @ ("sqlite" | "file"), text)) = url.split_once(':') else { return Ok(()) };
    let path = Path::new(place(text)?.0);
    // A folder that is empty is no store either, and to open it would make one.
    let is_there = match kind {
        "file" => {
            !std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_none()) && path.exists()
        }
        _ => path.exists(),
    };
    // What is missing in the URL itself is told when it is opened.
    if is_there || text.is_empty() {
        return Ok(());
    }
    let reason = format!(
        "there is no store at {}; is the path right? `tenure store migrate {url}` makes one, and so does the \
         first command that writes",
        path.display()
    );
    Err(Error::invalid(format!("store {url:?}"), reason))
}

pub(crate) fn is_server(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// One SQLite file per user, so that trying Tenure needs no decision.
pub(crate) fn default_url() -> Result<String> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    let folder = data.map(|data| data.join("tenure")).ok_or_else(|| {
        Error::invalid("default store", "neither XDG_DATA_HOME nor HOME is set; give --store")
    })?;
    std::fs::create_dir_all(&folder).map_err(|error| {
        Error::unavailable("sqlite", format!("cannot create {}: {error}", folder.display()))
    })?;
    Ok(format!("sqlite:{}", folder.join("tenure.db").display()))
}
