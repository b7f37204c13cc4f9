//! Leader election: a scope whose holder leads, and whose holder everybody can find.

use futures::stream::{BoxStream, StreamExt};

use crate::lease::{Coordinator, Lease, LeaseEvent, LeaseInfo, Metadata, Scope, Terms};
use crate::{Error, Result};

/// An election: candidates campaign, one leads, everybody observes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use tenure::lease::{Coordinator, Election, Terms};
/// use tenure::store::memory::MemoryStore;
///
/// let coordinator = Coordinator::new(MemoryStore::new().into_store())?;
/// let election = Election::new(&coordinator, "orders.reconciler/leader".parse()?);
/// let term = election.campaign(Terms::new().metadata("address", "10.0.0.7:8080")).await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.metadata["address"], "10.0.0.7:8080");
/// election.resign(term).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    coordinator: Coordinator,
    scope: Scope,
}

impl Election {
    /// The election held on this scope.
    pub fn new(coordinator: &Coordinator, scope: Scope) -> Self {
        Self { coordinator: coordinator.clone(), scope }
    }

    /// Waits until this candidate leads, for as long as it takes unless the terms say otherwise.
    /// The term is a lease: leading ends when it is lost.
    pub async fn campaign(&self, terms: Terms) -> Result<Lease> {
        let terms = match terms.wait {
            crate::lease::Wait::No => terms.wait_forever(),
            _ => terms,
        };
        self.coordinator.acquire(&self.scope, &terms).await
    }

    /// Leads if nobody does, without waiting. `None` if somebody else leads.
    pub async fn try_campaign(&self, terms: Terms) -> Result<Option<Lease>> {
        match self.coordinator.acquire(&self.scope, &terms.wait(crate::lease::Wait::No)).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stops leading; the next candidate takes over at once.
    pub async fn resign(&self, term: Lease) -> Result<()> {
        term.release().await
    }

    /// Stops leading in favour of a candidate by name.
    ///
    /// # Errors
    /// If no candidate of that name campaigns; the term comes back then.
    pub async fn hand_over(
        &self,
        term: Lease,
        to: &str,
    ) -> std::result::Result<(), (Lease, Error)> {
        term.hand_over(to).await
    }

    /// Changes what everybody is told about the leader.
    pub async fn proclaim(&self, term: &Lease, metadata: Metadata) -> Result<()> {
        term.proclaim(metadata).await
    }

    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<LeaseInfo>> {
        self.coordinator.holder(&self.scope).await
    }

    /// Who leads, now and with every change; `None` while nobody does.
    pub async fn observe(&self) -> Result<BoxStream<'static, Result<Option<LeaseInfo>>>> {
        // The watch first: a change between the two is then seen twice, never missed.
        let events = self.coordinator.watch(self.scope.as_str(), None).await?;
        let now = self.leader().await?;
        let id = self.scope.to_string();
        let seen = now.as_ref().map_or(0, |info| info.revision);
        let changes = events.filter_map(move |event| {
            let change = match event {
                Ok(LeaseEvent::Held(info)) if info.id == id && info.revision > seen => {
                    Some(Ok(Some(info)))
                }
                Ok(LeaseEvent::Ended { id: ended, last, .. })
                    if ended == id && last.as_ref().is_none_or(|last| last.revision >= seen) =>
                {
                    Some(Ok(None))
                }
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            };
            futures::future::ready(change)
        });
        Ok(futures::stream::once(futures::future::ready(Ok(now))).chain(changes).boxed())
    }
}
