//! Stores by URL.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use tenure::lease::Coordinator;
use tenure::store::file::FileStore;
use tenure::store::local::place;
use tenure::store::memory::MemoryStore;
use tenure::store::{Capabilities, Store};
use tenure::{Error, Result};
use tenure_etcd::EtcdStore;
use tenure_kubernetes::KubernetesStore;
use tenure_nats::NatsStore;
use tenure_postgres::PostgresStore;

use crate::run;
use crate::servers::Login;

/// Said wherever a person may choose.
macro_rules! kinds {
    () => {
        "memory:, file:DIR, sqlite:FILE, postgres://USER@HOST/DB, etcd://HOST:PORT/PREFIX, nats://HOST/BUCKET, kubernetes://NAMESPACE"
    };
}
pub(crate) const HELP: &str = concat!("The store: ", kinds!(), ", or http://HOST:PORT of a server");
const HELP_ENV: &str =
    concat!("The store: ", kinds!(), " [env: TENURE_STORE] [default: a SQLite file of this user]");
/// Of a server, which serves no other one.
pub(crate) const HELP_SERVE: &str =
    concat!("The store: ", kinds!(), " [default: a SQLite file of this user]");

/// How every file of SQLite's begins.
const HEADER: &[u8] = b"SQLite format 3\0";

/// `--store` and `--server` of every command that works on a store.
#[derive(clap::Args, Clone)]
pub(crate) struct StoreArgument {
    /// The store.
    #[arg(long, value_name = "URL", help = HELP_ENV, conflicts_with = "server")]
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
            Chosen::Store(url) | Chosen::Usual(url) => open(&url).await,
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

/// Opens the store behind a URL.
pub(crate) async fn open(url: &str) -> Result<Store> {
    let needs = |what: &str, example: &str| {
        Error::invalid(format!("store {url:?}"), format!("{what} is missing; write {example}"))
    };
    match url.split_once(':') {
        Some(("memory", _)) => Ok(MemoryStore::new().into_store()),
        Some(("file", "")) => Err(needs("the directory", "file:DIR")),
        Some(("file", path)) => {
            let (path, anywhere) = place(path)?;
            let options = FileStore::options().allow_network_filesystem(anywhere);
            Ok(options.open(path)?.into_store())
        }
        Some(("sqlite", "")) => Err(needs("the file", "sqlite:FILE")),
        Some(("sqlite", path)) => {
            let (path, anywhere) = place(path)?;
            refuse_foreign(url, Path::new(path))?;
            let options = tenure_sqlite::Options::new(path).allow_network_filesystem(anywhere);
            Ok(options.open()?.into_store())
        }
        Some(("postgres" | "postgresql", _)) => Ok(PostgresStore::connect(url).await?.into_store()),
        Some(("etcd" | "etcds", _)) => Ok(EtcdStore::connect(url).await?.into_store()),
        Some(("kubernetes", _)) => Ok(KubernetesStore::connect(url).await?.into_store()),
        Some(("nats", _)) => Ok(NatsStore::connect(url).await?.into_store()),
        Some(("http" | "https", _)) => Login::from_env().open(url).await,
        _ => Err(Error::invalid(
            format!("store {:?}", redacted(url)),
            concat!("a store is ", kinds!(), ", or http://HOST:PORT of a server"),
        )),
    }
}

/// Refuses a file that is something else. SQLite would call it damaged, and ask for a backup of it.
fn refuse_foreign(url: &str, path: &Path) -> Result<()> {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let mut begins = Vec::new();
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else {
        return Ok(());
    };
    // What cannot be read is told when it is opened.
    let read = file.take(u64::try_from(HEADER.len()).unwrap_or(0)).read_to_end(&mut begins);
    if read.is_err() || begins.is_empty() || begins == HEADER {
        return Ok(());
    }
    let reason =
        format!("{} is no SQLite database, and is left alone; is the path right?", path.display());
    Err(Error::invalid(format!("store {url:?}"), reason))
}

/// What every backend promises, in the order of the documentation.
pub(crate) fn all_capabilities() -> Vec<Capabilities> {
    vec![
        tenure::store::memory::capabilities(),
        tenure::store::file::capabilities(),
        tenure_sqlite::capabilities(),
        tenure_postgres::capabilities(),
        tenure_etcd::capabilities(),
        tenure_nats::capabilities(),
        tenure_kubernetes::capabilities(),
    ]
}

/// A URL that may be shown: without its password, or the token that NATS has in place of a user, and
/// without its parameters, of which one may be a password.
pub(crate) fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let shown = match authority.rsplit_once('@') {
        Some((login, host)) => match login.split_once(':') {
            None if scheme == "nats" => format!("{scheme}://{host}{path}"),
            None => url.to_owned(),
            Some((user, _)) => format!("{scheme}://{user}@{host}{path}"),
        },
        None => url.to_owned(),
    };
    shown.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        assert_eq!(redacted("postgres://me:se@cret@db:5432/app"), "postgres://me@db:5432/app");
        assert_eq!(redacted("etcd://me:secret@a:1,b:2/app"), "etcd://me@a:1,b:2/app");
        assert_eq!(redacted("nats://me:secret@db/b"), "nats://me@db/b");
        assert_eq!(redacted("nats://token@db:4222/b"), "nats://db:4222/b");
        assert_eq!(redacted("postgres://db/app"), "postgres://db/app");
        let parameters = "postgres://db/app?user=me&password=secret&sslmode=require";
        assert_eq!(redacted(parameters), "postgres://db/app");
        assert_eq!(redacted("postgres://db?password=se@cret/x"), "postgres://db");
        assert_eq!(redacted("postgres://me:se?cret@db/app?a=b"), "postgres://me@db/app");
        assert_eq!(redacted("sqlite:/a@b:c"), "sqlite:/a@b:c");
    }

    #[test]
    fn errors_name_the_stores_that_have_what_another_lacks() {
        use tenure::store::Capability;
        type Has = fn(&Capabilities) -> bool;
        let rows: [(Capability, Has); 7] = [
            (Capability::Objects, |caps| caps.objects),
            (Capability::MultiObjectCommits, |caps| caps.multi_object_commits),
            (Capability::Names, |caps| caps.names),
            (Capability::Labels, |caps| caps.labels),
            (Capability::Ttl, |caps| caps.ttl.is_some()),
            (Capability::History, |caps| caps.history.is_some()),
            (Capability::UserSql, |caps| caps.user_sql),
        ];
        let all = all_capabilities();
        for (capability, has) in rows {
            let names: Vec<_> = all.iter().filter(|caps| has(caps)).map(|c| c.backend).collect();
            assert_eq!(capability.supported_by(), names.join(", "), "{capability}");
        }
    }

    #[tokio::test]
    async fn an_unknown_store_is_told_what_there_is() {
        for url in ["mysql://x", "nothing", "sqlite:", "file:"] {
            let error = open(url).await.map(drop).unwrap_err().to_string();
            assert!(error.contains("sqlite:FILE") || error.contains("file:DIR"), "{url}: {error}");
        }
    }
}
