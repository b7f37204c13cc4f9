//! A lease that a caller holds: what it told, and what the store tells about it.
//!
//! The caller told for how long it held the lease when it called. It renews the lease and cannot tell us. So
//! its state is read from the store, each time before what is known runs out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{self, BoxFuture, FutureExt, Shared};
use tenure::clock::SharedClock;
use tenure::lease::{LEASE, LeaseRecord, Loss, Timing};
use tenure::store::{Fence, Store};
use tenure::{Key, Object};

use super::metadata::Told;

/// A first look may take this long, however little time the caller said was left.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Looks come no sooner after each other than this, and no later.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A lease that is held by our caller.
pub(super) struct Elsewhere {
    known: Arc<Known>,
    /// Driven by those who wait for it; one read of the store serves all of them.
    lost: Shared<BoxFuture<'static, Loss>>,
}

struct Known {
    key: Key,
    token: u64,
    clock: SharedClock,
    state: Mutex<State>,
}

struct State {
    valid_until: Duration,
    loss: Option<Loss>,
}

impl Elsewhere {
    /// Believes the caller, who drops the call when it loses the lease.
    pub(super) fn told(told: Told, clock: SharedClock) -> Self {
        let known = Known::new(told, clock);
        Self { known, lost: future::pending().boxed().shared() }
    }

    /// Believes the store.
    pub(super) fn checked(told: Told, store: Store) -> Self {
        let known = Known::new(told, Arc::clone(store.clock()));
        let lost = follow(Arc::clone(&known), store).boxed().shared();
        Self { known, lost }
    }

    pub(super) fn id(&self) -> &str {
        &self.known.key.id
    }

    pub(super) fn token(&self) -> u64 {
        self.known.token
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::new(self.known.key.clone(), self.known.token)
    }

    pub(super) fn remaining(&self) -> Duration {
        let state = self.known.state();
        match state.loss {
            Some(_) => Duration::ZERO,
            None => state.valid_until.saturating_sub(self.known.clock.uptime()),
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.known.state().loss.clone()
    }

    pub(super) fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.lost.clone()
    }
}

impl Known {
    fn new(told: Told, clock: SharedClock) -> Arc<Self> {
        let valid_until = clock.uptime().saturating_add(told.valid);
        let state = Mutex::new(State { valid_until, loss: None });
        Arc::new(Self { key: Key::new(LEASE, told.id), token: told.token, clock, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a look found that began at `sent`.
    fn found(&self, object: Option<Object>, sent: Duration) -> Option<Loss> {
        let object = match object {
            Some(object) if object.token == self.token => object,
            Some(other) => {
                let record = serde_json::from_slice::<LeaseRecord>(&other.payload);
                let by = record.map_or_else(|_| "somebody".into(), |record| record.holder);
                return Some(Loss::Taken { by, token: other.token });
            }
            None => return Some(Loss::Expired),
        };
        // Counted from before the request left, like the holder's own: the store's count began later.
        let left = object.expires_in.or(object.ttl).unwrap_or(PAUSE_MAX);
        let until = Timing::new(left, None).valid_until(sent);
        let mut state = self.state();
        state.valid_until = state.valid_until.max(until);
        None
    }
}

/// Looks at the lease before what is known about it runs out, again and again, until it is lost.
async fn follow(known: Arc<Known>, store: Store) -> Loss {
    let clock = &known.clock;
    let mut patience = clock.uptime().saturating_add(FIRST_LOOK).max(known.state().valid_until);
    let loss = loop {
        let left = known.state().valid_until.saturating_sub(clock.uptime());
        clock.sleep((left / 2).clamp(PAUSE_MIN, PAUSE_MAX)).await;
        let sent = clock.uptime();
        tokio::select! {
            biased;
            looked = store.get(&known.key) => match looked {
                Ok(object) => {
                    if let Some(loss) = known.found(object, sent) {
                        break loss;
                    }
                    patience = known.state().valid_until;
                }
                Err(error) => tracing::debug!(lease = %known.key.id, %error, "cannot look at a lease"),
            },
            () = clock.sleep_until(patience) => {}
        }
        if clock.uptime() >= patience {
            break Loss::Expired;
        }
    };
    known.state().loss.get_or_insert(loss).clone()
}
