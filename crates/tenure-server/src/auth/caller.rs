//! A caller: its name, its tenant, and what it may do.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure::clock::SharedClock;

use super::access::{Access, Entry, Who};
use super::permission::Permissions;
use super::reloaded::{EVERY, Reloaded};
use crate::Fault;
use crate::fault::ASK_FOR_IT;

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
    /// `server:observe`: metrics and the like, which are about all tenants.
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
    Listed(Arc<Reloaded<Access>>, Who),
    /// As it was signed, until the clock's uptime gets there.
    Signed(Arc<Permissions>, SharedClock, Duration),
}

impl Caller {
    /// The caller where authentication is off.
    pub fn anybody() -> Self {
        static ANYBODY: OnceLock<Arc<str>> = OnceLock::new();
        let subject = Arc::clone(ANYBODY.get_or_init(|| "anybody".into()));
        Self { subject, tenant: None, peer: None, standing: Standing::Everything }
    }

    /// The caller of a route that needs no credentials.
    pub(super) fn nobody() -> Self {
        Self::new("nobody", None, Standing::Nothing)
    }

    /// Somebody from the list.
    pub(super) fn listed(
        subject: &str,
        entry: &Entry,
        list: &Arc<Reloaded<Access>>,
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
    /// resource that ends in `*` stands for everything that starts with what is before it. What is about
    /// all tenants is for callers without one, whatever their permissions say.
    pub fn may(&self, action: Action, resource: &str) -> bool {
        self.is_within(action) && self.asked(|permissions| permissions.allow(action, resource))
    }

    /// Whether there is anything that it may do this to.
    pub fn may_some(&self, action: Action) -> bool {
        self.is_within(action) && self.asked(|permissions| permissions.allow_some(action))
    }

    /// Whether this can be done in its part of the store.
    fn is_within(&self, action: Action) -> bool {
        self.tenant.is_none() || action != Action::ServerObserve
    }

    /// The refusal of what it may not do.
    pub(crate) fn denial(&self, action: Action, resource: &str) -> Fault {
        let advice = match &self.tenant {
            Some(tenant) if !self.is_within(action) => {
                let tells = "that tells of all tenants, and it belongs to the tenant";
                format!("{tells} {tenant}; ask as somebody who has none").into()
            }
            _ => ASK_FOR_IT.into(),
        };
        let (subject, resource) = (self.subject().to_owned(), resource.to_owned());
        Fault::Denied { subject, action: action.name(), resource, advice }
    }

    fn asked(&self, allows: impl FnOnce(&Permissions) -> bool) -> bool {
        match &self.standing {
            Standing::Everything => true,
            Standing::Nothing => false,
            Standing::Listed(list, who) => {
                let list = list.current();
                self.entry(&list, who).is_some_and(|entry| allows(&entry.permissions))
            }
            Standing::Signed(permissions, clock, until) => {
                clock.uptime() < *until && allows(permissions)
            }
        }
    }

    /// Fails if the caller was known when it connected and is not any more: its token was taken out of the
    /// file, or has expired.
    pub fn check(&self) -> Result<(), Fault> {
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

    /// Resolves when it is not known any more, or something else that it rests on is gone: for waits and
    /// streams, on which it asks for nothing further.
    pub async fn revoked(&self, check: impl Fn() -> Result<(), Fault>) -> Fault {
        loop {
            match &self.standing {
                Standing::Everything | Standing::Nothing => std::future::pending().await,
                Standing::Listed(list, _) => list.clock().sleep(EVERY).await,
                Standing::Signed(_, clock, until) => clock.sleep_until(*until).await,
            }
            if let Err(fault) = self.check().and_then(|()| check()) {
                return fault;
            }
        }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tenure::clock::ManualClock;

    use super::*;

    #[tokio::test]
    async fn a_signed_caller_may_do_nothing_once_its_time_is_over() {
        let clock = ManualClock::new();
        let shared: SharedClock = Arc::new(clock.clone());
        let until = shared.uptime() + Duration::from_secs(60);
        let all = Permissions::parse(&["*"]).unwrap();
        let caller = Caller::signed("a", None, all, &shared, until);
        let mut gone = Box::pin(caller.revoked(|| Ok(())));
        assert!(caller.may(Action::LeasesHold, "a/b") && caller.check().is_ok());
        assert!((&mut gone).now_or_never().is_none());
        // A wall clock that is set back and forth changes nothing.
        clock.step_wall(-3_600_000);
        clock.advance(Duration::from_secs(59));
        assert!(caller.may(Action::LeasesHold, "a/b"));
        clock.advance(Duration::from_secs(1));
        assert!(!caller.may(Action::LeasesHold, "a/b") && !caller.may_some(Action::LeasesHold));
        assert!(matches!(caller.check(), Err(Fault::Unauthenticated(_))));
        assert!(matches!(gone.await, Fault::Unauthenticated(_)));
    }

    #[test]
    fn who_needs_no_name_may_do_nothing_and_who_is_not_asked_everything() {
        for action in Action::ALL {
            assert!(Caller::anybody().may(action, "*") && Caller::anybody().may_some(action));
            assert!(!Caller::nobody().may(action, "a/b") && !Caller::nobody().may_some(action));
        }
    }
}
