//! Tenure over the wire: the store contract against a running server.
//!
//! [`ServerStore`] is a store like any other, so leases, slots, elections and gates run over it
//! unchanged. What it promises beyond that:
//!
//! - **Reconnects by itself**, to the next server of the list, and resumes watches where they were.
//! - **Knows what it does not know**: a commit whose answer was lost is [`tenure::Error::Unknown`]; one
//!   that certainly never left is [`tenure::Error::Unavailable`].
//! - **One stream for everything small**: gets, commits and touches of all callers share one stream, many
//!   to a message, so that a thousand callers cost little more than one.
//! - **A thread of its own**: a blocked runtime starves no renewal. Only what is asked on the runtime that
//!   the store was opened on is answered right there, on a stream of its own, which spares changes of
//!   threads.
//!
//! [`Module`] is the short way for applications: leases declared once and acquired by key, work that is
//! dropped when its lease is lost, and nested calls to other services that go with it ([`CarryLease`],
//! [`ReceiveLease`]).
//!
//! ```no_run
//! # async fn example() -> tenure::Result<()> {
//! use tenure::lease::{Coordinator, Terms};
//! use tenure_client::ServerStore;
//!
//! let store = ServerStore::connect("http://127.0.0.1:8368").await?.into_store();
//! let coordinator = Coordinator::new(store)?;
//! let lease = coordinator.acquire(&"billing.nightly/close".parse()?, &Terms::new()).await?;
//! # lease.release().await
//! # }
//! ```

mod addresses;
mod backend;
mod declared;
mod error;
mod exchange;
mod link;
mod options;
mod pending;
mod stream;
mod token;
mod trouble;
mod watch;

use std::sync::Arc;

use tenure::backend::WRITER_LEVEL;
use tenure::backend::home::Home;
use tenure::store::{Capabilities, Store};
use tenure::{Error, Result};
use tenure_proto::v1;

pub use declared::{
    Acquired, CarriedLease, CarryLease, Carrying, Declared, Ended, LeaseContext, Module,
    ReceiveLease, Receiving, RunError,
};
pub use options::Options;

use error::Fault;
use link::Links;

/// Rounds through all servers before there is taken to be none: enough for one that is about to start.
const FIRST_ROUNDS: u32 = 5;
/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "server";

/// A store behind a server.
pub struct ServerStore {
    pub(crate) capabilities: Capabilities,
    far: Way,
    near: Way,
}

/// A way to the servers: connections, the stream for small calls, and where both are tended.
pub(crate) struct Way {
    pub(crate) links: Arc<Links>,
    pub(crate) exchange: exchange::Exchange,
    /// Ends with the store, and everything that runs there with it, if it is a thread of our own.
    home: Arc<Home>,
}

impl Way {
    fn new(options: Options, home: Home) -> Result<Self> {
        let home = Arc::new(home);
        let links = Links::new(options, &home)?;
        let exchange = exchange::Exchange::start(&links, &home);
        Ok(Self { links, exchange, home })
    }
}

impl ServerStore {
    /// Connects to one server, or to the first of several that answers: `https://a:8368,https://b:8368`.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::open(Options::new(url)?).await
    }

    /// Connects as the options say.
    pub async fn open(options: Options) -> Result<Self> {
        let far = Way::new(options.clone(), Home::start(BACKEND)?)?;
        let near = Way::new(options, Home::here())?;
        let capabilities = capabilities(&near.links).await?;
        for way in [&far, &near] {
            way.links.take_at_most(capabilities.limits.commit_bytes);
        }
        Ok(Self { capabilities, far, near })
    }

    /// The way from here: tended on the runtime that this is called on, if that is the one that the store
    /// was opened on. Whoever asks there is proof that it runs.
    pub(crate) fn way(&self) -> &Way {
        if self.near.home.is_here() { &self.near } else { &self.far }
    }

    /// The way that does not depend on anybody's runtime.
    pub(crate) fn far(&self) -> &Way {
        &self.far
    }

    pub(crate) fn close_ways(&self) {
        self.near.links.close();
        self.far.links.close();
    }

    /// The store to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

/// What the store behind the server promises. The first call, so it tells whether there is a server.
async fn capabilities(links: &Arc<Links>) -> Result<Capabilities> {
    let request = v1::CapabilitiesRequest { writer_level: WRITER_LEVEL };
    let response = links.ask_often(FIRST_ROUNDS, |mut client| {
        let request = links.request(request);
        async move { client.capabilities(request).await }
    });
    match response.await {
        Ok((_, capabilities)) => capabilities.try_into(),
        Err(Fault::Elsewhere(_)) => {
            links.look_closer().await;
            Err(Error::unavailable(BACKEND, links.nobody()))
        }
        Err(fault) => Err(fault.of_read()),
    }
}
