//! What a gate counts, for prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Which loop ended, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LoopLabels {
    /// The loop.
    pub name: String,
    /// `returned` or `panicked`.
    pub how: &'static str,
}

/// Counters of one gate; clones share them.
#[derive(Clone, Debug, Default)]
pub struct GateMetrics {
    /// Terms begun.
    pub terms: Counter,
    /// Loops that ended by themselves.
    pub loops_ended: Family<LoopLabels, Counter>,
    /// 1 while the loops run.
    pub holding: Gauge,
}

impl GateMetrics {
    /// Registers everything under `tenure_gate_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("tenure_gate");
        registry.register("terms", "Terms begun", self.terms.clone());
        let help = "Loops that ended by themselves";
        registry.register("loops_ended", help, self.loops_ended.clone());
        registry.register("holding", "1 while the loops run", self.holding.clone());
    }

    pub(super) fn ended(&self, name: &str, how: &'static str) {
        self.loops_ended.get_or_create(&LoopLabels { name: name.to_owned(), how }).inc();
    }
}
