//! What requests and answers about leases look like. Fields that nobody knows are an error.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::lease::{LeaseGrant, LeaseInfo, Metadata, ReleaseOutcome, Renewed, Wait, WaiterInfo};
use tenure::{Error, Result};
use tenure_proto::convert::{ms_down, ms_up};
use tenure_proto::v1;
use utoipa::ToSchema;

use super::error::ErrorBody;
use crate::Fault;
use crate::api::AcquireTerms;

/// Asks for a scope.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireRequest {
    /// For instance `billing.nightly/close`.
    pub(super) scope: String,
    /// `name`, or `name#start` where `start` is unique to this holder: asking again as the same one
    /// gets the lease that it has already.
    owner: String,
    /// The life of the lease; the server's default unless given.
    ttl_ms: Option<u64>,
    /// How long to wait for it; not at all unless given.
    #[serde(default)]
    wait_ms: u64,
    /// As long as it takes, and the server allows.
    #[serde(default)]
    wait_forever: bool,
    /// Something to tell everybody about the holder.
    #[serde(default)]
    metadata: Metadata,
    /// Leaves something to reap if it ends without a release.
    #[serde(default)]
    reapable: bool,
}

/// Asks for one of the slots of a group.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireSlotRequest {
    /// A namespace, for instance `search.indexer`.
    pub(super) group: String,
    /// How many slots a group has that does not exist yet.
    pub(super) count: u32,
    /// As for leases.
    owner: String,
    ttl_ms: Option<u64>,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    wait_forever: bool,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    reapable: bool,
}

macro_rules! asked {
    ($request:ty) => {
        impl $request {
            /// On what terms.
            pub(super) fn asked(&mut self) -> AcquireTerms {
                AcquireTerms {
                    owner: std::mem::take(&mut self.owner),
                    ttl: self.ttl_ms.map(Duration::from_millis),
                    wait: match self.wait_forever {
                        true => Wait::Forever,
                        false => Wait::from(Duration::from_millis(self.wait_ms)),
                    },
                    metadata: std::mem::take(&mut self.metadata),
                    reapable: self.reapable,
                }
            }
        }
    };
}
asked!(AcquireRequest);
asked!(AcquireSlotRequest);

/// What it takes to renew and release a lease, at any replica: to be sent back as it came.
#[derive(Deserialize, Serialize, ToSchema)]
#[schema(as = LeaseGrant)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseGrantView {
    scope: String,
    /// Greater than that of every earlier holder.
    token: u64,
    nonce: String,
    revision: u64,
    /// The life that each renewal grants.
    ttl_ms: u64,
    /// `name#start`.
    owner: String,
    #[serde(default)]
    reapable: bool,
    #[serde(default)]
    queue: String,
}

impl From<&LeaseGrant> for LeaseGrantView {
    fn from(grant: &LeaseGrant) -> Self {
        let grant = v1::LeaseGrant::from(grant);
        Self {
            scope: grant.scope,
            token: grant.token,
            nonce: grant.nonce,
            revision: grant.revision,
            ttl_ms: grant.ttl_ms,
            owner: grant.owner,
            reapable: grant.reapable,
            queue: grant.queue,
        }
    }
}

impl LeaseGrantView {
    /// The grant, if it can be one.
    pub(super) fn grant(&self) -> Result<LeaseGrant> {
        let grant = v1::LeaseGrant {
            scope: self.scope.clone(),
            token: self.token,
            nonce: self.nonce.clone(),
            revision: self.revision,
            ttl_ms: self.ttl_ms,
            owner: self.owner.clone(),
            reapable: self.reapable,
            queue: self.queue.clone(),
        };
        grant.try_into()
    }
}

/// A lease that was acquired.
#[derive(Serialize, ToSchema)]
#[schema(as = Acquired)]
pub(super) struct AcquiredView {
    grant: LeaseGrantView,
    /// Which slot, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    /// How long the holder may act, counted from before it asked; if it waited, from when the server
    /// sent the request that was granted.
    remaining_ms: u64,
}

