//! Leases, held on behalf of callers who are elsewhere.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures::stream::BoxStream;
use tenure::Error;
use tenure::lease::{
    Election, LeaseEvent, LeaseGrant, LeaseInfo, LeaseWatch, Metadata, Namespace, Owner,
    ReleaseOutcome, Renewed, Scope, Status, Terms, Wait,
};

use super::records::about;
use super::{StreamAuthorisation, View};
use crate::Fault;
use crate::auth::Action;
use crate::auth::audit::Notable;
use crate::limits::Use;

/// On what terms a caller asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcquireTerms {
    /// `name`, or `name#start`.
    pub owner: String,
    /// The life of the lease.
    pub ttl: Option<Duration>,
    /// How long to wait for it.
    pub wait: Wait,
    /// Something to tell everybody about the holder.
    pub metadata: Metadata,
    /// Leaves something to reap.
    pub reapable: bool,
}

impl AcquireTerms {
    /// Whether the same owner can ask again, and get what it has: it knows its own start.
    pub(super) fn may_ask_again(&self) -> bool {
        self.owner.contains('#')
    }
}

/// Who holds a scope, and who waits for it.
pub type LeaseStatus = Status;

impl View {
    /// Acquires a scope for an owner. Dropping the future gives up. The same owner asking again gets what
    /// it has.
    pub async fn acquire(&self, scope: &Scope, asked: &AcquireTerms) -> Result<LeaseGrant, Fault> {
        self.require(Action::LeasesHold, scope.as_str())?;
        let terms = self.terms(asked)?;
        let acquiring = pin!(self.part.coordinator.acquire(scope, &terms));
        let lease = self.waiting(asked, scope.as_str(), acquiring).await?;
        // Until here, giving up lets go of it again.
        Ok(lease.detach())
    }

    /// The library's terms for what was asked.
    pub(super) fn terms(&self, asked: &AcquireTerms) -> Result<Terms, Fault> {
        let owner = match asked.owner.split_once('#') {
            Some((name, start)) => Owner::from_parts(name, start)?,
            None => Owner::new(&asked.owner, &**self.part.store.random())?,
        };
        let mut terms = Terms::new().owner(owner).wait(self.bounded(asked.wait));
        // An owner that does not know its own start cannot ask again, so what it gives up is released.
        if asked.may_ask_again() {
            terms = terms.resume();
        }
        if let Some(ttl) = asked.ttl {
            terms = terms.ttl(ttl);
        }
        if asked.reapable {
            terms = terms.reapable();
        }
        for (key, value) in &asked.metadata {
            terms = terms.metadata(key, value);
        }
        Ok(terms)
    }

    fn bounded(&self, wait: Wait) -> Wait {
        let most = self.api.room().limits().wait_max;
        match wait {
            Wait::No => Wait::No,
            Wait::For(wait) => Wait::For(wait.min(most)),
            Wait::Forever => Wait::For(most),
        }
    }

    /// Takes room for the wait, and ends it when the server leaves, or when the caller is not known or may
    /// not hold it any more. An acquire that does not wait takes no longer than any request.
    /// The wait is pinned where it begins: it is large, and handed on by value it would be copied often.
    pub(super) async fn waiting<T>(
        &self,
        asked: &AcquireTerms,
        resource: &str,
        acquiring: Pin<&mut impl Future<Output = tenure::Result<T>>>,
    ) -> Result<T, Fault> {
        if asked.wait == Wait::No {
            let _room = self.api.room().request()?;
            return Ok(acquiring.await?);
        }
        let _room = self.take(Use::Wait)?;
        let acquired = tokio::select! {
            biased;
            acquired = self.api.shutdown().or(acquiring) => acquired,
            fault = self.caller.revoked(|| self.require(Action::LeasesHold, resource)) => {
                return Err(fault);
            }
        };
        match acquired {
            Some(acquired) => acquired.map_err(|error| self.waited(asked.wait, error)),
            None => Err(Fault::leaving()),
        }
    }

    /// What a wait ended with. To whom the server's limit cut it short, a longer wait is no help.
    pub(super) fn waited(&self, wait: Wait, error: Error) -> Fault {
        let most = self.api.room().limits().wait_max;
        match &error {
            Error::Held { scope, holder, token, .. } if self.bounded(wait) != wait => {
                let holder = holder.as_deref().unwrap_or("somebody else");
                let message = format!(
                    "{scope} is held by {holder} (token {token}); this server's limit of {most:?} ended \
                     the wait: ask again"
                );
                Fault::Advised { error: Box::new(error), message }
            }
            _ => error.into(),
        }
    }

