//! Changes of the caller's own that happen together with a change of a lease, or not at all.
//!
//! A hook does not act; it adds to the commit that is about to be sent: checks, writes, and on the
//! SQL stores an attachment that runs the caller's own statements. If that commit meets a conflict,
//! the hook is asked again for the next one, so it may run several times until one applies.

use async_trait::async_trait;

use crate::lease::{LeaseInfo, Owner};
use crate::store::{Commit, Store};
use crate::{Error, Result};

/// What a hook knows about the lease that is about to change.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRef<'a> {
    /// The id of the lease object: the scope as people write it.
    pub id: &'a str,
    /// Unique to this acquisition.
    pub nonce: &'a str,
    /// Who holds it, or is about to.
    pub holder: &'a Owner,
    /// The token; not yet known when the lease is about to be inserted.
    pub token: Option<u64>,
}

/// The commit a hook adds to, and the store to read from.
pub struct HookContext<'a> {
    /// The store, for reading what the hook's conditions depend on.
    pub store: &'a Store,
    /// What will be committed together with the lease's own change.
    pub commit: Commit,
}

/// What happens along with the life of a lease. Every method adds nothing unless it is overridden.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// The lease is about to be acquired.
    async fn will_insert(&self, _lease: LeaseRef<'_>, _draft: &mut HookContext<'_>) -> Result<()> {
        Ok(())
    }

    /// The lease is about to be renewed. Only asked if [`Hooks::hears_heartbeats`].
    async fn will_heartbeat(
        &self,
        _lease: LeaseRef<'_>,
        _draft: &mut HookContext<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// The lease is about to be released with this value.
    async fn will_release_ok(
        &self,
        _lease: LeaseRef<'_>,
        _value: &[u8],
        _draft: &mut HookContext<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// The lease is about to be released with this error.
    async fn will_release_fail(
        &self,
        _lease: LeaseRef<'_>,
        _error: &str,
        _draft: &mut HookContext<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether renewals concern this hook. They then cost a commit each instead of sharing one
    /// round trip with all others.
    fn hears_heartbeats(&self) -> bool {
        false
    }
}

/// What happens along with reaping: the lease ended without a release.
#[async_trait]
pub trait ReapHook: Send + Sync {
    /// This lease is about to be reaped. Runs effectively once per lease, however many reap.
    async fn will_reap(&self, lease: &LeaseInfo, draft: &mut HookContext<'_>) -> Result<()>;
}

/// A hook's refusal or conflict, told apart from the lease's own.
pub(crate) fn is_worth_asking_again(error: &Error) -> bool {
    error.is_conflict() || error.is_not_found()
}