impl AcquiredView {
    pub(super) fn new(grant: &LeaseGrant, index: Option<u32>) -> Self {
        Self { remaining_ms: ms_down(grant.remaining), grant: grant.into(), index }
    }
}

/// Leases to renew, many at once.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewRequest {
    pub(super) grants: Vec<LeaseGrantView>,
}

/// What became of them: one for each, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = RenewedAll)]
pub(super) struct RenewedAllView {
    renewed: Vec<OutcomeView>,
}

/// A renewal, or an error.
#[derive(Serialize, ToSchema)]
#[schema(as = RenewOutcome)]
#[serde(untagged)]
pub(super) enum OutcomeView {
    /// It goes on.
    Renewed(RenewedView),
    /// `{"error": …}`
    #[schema(value_type = ErrorBody)]
    Error(Fault),
}

impl From<Vec<Result<Renewed, Fault>>> for RenewedAllView {
    fn from(renewed: Vec<Result<Renewed, Fault>>) -> Self {
        let outcome = |renewed: Result<Renewed, Fault>| match renewed {
            Ok(renewed) => OutcomeView::Renewed((&renewed).into()),
            Err(fault) => OutcomeView::Error(fault),
        };
        Self { renewed: renewed.into_iter().map(outcome).collect() }
    }
}

/// A lease that goes on.
#[derive(Serialize, ToSchema)]
#[schema(as = Renewed)]
pub(super) struct RenewedView {
    revision: u64,
    ttl_ms: u64,
    /// How long the holder may act, counted from before it asked.
    remaining_ms: u64,
}

impl From<&Renewed> for RenewedView {
    fn from(renewed: &Renewed) -> Self {
        Self {
            revision: renewed.revision,
            ttl_ms: ms_up(renewed.ttl),
            remaining_ms: ms_down(renewed.remaining),
        }
    }
}

/// Lets go, at most with one of `ok` and `fail`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseRequest {
    pub(super) grant: LeaseGrantView,
    ok: Option<String>,
    fail: Option<String>,
}

impl ReleaseRequest {
    /// With what it ends.
    pub(super) fn outcome(&self) -> Result<ReleaseOutcome<'_>> {
        match (&self.ok, &self.fail) {
            (None, None) => Ok(ReleaseOutcome::Plain),
            (Some(ok), None) => Ok(ReleaseOutcome::Ok(ok.as_bytes())),
            (None, Some(fail)) => Ok(ReleaseOutcome::Fail(fail)),
            (Some(_), Some(_)) => {
                Err(Error::invalid("fail", "it contradicts ok; give at most one of them"))
            }
        }
    }
}

/// A lease as everybody sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
pub(super) struct LeaseView<'a> {
    scope: &'a str,
    /// `name#start`.
    holder: String,
    token: u64,
    revision: u64,
    acquired_at_ms: i64,
    ttl_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    metadata: &'a Metadata,
}

impl<'a> From<&'a LeaseInfo> for LeaseView<'a> {
    fn from(info: &'a LeaseInfo) -> Self {
        Self {
            scope: &info.id,
            holder: info.holder.to_string(),
            token: info.token,
            revision: info.revision,
            acquired_at_ms: info.acquired_at_ms,
            ttl_ms: ms_up(info.ttl),
            expires_in_ms: info.expires_in.map(ms_down),
            metadata: &info.metadata,
        }
    }
}

/// Somebody who waits.
#[derive(Serialize, ToSchema)]
#[schema(as = Waiter)]
pub(super) struct WaiterView {
    /// `name#start`.
    owner: String,
    /// Lower is earlier.
    place: u64,
    since_ms: i64,
}

impl From<&WaiterInfo> for WaiterView {
    fn from(info: &WaiterInfo) -> Self {
        Self { owner: info.owner.to_string(), place: info.place, since_ms: info.since_ms }
    }
}
