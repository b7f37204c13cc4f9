//! What all clones of an [`crate::EtcdStore`] share.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tenure::backend::home::Home;

use crate::cache::Cache;
use crate::endpoints::Endpoints;
use crate::keys::Keys;
use crate::lease_pool::LeasePool;
use crate::messages::{MemberListResponse, Nothing, path};

pub(crate) struct Inner {
    pub(crate) keys: Keys,
    pub(crate) endpoints: Arc<Endpoints>,
    /// Connections on the runtime that opened the store, for commits that are made there.
    pub(crate) local: Local,
    /// Connections for watches alone, so that a watch that nobody reads holds up no renewal.
    pub(crate) watch_endpoints: Arc<Endpoints>,
    pub(crate) leases: Arc<LeasePool>,
    pub(crate) cache: Cache,
    /// etcd's revision of the key with the writer level; 0 while there is none.
    pub(crate) writer: AtomicI64,
}

/// Connections on the runtime that opened the store, for as long as that runs.
pub(crate) struct Local {
    pub(crate) home: Arc<Home>,
    pub(crate) endpoints: Arc<Endpoints>,
}

impl Inner {
    /// The connections for a commit that is made here and now. On the runtime that opened the store it uses
    /// those that live there, which saves two changes of threads. Everything else, renewals above all,
    /// uses those on a thread of our own, which goes on while that runtime is busy or blocked.
    pub(crate) fn nearest(&self) -> &Arc<Endpoints> {
        if self.local.home.is_here() { &self.local.endpoints } else { &self.endpoints }
    }

    /// How many servers vote, and so keep everything. `None` if they do not tell: nothing rests on it.
    pub(crate) async fn members(&self) -> Option<u32> {
        let deadline = self.endpoints.deadline();
        let connection = self.endpoints.connection(deadline).await.ok()?;
        let asking = connection.call(path::MEMBERS, Nothing {});
        let left = self.endpoints.time_left(deadline);
        let answer: MemberListResponse = tokio::time::timeout(left, asking).await.ok()?.ok()?;
        let votes = answer.members.iter().filter(|member| !member.is_learner).count();
        u32::try_from(votes).ok().filter(|votes| *votes > 0)
    }
}
