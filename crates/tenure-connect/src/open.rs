//! From a URL to a store.

#[cfg(feature = "sqlite")]
use std::{io::Read as _, path::Path};

#[cfg(any(feature = "file", feature = "sqlite"))]
use tenure::backend::local::place;
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure::{Error, Result};

use crate::redacted;

/// The URLs of all stores, for messages.
pub const URLS: &str = "memory:, file:DIR, sqlite:FILE, postgres://USER@HOST/DB, etcd://HOST:PORT/PREFIX, \
                        nats://HOST/BUCKET, kubernetes://NAMESPACE";

/// Opens the store behind a URL; a `sqlite:` or `file:` one that is not there yet is made.
///
/// A server is shown what the environment says: the token in `TENURE_BEARER`, the certificate in the files
/// that `TENURE_CERT` and `TENURE_KEY` name; `TENURE_CA` is whom to trust. A store that this program was
/// built without is [`Error::Invalid`], and names the feature that it takes.
pub async fn connect(url: &str) -> Result<Store> {
    let needs = |what: &str, example: &str| {
        Error::invalid(format!("store {url:?}"), format!("{what} is missing; write {example}"))
    };
    match url.split_once(':') {
        Some(("memory", _)) => Ok(MemoryStore::new().into_store()),
        Some(("file", "")) => Err(needs("the directory", "file:DIR")),
        #[cfg(feature = "file")]
        Some(("file", path)) => {
            let (path, anywhere) = place(path)?;
            let options = tenure_file::FileStore::options().allow_network_filesystem(anywhere);
            Ok(options.open(path)?.into_store())
        }
        Some(("sqlite", "")) => Err(needs("the file", "sqlite:FILE")),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => {
            let (path, anywhere) = place(path)?;
            refuse_foreign(url, Path::new(path))?;
            let options = tenure_sqlite::Options::new(path).allow_network_filesystem(anywhere);
            Ok(options.open()?.into_store())
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            Ok(tenure_postgres::PostgresStore::connect(url).await?.into_store())
        }
        #[cfg(feature = "etcd")]
        Some(("etcd" | "etcds", _)) => Ok(tenure_etcd::EtcdStore::connect(url).await?.into_store()),
        #[cfg(feature = "nats")]
        Some(("nats", _)) => Ok(tenure_nats::NatsStore::connect(url).await?.into_store()),
        #[cfg(feature = "kubernetes")]
        Some(("kubernetes", _)) => {
            Ok(tenure_kubernetes::KubernetesStore::connect(url).await?.into_store())
        }
        #[cfg(feature = "server")]
        Some(("http" | "https", _)) => {
            let options = tenure_client::Options::from_env(url)?;
            Ok(tenure_client::ServerStore::open(options).await?.into_store())
        }
        other => Err(no_store(url, other.map(|(scheme, _)| scheme))),
    }
}

/// A URL that leads nowhere: its store was left out, or there is none like that.
fn no_store(url: &str, scheme: Option<&str>) -> Error {
    let feature = match scheme {
        Some("postgres" | "postgresql") => Some("postgres"),
        Some("etcd" | "etcds") => Some("etcd"),
        Some("http" | "https") => Some("server"),
        Some(scheme @ ("file" | "sqlite" | "nats" | "kubernetes")) => Some(scheme),
        _ => None,
    };
    let reason = match feature {
        Some(feature) => format!(
            "this program was built without it; build it with the feature `{feature}` of tenure-connect"
        ),
        None => format!("a store is {URLS}, or http://HOST:PORT of a server"),
    };
    Error::invalid(format!("store {:?}", redacted(url)), reason)
}

/// How every file of SQLite's begins.
#[cfg(feature = "sqlite")]
const HEADER: &[u8] = b"SQLite format 3\0";

/// Refuses a file that is something else. SQLite would call it damaged, and ask for a backup of it.
#[cfg(feature = "sqlite")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Key;
    use tenure::store::Put;

    #[tokio::test]
    async fn the_same_program_runs_on_whatever_the_url_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut urls = vec!["memory:".to_owned()];
        if cfg!(feature = "file") {
            urls.push(format!("file:{}/f", folder.path().display()));
        }
        if cfg!(feature = "sqlite") {
            urls.push(format!("sqlite:{}/s.db", folder.path().display()));
        }
        for url in urls {
            let store = connect(&url).await.expect("a store");
            let key = Key::new("order", "1001");
            store.commit(Put::new(key.clone(), "new")).await.expect("a commit");
            let found = store.get(&key).await.expect("a read").expect("the object");
            assert_eq!(found.payload, "new", "{url}");
            store.close().await;
        }
    }

    #[tokio::test]
    async fn an_unknown_store_is_told_what_there_is() {
        for url in ["mysql://x", "nothing", "sqlite:", "file:"] {
            let error = connect(url).await.map(drop).unwrap_err().to_string();
            assert!(error.contains("sqlite:FILE") || error.contains("file:DIR"), "{url}: {error}");
        }
    }

    #[test]
    fn a_store_that_was_left_out_is_told_with_its_feature() {
        let urls = [
            ("file:a", "file"),
            ("sqlite:a", "sqlite"),
            ("postgresql://me:secret@db/app", "postgres"),
            ("etcds://a", "etcd"),
            ("nats://token@a", "nats"),
            ("kubernetes://a", "kubernetes"),
            ("https://a", "server"),
        ];
        for (url, feature) in urls {
            let error = no_store(url, url.split(':').next()).to_string();
            assert!(error.contains(&format!("the feature `{feature}`")), "{error}");
            assert!(!error.contains("secret") && !error.contains("token@"), "{error}");
        }
    }
}
