//! What `tenure run` does when the command is gone: it passes the lease on or releases it, and closes the
//! store, all within a few seconds. A store that does not answer must not keep a host from going on; what
//! it has not heard of by then ends by itself.

use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::{Coordinator, HandOverRequest, Lease, Loss};
use tenure::store::Store;
use tenure::{Error, Result};

use super::signals::Signals;
use crate::exit;
use crate::output::say;

/// For all of it together.
const WITHIN: Duration = Duration::from_secs(5);

/// How the command ended, and why.
pub(super) enum Ended {
    /// By itself, or by a signal that we passed on.
    Itself(u8),
    /// Somebody wants the lease to be handed over. It is still held.
    Asked(u8, HandOverRequest),
    /// The lease was lost.
    Lost(Loss),
}

/// The way out, and when it has to be over.
pub(super) struct Leaving {
    until: Duration,
    quiet: bool,
}

impl Leaving {
    /// It begins now.
    pub(super) fn begin(quiet: bool) -> Self {
        Self { until: SystemClock.uptime() + WITHIN, quiet }
    }

    /// No longer than there is time for.
    async fn bounded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let left = self.until.saturating_sub(SystemClock.uptime());
        tokio::time::timeout(left, work).await.ok()
    }

    fn say(&self, what: impl std::fmt::Display) {
        if !self.quiet {
            say(what);
        }
    }

    /// Passes the lease on or releases it, now that nothing runs under it any more; the exit code.
    pub(super) async fn let_go(
        &self,
        lease: Lease,
        ended: anyhow::Result<Ended>,
    ) -> anyhow::Result<u8> {
        let (id, token) = (lease.id().to_owned(), lease.token());
        let (lease, code) = match ended {
            Ok(Ended::Lost(loss)) => {
                let _ = self.release(lease).await;
                say(format_args!("lost {id}, token {token}: {loss}; the command was stopped"));
                return Ok(exit::LOST);
            }
            Ok(Ended::Asked(code, request)) => match self.hand_over(lease, &request).await {
                None => return Ok(code),
                // Whoever was to have it has gone: the next in line is as good.
                Some(lease) => (lease, code),
            },
            Ok(Ended::Itself(code)) => (lease, code),
            Err(error) => {
                let _ = self.release(lease).await;
                return Err(error);
            }
        };
        Ok(self.released(lease, code).await)
    }

    /// Releases it, and says how that went; the exit code.
    async fn released(&self, lease: Lease, code: u8) -> u8 {
        let (id, token, observer) = (lease.id().to_owned(), lease.token(), lease.observer());
        let error = match self.release(lease).await {
            Ok(()) => {
                self.say(format_args!("released {id}"));
                return code;
            }
            Err(error) => error,
        };
        match observer.loss() {
            // It was ended before the command had, whoever did it and whatever the command says.
            Some(loss) if matches!(error, Error::Lost { .. }) && loss != Loss::Expired => {
                say(format_args!(
                    "lost {id}, token {token}: {loss}; the command ended before it was told"
                ));
                exit::LOST
            }
            // It did its work in time; the lease ends by itself.
            _ => {
                say(format_args!("the command ended, but {id} was not released: {error}"));
                code
            }
        }
    }

    /// Passes it on. What comes back is still held.
    async fn hand_over(&self, lease: Lease, request: &HandOverRequest) -> Option<Lease> {
        let id = lease.id().to_owned();
        match self.bounded(lease.hand_over(&request.to)).await {
            Some(Ok(())) => {
                self.say(format_args!("handed over {id} to {}", request.to));
                None
            }
            Some(Err((lease, error))) => {
                say(format_args!("{id} is not handed over but released: {error}"));
                Some(lease)
            }
            None => {
                say(format_args!("{id} may not be handed over: {}", late()));
                None
            }
        }
    }

    async fn release(&self, lease: Lease) -> Result<()> {
        self.bounded(lease.release()).await.unwrap_or_else(|| Err(late()))
    }

    /// Lets what was given up be tidied up, for whoever waits behind it, and closes the store.
    pub(super) async fn close(
        self,
        coordinator: &Coordinator,
        store: &Store,
        signals: &mut Signals,
    ) {
        let closing = async {
            coordinator.settle().await;
            store.close().await;
        };
        tokio::select! {
            _ = self.bounded(closing) => {}
            _ = signals.end() => {}
        }
    }
}

fn late() -> Error {
    Error::unavailable("store", format!("no answer within {} s", WITHIN.as_secs()))
}
