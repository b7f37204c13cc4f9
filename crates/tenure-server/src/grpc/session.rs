//! A session: all leases of a client, kept alive by one message.
//!
//! The client attaches grants; every message of its renews all of them, in as few round trips as the
//! store allows. Each stands alone: what may not or cannot be kept is told and dropped, the others stay.
//! A stream that the client closes frees what is attached; one that breaks or is cancelled leaves it to
//! expire or to be attached elsewhere. The server remembers nothing beyond the stream, so a session
//! moves to another replica by attaching there.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use tenure::Error;
use tenure::lease::{LeaseGrant, ReleaseOutcome};
use tenure_proto::convert::ms_down;
use tenure_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Answers;
use crate::Fault;
use crate::api::View;
use crate::limits::Taken;

/// Leases in one session at most.
const LEASES: usize = 10_000;
/// Releases at once when a session closes.
const AT_ONCE: usize = 64;
/// Answers that a slow reader may leave unread.
const UNREAD: usize = 8;

type Reply = mpsc::Sender<Result<v1::SessionResponse, Status>>;

pub(super) fn start(
    view: View,
    room: Taken,
    incoming: Streaming<v1::SessionRequest>,
) -> Answers<v1::SessionResponse> {
    let (replies, outgoing) = mpsc::channel(UNREAD);
    tokio::spawn(async move {
        let _room = room;
        let session = Session { view, grants: BTreeMap::new(), answered: 0 };
        session.run(incoming, &replies).await;
    });
    Box::pin(ReceiverStream::new(outgoing))
}

struct Session {
    view: View,
    grants: BTreeMap<String, LeaseGrant>,
    answered: u64,
}

impl Session {
    async fn run(mut self, mut incoming: Streaming<v1::SessionRequest>, replies: &Reply) {
        let shutdown = self.view.api().shutdown().clone();
        let leaves = shutdown.leaving();
        tokio::pin!(leaves);
        let mut told = false;
        loop {
            let message = tokio::select! {
                biased;
                message = incoming.message() => message,
                () = &mut leaves, if !told => {
                    told = true;
                    let leaving = v1::SessionResponse { leaving: true, ..Default::default() };
                    if replies.send(Ok(leaving)).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            match message {
                Ok(Some(message)) => {
                    let answer = self.answer(message).await;
                    let failed = answer.is_err();
                    if replies.send(answer.map_err(Status::from)).await.is_err() || failed {
                        return;
                    }
                }
                // Closed by the client: it is done with them. One that was told to go elsewhere takes
                // them along.
                Ok(None) if !told => return self.free().await,
                Ok(None) => return,
                Err(status) => {
                    tracing::debug!(%status, leases = self.grants.len(), "a session broke");
                    return;
                }
            }
        }
    }

    async fn answer(&mut self, message: v1::SessionRequest) -> Result<v1::SessionResponse, Fault> {
        for scope in &message.detach {
            self.grants.remove(scope);
        }
        let mut lost = Vec::new();
        for grant in message.attach {
            let (scope, token) = (grant.scope.clone(), grant.token);
            match self.attach(grant) {
                Ok(()) => {}
                Err(fault @ Fault::Unauthenticated(_)) => return Err(fault),
                Err(fault) => lost.push(v1::Lost { scope, token, error: Some(fault.wire()) }),
            }
        }
        self.renew(lost).await
    }

    fn attach(&mut self, grant: v1::LeaseGrant) -> Result<(), Fault> {
        let grant = LeaseGrant::try_from(grant)?;
        self.view.may_hold(&grant)?;
        if self.grants.len() >= LEASES && !self.grants.contains_key(&grant.id) {
            let (max, got) = (LEASES as u64, LEASES as u64 + 1);
            return Err(Error::LimitExceeded { limit: "leases of a session", max, got }.into());
        }
        self.grants.insert(grant.id.clone(), grant);
        Ok(())
    }

    /// Renews all. What is lost is told and dropped; what could not be renewed now stays, and its
    /// life is not counted on.
    async fn renew(&mut self, mut lost: Vec<v1::Lost>) -> Result<v1::SessionResponse, Fault> {
        let grants: Vec<LeaseGrant> = self.grants.values().cloned().collect();
        let mut shortest: Option<Duration> = None;
        for (grant, renewed) in grants.iter().zip(self.view.renew(&grants).await?) {
            match renewed {
                Ok(renewed) => {
                    let left = renewed.remaining;
                    shortest = Some(shortest.map_or(left, |shortest| shortest.min(left)));
                    self.grants.insert(grant.id.clone(), grant.clone().renewed(&renewed));
                }
                Err(fault) if is_for_good(&fault) => {
                    self.grants.remove(&grant.id);
                    let (scope, token) = (grant.id.clone(), grant.token);
                    lost.push(v1::Lost { scope, token, error: Some(fault.wire()) });
                }
                Err(fault) => {
                    tracing::debug!(%fault, lease = %grant.id, "not renewed");
                    shortest = Some(Duration::ZERO);
                }
            }
        }
        self.answered += 1;
        let (answered, leaving) = (self.answered, false);
        let remaining_ms = shortest.map(ms_down);
        Ok(v1::SessionResponse { remaining_ms, lost, leaving, answered })
    }

    async fn free(self) {
        let Self { view, grants, .. } = self;
        let release = |grant: LeaseGrant| {
            let view = &view;
            async move {
                if let Err(error) = view.release(&grant, ReleaseOutcome::Plain).await {
                    tracing::debug!(%error, lease = %grant.id, "stays until it expires");
                }
            }
        };
        futures::stream::iter(grants.into_values()).for_each_concurrent(AT_ONCE, release).await;
    }
}

/// Whether asking again would not help.
fn is_for_good(fault: &Fault) -> bool {
    use Error::{Invalid, LimitExceeded, Lost};
    let no = |error: &Error| matches!(error, Lost { .. } | Invalid { .. } | LimitExceeded { .. });
    match fault {
        Fault::Store(error) => no(error),
        Fault::Advised { error, .. } => no(error),
        Fault::Denied { .. } => true,
        Fault::Unauthenticated(_) | Fault::Overloaded { .. } => false,
    }
}
