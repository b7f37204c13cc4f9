//! A caller: its name, its tenant, and what it may do.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock::SharedClock;

use super::access::{Access, Entry, Who};
use super::permission::Permissions;
use super::watched::Watched;
use crate::Fault;

/// What a caller may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `objects:read`: get, list and watch objects of a kind.
    ObjectsRead,
    /// `objects:write`: put, touch and delete objects of a kind.
    ObjectsWrite,
    /// `leases:read`: see who holds and who waits.
    LeasesRead,
    /// `leases:hold`: acquire, renew, release and hand over.
    LeasesHold,
    /// `leases:revoke`: end somebody else's tenure.
    LeasesRevoke,
    /// `slots:resize`: change how many slots a group has.
    SlotsResize,
    /// `server:observe`: metrics and the like.
    ServerObserve,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ObjectsRead,
        Self::ObjectsWrite,
        Self::LeasesRead,
        Self::LeasesHold,
        Self::LeasesRevoke,
        Self::SlotsResize,
        Self::ServerObserve,
    ];

    /// As it is written in permissions, logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::ObjectsRead => "objects:read",
            Self::ObjectsWrite => "objects:write",
            Self::LeasesRead => "leases:read",
            Self::LeasesHold => "leases:hold",
            Self::LeasesRevoke => "leases:revoke",
            Self::SlotsResize => "slots:resize",
            Self::ServerObserve => "server:observe",
        }
    }

    /// What it is done to: the part before the colon.
    pub fn noun(self) -> &'static str {
        self.name().split_once(':').map_or(self.name(), |(noun, _)| noun)
    }
}

/// Somebody whose identity is settled. What it may do is looked up whenever it asks, so that what is
/// taken away from it is gone on open streams too.
#[derive(Clone)]
pub struct Caller {
    subject: Arc<str>,
    tenant: Option<Arc<str>>,
    peer: Option<SocketAddr>,
    standing: Standing,
}

#[derive(Clone)]
enum Standing {
    /// Nobody asks who it is.
    Everything,
    /// It is asked for nothing, and may do nothing else.
    Nothing,
    /// As long as it is in the list, and as it is there.
    Listed(Arc<Watched<Access>>, Who),
    /// As it was signed, until the clock's uptime gets there.
    Signed(Arc<Permissions>, SharedClock, Duration),
}

impl Caller {
    /// Whoever connects where no authentication is asked for.
    pub fn anybody() -> Self {
        Self::new("anybody", None, Standing::Everything)
    }

    /// Whoever asks for what needs no credentials.
    pub(super) fn nobody() -> Self {
        Self::new("nobody", None, Standing::Nothing)
    }

    /// Somebody from the list.
    pub(super) fn listed(
        subject: &str,
        entry: &Entry,
        list: &Arc<Watched<Access>>,
        who: Who,
    ) -> Self {
        let standing = Standing::Listed(Arc::clone(list), who);
        Self::new(subject, entry.tenant.clone(), standing)
    }

    /// Somebody whose permissions are signed by somebody we trust.
    pub(super) fn signed(
        subject: &str,
        tenant: Option<Arc<str>>,
        permissions: Permissions,
        clock: &SharedClock,
        until: Duration,
    ) -> Self {
        let standing = Standing::Signed(Arc::new(permissions), Arc::clone(clock), until);
        Self::new(subject, tenant, standing)
    }

    fn new(subject: &str, tenant: Option<Arc<str>>, standing: Standing) -> Self {
        Self { subject: subject.into(), tenant, peer: None, standing }
    }

    /// Where it connects from.
    pub(super) fn at(mut self, address: SocketAddr) -> Self {
        self.peer = Some(address);
        self
    }

    /// Its name, for logs and limits.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The tenant it belongs to; without one it sees the store as it is.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Where it connects from, if it came over the network.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Whether it may do this to that: a scope or group for leases and slots, `kind/id` for objects. A
    /// resource that ends in `*` stands for everything that starts with what is before it.
    pub fn may(&self, action: Action, resource: &str) -> bool {
        match &self.standing {
            Standing::Everything => true,
            Standing::Nothing => false,
            Standing::Listed(list, who) => {
                let list = list.current();
                self.entry(&list, who).is_some_and(|it| it.permissions.allow(action, resource))
            }
            Standing::Signed(permissions, clock, until) => {
                clock.uptime() < *until && permissions.allow(action, resource)
            }
        }
    }

    /// Refuses whoever was known when it connected and is not any more: its token was taken out of the
    /// file, or has expired.
    pub fn still(&self) -> Result<(), Fault> {
        let gone = match &self.standing {
            Standing::Everything | Standing::Nothing => return Ok(()),
            Standing::Listed(list, who) if self.entry(&list.current(), who).is_none() => {
                "is not in the server's list any more"
            }
            Standing::Signed(_, clock, until) if clock.uptime() >= *until => "has expired",
            _ => return Ok(()),
        };
        Err(Fault::Unauthenticated(format!("the token of {} {gone}; get a new one", self.subject)))
    }

    /// What the list has to say now; nothing if it is somebody else's by now.
    fn entry<'a>(&self, list: &'a Access, who: &Who) -> Option<&'a Entry> {
        list.find(who).filter(|entry| entry.tenant == self.tenant)
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("subject", &self.subject)
            .field("tenant", &self.tenant)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
