//! Whether the server can do its work: the store answers, and the server is not about to leave.
//!
//! One task asks the store once a second, with a short timeout, and everybody else gets what it found.
//! So any number of probes costs the store one read a second. The HTTP route and the gRPC
//! health service say the same.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::lease::{LeaseInfo, Scope};
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, HealthService};
use utoipa::ToSchema;

use crate::Fault;
use crate::api::Api;
use crate::auth::Caller;
use crate::leading::LED;

/// How often the store is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Whose health can be asked for by name; the empty one stands for all.
const SERVICES: [&str; 5] =
    ["", "tenure.v1.Store", "tenure.v1.Leases", "tenure.v1.Slots", "tenure.v1.Elections"];

/// Whether the server is ready, and why not.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    /// Whether it may be sent requests.
    pub(crate) ready: bool,
    store: StoreState,
    /// Who leads the server's own scope, if anybody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    leading: Option<Named>,
    /// This replica, and since when it runs.
    replica: Named,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    leaving: bool,
}

/// The store, as the last look at it found it.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct StoreState {
    backend: &'static str,
    reachable: bool,
    /// Since when that has been so.
    since_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Somebody, since some time.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Named {
    name: String,
    since_ms: i64,
}

impl From<&LeaseInfo> for Named {
    fn from(info: &LeaseInfo) -> Self {
        Self { name: info.holder.to_string(), since_ms: info.acquired_at_ms }
    }
}

/// What the last look at the store found; `None` before the first.
type Found = Option<(StoreState, Option<Named>)>;

/// Knows whether the server is ready. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Readiness {
    shared: Arc<Shared>,
}

struct Shared {
    api: Api,
    replica: Named,
    found: watch::Sender<Found>,
    health: HealthReporter,
}

impl Readiness {
    pub(crate) fn new(api: &Api) -> Result<Self, Fault> {
        let since_ms = api.store().clock().wall_ms();
        let name = api.view(&Caller::anybody())?.coordinator().owner().to_string();
        let shared = Shared {
            api: api.clone(),
            replica: Named { name, since_ms },
            found: watch::Sender::new(None),
            health: HealthReporter::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The gRPC service that says the same.
    pub(crate) fn health(&self) -> HealthService {
        HealthService::from_health_reporter(self.shared.health.clone())
    }

    /// What is known now; right after the start, what the first look finds.
    pub(crate) async fn ask(&self) -> Ready {
        let mut found = self.shared.found.subscribe();
        let first = found.wait_for(Option::is_some);
        let first = match tokio::time::timeout(PATIENCE + EVERY, first).await {
            Ok(Ok(found)) => found.clone(),
            _ => None,
        };
        self.told(first)
    }

    fn told(&self, found: Found) -> Ready {
        let (store, leading) = found.unwrap_or_else(|| {
            let error = "it has not been asked yet";
            (self.state(false, self.shared.replica.since_ms, Some(error.into())), None)
        });
        let leaving = self.shared.api.shutdown().is_leaving();
        let replica = self.shared.replica.clone();
        Ready { ready: store.reachable && !leaving, store, leading, replica, leaving }
    }

    fn state(&self, reachable: bool, since_ms: i64, error: Option<String>) -> StoreState {
        let backend = self.shared.api.store().capabilities().backend;
        StoreState { backend, reachable, since_ms, error }
    }

    /// Asks the store again and again, until the server leaves.
    pub(crate) async fn run(self) {
        self.report(false).await;
        let shutdown = self.shared.api.shutdown().clone();
        let asking = async {
            loop {
                let found = self.look().await;
                self.report(found.0.reachable).await;
                self.shared.found.send_replace(Some(found));
                self.shared.api.store().clock().sleep(EVERY).await;
            }
        };
        let _: Option<()> = shutdown.or(asking).await;
        self.report(false).await;
        // Watchers have been told. Their streams end here, or the server would wait for them.
        let mut health = self.shared.health.clone();
        for service in SERVICES {
            health.clear_service_status(service).await;
        }
        self.report(false).await;
    }

    /// One look at the store.
    async fn look(&self) -> (StoreState, Option<Named>) {
        let answer = tokio::time::timeout(PATIENCE, self.leader()).await;
        let (leading, error) = match answer {
            Ok(Ok(leading)) => (leading, None),
            Ok(Err(fault)) => (None, Some(fault.to_string())),
            Err(_) => (None, Some(format!("it did not answer within {PATIENCE:?}"))),
        };
        let before = self.shared.found.borrow().as_ref().map(|(store, _)| store.clone());
        let now = self.shared.api.store().clock().wall_ms();
        let since_ms = match before {
            Some(before) if before.reachable == error.is_none() => before.since_ms,
            _ => now,
        };
        (self.state(error.is_none(), since_ms, error), leading)
    }

    async fn leader(&self) -> Result<Option<Named>, Fault> {
        let scope: Scope = LED.parse()?;
        let view = self.shared.api.view(&Caller::anybody())?;
        let holder = view.coordinator().holder(&scope).await?;
        Ok(holder.as_ref().map(Named::from))
    }

    async fn report(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            self.shared.health.set_service_status(service, status).await;
        }
    }
}
