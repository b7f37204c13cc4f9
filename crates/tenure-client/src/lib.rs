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
mod connect;
mod declared;
mod diagnose;
mod error;
mod exchange;
mod options;
mod pending;
mod servers;
mod stream;
mod token;
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
use servers::Servers;

/// Rounds through all servers before there is taken to be none: enough for one that is about to start.
const FIRST_ROUNDS: u32 = 5;
/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "server";

/// A store behind a server.
pub struct ServerStore {
    pub(crate) capabilities: Capabilities,
    /// Runs on a thread of the store's own.
    background: Transport,
    /// Runs on the runtime that the store was opened on.
    inline: Transport,
}

/// The connections to the servers, the stream for small calls, and the runtime that both run on.
pub(crate) struct Transport {
    pub(crate) servers: Arc<Servers>,
    pub(crate) exchange: exchange::Exchange,
    /// A thread of our own ends with the store, and so does everything that runs there.
    runtime: Arc<Home>,
}

impl Transport {
    fn new(options: Options, runtime: Home) -> Result<Self> {
        let runtime = Arc::new(runtime);
        let servers = Servers::new(options, &runtime)?;
        let exchange = exchange::Exchange::start(&servers, &runtime);
        Ok(Self { servers, exchange, runtime })
    }
}

impl ServerStore {
    /// Connects to one server, or to the first of several that answers: `https://a:8368,https://b:8368`.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::open(Options::new(url)?).await
    }

    /// Connects as the options say.
    pub async fn open(options: Options) -> Result<Self> {
        let background = Transport::new(options.clone(), Home::start(BACKEND)?)?;
        let inline = Transport::new(options, Home::here())?;
        let capabilities = capabilities(&inline.servers).await?;
        for transport in [&background, &inline] {
            transport.servers.limit_batches(capabilities.limits.commit_bytes);
        }
        Ok(Self { capabilities, background, inline })
    }

    /// The transport for one call. On the runtime that the store was opened on that is the one that runs
    /// there: a caller on it is proof that it is not blocked. Elsewhere it is the one in the background.
    pub(crate) fn transport(&self) -> &Transport {
        if self.inline.runtime.is_here() { &self.inline } else { &self.background }
    }

    /// The transport that does not depend on any caller's runtime.
    pub(crate) fn background(&self) -> &Transport {
        &self.background
    }

    pub(crate) fn close_transports(&self) {
        self.inline.servers.close();
        self.background.servers.close();
    }

    /// The store to program against.
    pub fn into_store(self) -> Store {
        Store::new(self)
    }
}

/// What the store behind the server promises. The first call, so it tells whether there is a server.
async fn capabilities(servers: &Arc<Servers>) -> Result<Capabilities> {
    let request = v1::CapabilitiesRequest { writer_level: WRITER_LEVEL };
    let response = servers.call_for(FIRST_ROUNDS, |mut client| {
        let request = servers.request(request);
        async move { client.capabilities(request).await }
    });
    match response.await {
        Ok((_, capabilities)) => capabilities.try_into(),
        Err(Fault::NotSent(_)) => {
            servers.diagnose().await;
            Err(Error::unavailable(BACKEND, servers.why_none()))
        }
        Err(fault) => Err(fault.of_read()),
    }
}
