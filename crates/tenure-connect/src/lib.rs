//! Tenure's stores by URL: a program that begins on a file moves to Postgres by its settings.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! use tenure::lease::{Coordinator, Terms};
//!
//! // Or sqlite:app.db, postgres://db/app, etcd://a:2379,b:2379, https://tenure.example, …
//! let store = tenure_connect::connect("memory:").await?;
//! let coordinator = Coordinator::new(store)?;
//! let lease = coordinator.acquire(&"billing.nightly/close".parse()?, &Terms::new()).await?;
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | URL | store | feature |
//! |---|---|---|
//! | `memory:` | this process's memory | |
//! | `file:DIR` | one file per object | `file` |
//! | `sqlite:FILE` | one SQLite file | `sqlite` |
//! | `postgres://USER@HOST/DB` | Postgres | `postgres` |
//! | `etcd://HOST:PORT/PREFIX`, `etcds://…` | etcd | `etcd` |
//! | `nats://HOST/BUCKET` | NATS JetStream | `nats` |
//! | `kubernetes://NAMESPACE` | Leases of Kubernetes, and nothing but leases | `kubernetes` |
//! | `http://HOST:PORT`, `https://…` | what a `tenure serve` serves | `server` |
//!
//! `docs/backends.md` has the parameters of each. All features are on unless told otherwise. A program
//! with one store builds less with `default-features = false, features = ["postgres"]`, or uses the crate of that
//! store, which has options that no URL has.

mod open;
mod redacted;

pub use open::{URLS, connect};
pub use redacted::redacted;

use tenure::store::Capabilities;

/// What every store that is built in promises, in the order of the documentation.
pub fn all_capabilities() -> Vec<Capabilities> {
    vec![
        tenure::store::memory::capabilities(),
        #[cfg(feature = "file")]
        tenure_file::capabilities(),
        #[cfg(feature = "sqlite")]
        tenure_sqlite::capabilities(),
        #[cfg(feature = "postgres")]
        tenure_postgres::capabilities(),
        #[cfg(feature = "etcd")]
        tenure_etcd::capabilities(),
        #[cfg(feature = "nats")]
        tenure_nats::capabilities(),
        #[cfg(feature = "kubernetes")]
        tenure_kubernetes::capabilities(),
    ]
}

#[cfg(all(
    test,
    feature = "file",
    feature = "sqlite",
    feature = "postgres",
    feature = "etcd",
    feature = "nats",
    feature = "kubernetes"
))]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_stores_that_have_what_another_lacks() {
        use tenure::store::{Capability, Kinds};
        type Has = fn(&Capabilities) -> bool;
        let rows: [(Capability, Has); 7] = [
            (Capability::Objects, |caps| caps.kinds == Kinds::Any),
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
}
