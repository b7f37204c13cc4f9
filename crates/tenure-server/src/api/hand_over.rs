//! Asking a holder to hand over, on behalf of callers who are elsewhere.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure::Error;
use tenure::lease::{Coordinator, LeaseInfo, Namespace, Owner, Scope, Spawn, Wait};

use super::View;
use crate::Fault;
use crate::auth::Action;
use crate::auth::audit::Notable;
use crate::limits::Use;

/// How long to wait unless something else was asked.
const USUAL: Duration = Duration::from_secs(60);

/// To whom a lease is to go, from whom, and how long to wait for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandOverTerms {
    /// `name` or `name#start` of somebody who waits; without it the first in line.
    pub successor: Option<String>,
    /// Only from the tenure under this token.
    pub expect_token: Option<u64>,
    /// A minute unless given.
    pub wait: Option<Duration>,
}

impl View {
    /// Asks the holder of a scope to hand it over, and waits until that is done. Returns who holds it then.
    /// Dropping the future does not take the request back.
    pub async fn ask_to_hand_over(
        &self,
        scope: &Scope,
        asked: &HandOverTerms,
    ) -> Result<LeaseInfo, Fault> {
        let (asker, wait) = self.may_ask(scope.as_str(), asked)?;
        let to = asked.successor.as_deref();
        let asking = asker.ask_to_hand_over(scope, asked.expect_token, to, wait);
        self.handing_over(scope.as_str(), asked, pin!(asking)).await
    }

    /// The same for one slot of a group, for somebody who waits for any.
    pub async fn ask_slot_to_hand_over(
        &self,
        group: &Namespace,
        index: u32,
        asked: &HandOverTerms,
    ) -> Result<LeaseInfo, Fault> {
        // The name of its lease, which permissions go by.
        let slot = format!("{group}/slot-{index}");
        let (asker, wait) = self.may_ask(&slot, asked)?;
        let (slots, to) = (asker.slots(group), asked.successor.as_deref());
        let asking = slots.ask_to_hand_over(index, asked.expect_token, to, wait);
        self.handing_over(&slot, asked, pin!(asking)).await
    }

    /// A coordinator that asks in the caller's name, so that the holder sees who it is, and how long to wait.
    fn may_ask(
        &self,
        resource: &str,
        asked: &HandOverTerms,
    ) -> Result<(Coordinator, Duration), Fault> {
        self.require(Action::LeasesRevoke, resource)?;
        let most = self.api.room().limits().wait_max;
        let mut asker = Coordinator::builder(self.part.store.clone()).spawn_on(Arc::new(Here));
        // A name that no owner can have is no reason to refuse: then it is the server that asks.
        let named = Owner::new(self.caller.subject(), &**self.part.store.random());
        asker = asker.owner(named.unwrap_or_else(|_| self.coordinator().owner().clone()));
        Ok((asker.start()?, asked.wait.unwrap_or(USUAL).min(most)))
    }

    /// Waits for it, with room and for as long as the caller may ask for it. Once the holder was asked,
    /// nobody knows how it ends but by waiting.
    async fn handing_over(
        &self,
        resource: &str,
        asked: &HandOverTerms,
        asking: Pin<&mut impl Future<Output = tenure::Result<LeaseInfo>>>,
    ) -> Result<LeaseInfo, Fault> {
        let _room = self.take(Use::Wait)?;
        let (action, what) = (Action::LeasesRevoke, "asked to hand over");
        let noting = self.noting(vec![Notable { action, resource: resource.into(), what }]);
        let unknown = |why: &str| {
            let told = format!("{why}, and the holder may have been asked; look who holds it");
            Fault::from(Error::unknown("server", told))
        };
        let became = tokio::select! {
            biased;
            became = self.api.shutdown().or(asking) => became,
            fault = self.caller.revoked(|| self.require(action, resource)) => {
                return Err(unknown(&fault.to_string()));
            }
        };
        let became = became.ok_or_else(|| unknown("the server is shutting down"))?;
        match &became {
            // It was asked, and did not listen.
            Err(Error::Held { .. }) => noting.end(&Ok(())),
            // That may have been before it was asked, or after.
            Err(Error::Lost { .. } | Error::Invalid { .. } | Error::Unavailable { .. }) => {
                drop(noting);
            }
            known => noting.end(known),
        }
        became.map_err(|error| self.not_handed_over(asked, error))
    }

    /// What it ended with. A holder that did not begin to stop in time goes on as if nothing had been.
    fn not_handed_over(&self, asked: &HandOverTerms, error: Error) -> Fault {
        let fault = self.waited(Wait::For(asked.wait.unwrap_or(USUAL)), error);
        let Fault::Store(error @ Error::Held { .. }) = fault else { return fault };
        let message = match &error {
            Error::Held { scope, holder, token, .. } => format!(
                "{scope} is still held by {} (token {token}), which did not listen in time, or cannot; \
                 ask again with a longer wait, or revoke it",
                holder.as_deref().unwrap_or("somebody else")
            ),
            error => error.to_string(),
        };
        Fault::Advised { error: Box::new(error), message }
    }
}

/// What is done in the background is done by the server's own runtime: there is no lease to renew.
struct Here;

impl Spawn for Here {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}
