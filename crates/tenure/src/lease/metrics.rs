//! What a coordinator counts, for prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Why a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    /// [`crate::lease::Loss::code`].
    pub reason: &'static str,
}

/// Counters of one coordinator; clones share them.
#[derive(Clone, Debug)]
pub struct LeaseMetrics {
    /// Leases acquired.
    pub acquired: Counter,
    /// Renewals that the store granted.
    pub renewed: Counter,
    /// Attempts to renew that failed and were tried again.
    pub renewals_failed: Counter,
    /// Tenures ended, by reason.
    pub ended: Family<EndLabels, Counter>,
    /// Leases that this process renews itself; those of a grant it does not.
    pub held: Gauge,
    /// Callers in the queue now.
    pub waiting: Gauge,
    /// How long those who got a lease had waited for it, in seconds.
    pub waited: Histogram,
}

impl Default for LeaseMetrics {
    fn default() -> Self {
        Self {
            acquired: Counter::default(),
            renewed: Counter::default(),
            renewals_failed: Counter::default(),
            ended: Family::default(),
            held: Gauge::default(),
            waiting: Gauge::default(),
            waited: Histogram::new(exponential_buckets(0.001, 4.0, 10)),
        }
    }
}

impl LeaseMetrics {
    /// Registers everything under `tenure_lease_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("tenure_lease");
        registry.register("acquired", "Leases acquired", self.acquired.clone());
        registry.register("renewed", "Renewals granted", self.renewed.clone());
        let help = "Attempts to renew that failed and were tried again";
        registry.register("renewals_failed", help, self.renewals_failed.clone());
        registry.register("ended", "Tenures ended, by reason", self.ended.clone());
        registry.register("held", "Leases that this process renews itself", self.held.clone());
        registry.register("waiting", "Callers in the queue now", self.waiting.clone());
        let help = "How long those who got a lease had waited, in seconds";
        registry.register("waited_seconds", help, self.waited.clone());
    }
}
