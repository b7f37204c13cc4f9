//! On what terms somebody asks for a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::{Hooks, Metadata, Options, Owner, Timing};
use crate::store::Capabilities;
use crate::{Error, Result};

/// The shortest life: less would be over before anybody could act on it.
const LIFE_MIN: Duration = Duration::from_millis(50);

/// How long to wait for what somebody else holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it is free now, or the answer is no. Does not queue, so it may get ahead of those
    /// who do.
    #[default]
    No,
    /// This long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// When a wait that begins now is over; `None` for one without an end.
    pub(crate) fn deadline(self, now: Duration) -> Option<Duration> {
        match self {
            Self::No => Some(now),
            Self::For(wait) => Some(now.saturating_add(wait)),
            Self::Forever => None,
        }
    }
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Self {
        if wait.is_zero() { Self::No } else { Self::For(wait) }
    }
}

/// What is asked for besides the thing itself. What is left out comes from [`Options`].
///
/// ```
/// use std::time::Duration;
/// use tenure::lease::Terms;
///
/// let terms = Terms::new()
///     .ttl(Duration::from_secs(15))
///     .wait(Duration::from_secs(60))
///     .metadata("address", "10.0.0.7:8080");
/// ```
#[derive(Clone, Default)]
pub struct Terms {
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) wait: Wait,
    pub(crate) metadata: Metadata,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) reapable: bool,
    pub(crate) owner: Option<Owner>,
    pub(crate) resume: bool,
}

impl Terms {
    /// The coordinator's own terms, without waiting.
    pub fn new() -> Self {
        Self::default()
    }

    /// The life of the lease.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How often to renew it. More often than half its life in any case.
    #[must_use]
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.renew_every = Some(every);
        self
    }

    /// How long to wait for it.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    /// Waits as long as it takes.
    #[must_use]
    pub fn wait_forever(self) -> Self {
        self.wait(Wait::Forever)
    }

    /// Something to tell everybody about the holder, for instance its address.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Changes that happen together with those of the lease.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// Leaves something to reap if the lease ends without a release.
    #[must_use]
    pub fn reapable(mut self) -> Self {
        self.reapable = true;
        self
    }

    /// Holds it on behalf of this owner instead of the coordinator's own: for a server whose callers
    /// are elsewhere. See [`crate::lease::LeaseGrant`].
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// If this very owner (name and nonce) holds it already, that lease is the answer, its life
    /// started anew: a caller that did not hear the answer asks again and gets the same token. For slots
    /// it is the slot that the owner has, for several scopes all of them if they were acquired
    /// together. Its metadata stays as it was.
    ///
    /// What was acquired on such terms stays until it expires if the caller went away before it was
    /// told: it may ask again. Two handles of one lease each renew it, and whichever lets go first
    /// ends it for both, so the earlier one should have been detached.
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.resume = true;
        self
    }

    /// On whose behalf, if the coordinator is this one.
    pub(crate) fn owner_or<'a>(&'a self, coordinator: &'a Owner) -> &'a Owner {
        self.owner.as_ref().unwrap_or(coordinator)
    }

    /// The life asked for.
    pub(crate) fn life(&self, options: &Options) -> Duration {
        self.ttl.unwrap_or(options.ttl)
    }

    /// A life that leaves time to renew it.
    pub(crate) fn check(&self, options: &Options) -> Result<()> {
        check_life(self.life(options))
    }

    /// The times that will hold on this store.
    pub(crate) fn timing(&self, options: &Options, capabilities: &Capabilities) -> Timing {
        let wish = self.life(options);
        let ttl = capabilities.ttl.map_or(wish, |ttl| ttl.grant(wish));
        Timing::new(ttl, self.renew_every.or(options.renew_every))
    }
}

/// A life that leaves time to renew it.
pub(crate) fn check_life(life: Duration) -> Result<()> {
    if life < LIFE_MIN {
        return Err(Error::invalid(
            format!("lease life of {life:?}"),
            format!("a renewal could not be answered in time; ask for {LIFE_MIN:?} or more"),
        ));
    }
    Ok(())
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("metadata", &self.metadata)
            .field("reapable", &self.reapable)
            .field("owner", &self.owner)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}
