//! What a caller may ask, in the library's types: permissions, limits and audit are checked here, so
//! that both front doors are thin.

mod hand_over;
mod in_time;
mod leases;
mod objects;
mod reap;
mod records;
mod slots;
mod stream_authorisation;
mod view;
pub(crate) mod watch_progress;

pub use hand_over::HandOverTerms;
pub use leases::{AcquireTerms, LeaseStatus, scope};
pub use slots::SlotsStatus;
pub use stream_authorisation::{StreamAuthorisation, StreamEnd};
pub use view::View;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tenure::lease::{Coordinator, LeaseMetrics};
use tenure::store::Store;
use tenure::store::prefixed::Prefixed;

use crate::auth::Caller;
use crate::limits::Room;
use crate::{Fault, ServerLimits, Shutdown};

/// Tenants whose coordinators are kept at once. One that has been pushed out is started again.
const TENANTS: usize = 1_000;

/// Everything that requests share. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

/// A store, all of it or one tenant's, and who acts on it.
pub(crate) struct Part {
    store: Store,
    coordinator: Coordinator,
}

struct Shared {
    whole: Arc<Part>,
    metrics: LeaseMetrics,
    room: Arc<Room>,
    shutdown: Shutdown,
    tenants: Mutex<HashMap<Arc<str>, Arc<Part>>>,
}

impl Api {
    /// An interface to this store.
    pub fn new(store: Store, limits: ServerLimits, shutdown: Shutdown) -> Result<Self, Fault> {
        Self::named(None, store, limits, shutdown)
    }

    /// The same, of a replica that has a name.
    pub(crate) fn named(
        name: Option<&str>,
        store: Store,
        limits: ServerLimits,
        shutdown: Shutdown,
    ) -> Result<Self, Fault> {
        let metrics = LeaseMetrics::default();
        let store = store.with_timeout_at_most(limits.request_timeout);
        let mut builder = Coordinator::builder(store.clone()).metrics(metrics.clone());
        if let Some(name) = name {
            builder = builder.name(name);
        }
        let coordinator = builder.start()?;
        let room = Room::new(limits);
        let tenants = Mutex::default();
        let whole = Arc::new(Part { store, coordinator });
        let shared = Shared { whole, metrics, room, shutdown, tenants };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What this caller sees, and what it may do there.
    pub fn view(&self, caller: &Caller) -> Result<View, Fault> {
        let part = match caller.tenant() {
            None => Arc::clone(&self.shared.whole),
            Some(tenant) => self.tenant(tenant)?,
        };
        Ok(View { api: self.clone(), part, caller: caller.clone() })
    }

    fn tenant(&self, tenant: &str) -> Result<Arc<Part>, Fault> {
        let mut tenants = self.shared.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant) {
            return Ok(Arc::clone(known));
        }
        let store = Prefixed::tenant(self.store(), tenant)?.into_store();
        let metrics = self.shared.metrics.clone();
        let coordinator = Coordinator::builder(store.clone()).metrics(metrics).start()?;
        if tenants.len() >= TENANTS
            && let Some(some) = tenants.keys().next().cloned()
        {
            tenants.remove(&some);
        }
        let part = Arc::new(Part { store, coordinator });
        tenants.insert(tenant.into(), Arc::clone(&part));
        Ok(part)
    }

    /// The whole store.
    pub fn store(&self) -> &Store {
        &self.shared.whole.store
    }

    /// What leases are counted in, of all tenants together.
    pub fn lease_metrics(&self) -> &LeaseMetrics {
        &self.shared.metrics
    }

    /// How much is taken on at once.
    pub fn room(&self) -> &Arc<Room> {
        &self.shared.room
    }

    /// Whether the server is leaving.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shared.shutdown
    }

    /// Resolves when nothing that callers gave up is left to be let go of.
    pub async fn settle(&self) {
        let tenants: Vec<Arc<Part>> = {
            let tenants = self.shared.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            tenants.values().cloned().collect()
        };
        self.shared.whole.coordinator.settle().await;
        for part in tenants {
            part.coordinator.settle().await;
        }
    }
}