    /// Starts the lives of leases anew, many at once. Each has an answer that stands alone, also where the
    /// caller may not. A caller that is no longer known gets no answer at all.
    pub async fn renew(&self, grants: &[LeaseGrant]) -> Result<Vec<Result<Renewed, Fault>>, Fault> {
        let mut answers = Vec::with_capacity(grants.len());
        for grant in grants {
            match self.may_hold(grant) {
                Err(fault @ Fault::Unauthenticated(_)) => return Err(fault),
                allowed => answers.push(allowed),
            }
        }
        let allowed: Vec<LeaseGrant> = grants
            .iter()
            .zip(&answers)
            .filter(|(_, allowed)| allowed.is_ok())
            .map(|(grant, _)| grant.clone())
            .collect();
        let mut renewed = self.part.coordinator.renew_grants(&allowed).await.into_iter();
        let silent = || Error::unknown("server", "nothing is known about it");
        let answer = |allowed: Result<(), Fault>| {
            allowed.and_then(|()| Ok(renewed.next().unwrap_or_else(|| Err(silent()))?))
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// The same for grants as they came, of which some may make no sense.
    pub async fn renew_given(
        &self,
        grants: Vec<tenure::Result<LeaseGrant>>,
    ) -> Result<Vec<Result<Renewed, Fault>>, Fault> {
        let sound: Vec<LeaseGrant> = grants.iter().flatten().cloned().collect();
        let mut renewed = self.renew(&sound).await?.into_iter();
        let answers = grants.into_iter().filter_map(|grant| match grant {
            Ok(_) => renewed.next(),
            Err(error) => Some(Err(error.into())),
        });
        Ok(answers.collect())
    }

    /// Lets go.
    pub async fn release(
        &self,
        grant: &LeaseGrant,
        outcome: ReleaseOutcome<'_>,
    ) -> Result<(), Fault> {
        self.may_hold(grant)?;
        Ok(self.part.coordinator.release_grant(grant, outcome).await?)
    }

    /// Passes a lease on to somebody who waits for it.
    pub async fn hand_over(&self, grant: &LeaseGrant, successor: &str) -> Result<(), Fault> {
        self.may_hold(grant)?;
        Ok(self.part.coordinator.hand_over_grant(grant, successor).await?)
    }

    /// Tells everybody something else about the holder.
    pub async fn proclaim(&self, grant: &LeaseGrant, metadata: Metadata) -> Result<Renewed, Fault> {
        self.may_hold(grant)?;
        Ok(self.part.coordinator.proclaim_grant(grant, metadata).await?)
    }

    /// Whether the caller may act on this grant. It comes from outside, and so does the line that it names:
    /// a hand-over takes the successor out of that line.
    pub fn may_hold(&self, grant: &LeaseGrant) -> Result<(), Fault> {
        self.may_hold_lease(&grant.id)?;
        if grant.queue == grant.id {
            return Ok(());
        }
        self.require(Action::LeasesHold, &about(&grant.queue))
    }

    /// Whether the caller may hold the lease with this id, or clean up after its holder.
    pub(super) fn may_hold_lease(&self, id: &str) -> Result<(), Fault> {
        let scope = id.split_once('#').map_or(id, |(scope, _)| scope);
        // It comes from outside: what it names must be something that can be held at all.
        scope.parse::<Scope>()?;
        self.require(Action::LeasesHold, scope)
    }

    /// Ends somebody's tenure, or only that under this token.
    pub async fn revoke(
        &self,
        scope: &Scope,
        expect_token: Option<u64>,
        reason: &str,
    ) -> Result<bool, Fault> {
        self.require(Action::LeasesRevoke, scope.as_str())?;
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let (action, resource) = (Action::LeasesRevoke, scope.to_string());
        let noting = self.noting(vec![Notable { action, resource, what: "revoked" }]);
        let revoked = match expect_token {
            Some(token) => self.part.coordinator.revoke_token(scope, token, reason).await,
            None => self.part.coordinator.revoke(scope, reason).await,
        };
        match &revoked {
            Ok(false) => noting.instead("nothing to revoke"),
            known => noting.end(known),
        }
        Ok(revoked?)
    }

    /// Who holds a scope, and who waits for it.
    pub async fn show(&self, scope: &Scope) -> Result<LeaseStatus, Fault> {
        self.require(Action::LeasesRead, scope.as_str())?;
        Ok(self.part.coordinator.status(scope).await?)
    }

    /// The leases of a namespace, or all of them.
    pub async fn leases(
        &self,
        namespace: Option<&Namespace>,
        children: bool,
    ) -> Result<Vec<LeaseInfo>, Fault> {
        self.may_read_leases(namespace, children)?;
        match namespace {
            Some(namespace) => Ok(self.part.coordinator.list(namespace, children).await?),
            None => Ok(self.part.coordinator.list_all().await?),
        }
    }

    /// Whether the caller may see all leases of a namespace, or all there are.
    pub(super) fn may_read_leases(
        &self,
        namespace: Option<&Namespace>,
        children: bool,
    ) -> Result<(), Fault> {
        let Some(namespace) = namespace else { return self.require(Action::LeasesRead, "*") };
        self.require(Action::LeasesRead, &format!("{namespace}/*"))?;
        if children {
            self.require(Action::LeasesRead, &format!("{namespace}.*"))?;
        }
        Ok(())
    }

    /// What happens to leases whose scope starts with this.
    pub async fn watch_leases(
        &self,
        prefix: &str,
        after: Option<u64>,
    ) -> Result<(BoxStream<'static, tenure::Result<LeaseEvent>>, StreamAuthorisation), Fault> {
        let authorisation = self.authorise_lease_watch(prefix)?;
        Ok((self.opening(self.part.coordinator.watch(prefix, after)).await?, authorisation))
    }

    /// The same, commit by commit.
    pub async fn watch_lease_batches(
        &self,
        prefix: &str,
        after: Option<u64>,
    ) -> Result<(LeaseWatch, StreamAuthorisation), Fault> {
        let authorisation = self.authorise_lease_watch(prefix)?;
        Ok((self.opening(self.coordinator().watch_batches(prefix, after)).await?, authorisation))
    }

    /// Refuses a caller that may not see everything that begins with this. A prefix goes by letters and a
    /// permission by names, so a caller that may see all of `billing` is told which prefixes that is.
    fn authorise_lease_watch(&self, prefix: &str) -> Result<StreamAuthorisation, Fault> {
        let authorisation = self.authorise([(Action::LeasesRead, format!("{prefix}*").into())]);
        let Err(Fault::Denied { subject, action, resource, mut advice }) = authorisation else {
            return authorisation;
        };
        let narrower = ["/", "."].map(|end| format!("{prefix}{end}"));
        let may = |prefix: &&String| self.caller.may(Action::LeasesRead, &format!("{prefix}*"));
        let allowed: Vec<&str> = narrower.iter().filter(may).map(String::as_str).collect();
        if !allowed.is_empty() {
            let allowed = allowed.join(" or ");
            advice = format!("names of others begin so, too: watch the prefix {allowed}").into();
        }
        Err(Fault::Denied { subject, action, resource, advice })
    }

    /// Who leads.
    pub async fn leader(&self, scope: &Scope) -> Result<Option<LeaseInfo>, Fault> {
        self.require(Action::LeasesRead, scope.as_str())?;
        Ok(self.part.coordinator.holder(scope).await?)
    }

    /// Who leads, now and from now on.
    pub async fn observe(
        &self,
        scope: &Scope,
    ) -> Result<(BoxStream<'static, tenure::Result<Option<LeaseInfo>>>, StreamAuthorisation), Fault>
    {
        let authorisation = self.authorise([(Action::LeasesRead, scope.as_str().into())])?;
        let election = Election::new(&self.part.coordinator, scope.clone());
        let leaders = self.opening(election.observe()).await?;
        Ok((leaders, authorisation))
    }
}

/// A scope in a request.
pub fn scope(text: &str) -> Result<Scope, Error> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use tenure::store::memory::MemoryStore;

    use super::*;
    use crate::api::Api;
    use crate::auth::Caller;
    use crate::{ServerLimits, Shutdown};

    /// Every call sets this much aside and copies some of it. It grows quickly: whatever takes a future by
    /// value and awaits it keeps it twice.
    #[tokio::test]
    async fn what_is_kept_for_a_lease_that_is_being_acquired_is_small() {
        let store = MemoryStore::new().into_store();
        let api = Api::new(store, ServerLimits::default(), Shutdown::default()).unwrap();
        let view = api.view(&Caller::anybody()).unwrap();
        let asked = AcquireTerms { owner: "a#1".into(), ..AcquireTerms::default() };
        let scope = scope("a.b/c").unwrap();
        let acquiring = view.acquire(&scope, &asked);
        let size = size_of_val(&acquiring);
        assert!(size <= 3_072, "{size} bytes");
        let grant = acquiring.await.unwrap();
        let size = size_of_val(&view.release(&grant, ReleaseOutcome::Plain));
        assert!(size <= 1_024, "{size} bytes");
    }
}
