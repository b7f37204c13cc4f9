//! Reaping on behalf of callers who are elsewhere.
//!
//! A function cannot be sent, so what is to happen for a lease that ended without a release comes as a
//! commit: it applies together with the removal of what was left, which can be removed only once. A caller
//! that may hold a scope may reap there, and needs permission for what it commits as for any commit.

use tenure::lease::{LeaseInfo, Namespace};
use tenure::store::Commit;

use super::View;
use crate::Fault;

impl View {
    /// What is left to reap of a namespace, or everywhere.
    pub async fn orphans(
        &self,
        namespace: Option<&Namespace>,
        children: bool,
    ) -> Result<Vec<LeaseInfo>, Fault> {
        self.may_read_leases(namespace, children)?;
        Ok(self.part.coordinator.orphans(namespace, children).await?)
    }

    /// Reaps one of them, together with a commit. Whether it was there to reap.
    pub async fn reap(
        &self,
        id: &str,
        nonce: &str,
        revision: u64,
        mut commit: Commit,
    ) -> Result<bool, Fault> {
        self.may_hold_lease(id)?;
        let noting = self.noting(self.may_commit(&mut commit).await?);
        let reaped = self.part.coordinator.reap_one(id, nonce, revision, commit).await;
        match &reaped {
            // Nothing of it was done now.
            Ok(false) => noting.nothing(),
            known => noting.end(known),
        }
        Ok(reaped?)
    }
}
