//! What the store behind a server promises, as its clients may rely on it.

use std::time::Duration;

use tenure::lease::LEASE;
use tenure::store::{Capabilities, Durability, ExpiryClock, Kinds, Notifies, Reach, Ttl};
use tenure::{Error, Limits};

use super::{ms_up, need, size};
use crate::v1;

const CLOCKS: [(&str, ExpiryClock); 5] = [
    ("process", ExpiryClock::Process),
    ("host", ExpiryClock::Host),
    ("database", ExpiryClock::Database),
    ("server", ExpiryClock::Server),
    ("observer", ExpiryClock::Observer),
];

impl From<&Capabilities> for v1::CapabilitiesResponse {
    fn from(caps: &Capabilities) -> Self {
        let clock = CLOCKS.iter().find(|(_, clock)| *clock == caps.expiry_clock);
        let (durability, flushed_every) = match caps.durability {
            Durability::Volatile => ("volatile", Duration::ZERO),
            Durability::Flushed => ("flushed", Duration::ZERO),
            Durability::Periodic(every) => ("periodic", every),
            Durability::Server => ("server", Duration::ZERO),
        };
        Self {
            backend: caps.backend.into(),
            objects: caps.kinds == Kinds::Any,
            multi_object_commits: caps.multi_object_commits,
            names: caps.names,
            labels: caps.labels,
            ttl_min_ms: caps.ttl.map(|ttl| ms_up(ttl.min)),
            ttl_granularity_ms: caps.ttl.map(|ttl| ms_up(ttl.granularity)),
            touch_keeps_revision: caps.touch_keeps_revision,
            history_ms: caps.history.map(ms_up),
            notifies_all: caps.notifies_all(),
            expiry_clock: clock.map_or("server", |(name, _)| name).into(),
            durability: durability.into(),
            flushed_every_ms: ms_up(flushed_every),
            limits: Some((&caps.limits).into()),
            version: env!("CARGO_PKG_VERSION").into(),
            replicas: caps.replicas,
        }
    }
}

/// What a client may rely on: the store's promises as they are through a server, which anybody on the
/// network can reach. SQL of the caller's own cannot travel.
impl TryFrom<v1::CapabilitiesResponse> for Capabilities {
    type Error = Error;

    fn try_from(response: v1::CapabilitiesResponse) -> Result<Self, Error> {
        let clock = CLOCKS.iter().find(|(name, _)| *name == response.expiry_clock);
        let ttl = |min, granularity| Ttl {
            min: Duration::from_millis(min),
            granularity: Duration::from_millis(granularity),
        };
        Ok(Self {
            backend: "server",
            kinds: if response.objects { Kinds::Any } else { Kinds::Only(LEASE) },
            multi_object_commits: response.multi_object_commits,
            names: response.names,
            labels: response.labels,
            ttl: response.ttl_min_ms.zip(response.ttl_granularity_ms).map(|(m, g)| ttl(m, g)),
            touch_keeps_revision: response.touch_keeps_revision,
            history: response.history_ms.map(Duration::from_millis),
            user_sql: false,
            notifies: if response.notifies_all { Notifies::Everywhere } else { Notifies::Process },
            expiry_clock: clock.map_or(ExpiryClock::Server, |(_, clock)| *clock),
            reach: Reach::Network,
            durability: match response.durability.as_str() {
                "volatile" => Durability::Volatile,
                "flushed" => Durability::Flushed,
                "periodic" => {
                    Durability::Periodic(Duration::from_millis(response.flushed_every_ms))
                }
                _ => Durability::Server,
            },
            replicas: response.replicas,
            limits: need(response.limits, "limits")?.into(),
        })
    }
}

impl From<&Limits> for v1::Limits {
    fn from(limits: &Limits) -> Self {
        Self {
            kind_bytes: limits.kind_bytes as u64,
            id_bytes: limits.id_bytes as u64,
            name_bytes: limits.name_bytes as u64,
            labels: limits.labels as u64,
            label_bytes: limits.label_bytes as u64,
            payload_bytes: limits.payload_bytes as u64,
            commit_operations: limits.commit_operations as u64,
            commit_bytes: limits.commit_bytes as u64,
            touches: limits.touches as u64,
            page_objects: limits.page_objects as u64,
            ttl_max_ms: ms_up(limits.ttl_max),
        }
    }
}

impl From<v1::Limits> for Limits {
    fn from(limits: v1::Limits) -> Self {
        Self {
            kind_bytes: size(limits.kind_bytes),
            id_bytes: size(limits.id_bytes),
            name_bytes: size(limits.name_bytes),
            labels: size(limits.labels),
            label_bytes: size(limits.label_bytes),
            payload_bytes: size(limits.payload_bytes),
            commit_operations: size(limits.commit_operations),
            commit_bytes: size(limits.commit_bytes),
            touches: size(limits.touches),
            page_objects: size(limits.page_objects),
            ttl_max: Duration::from_millis(limits.ttl_max_ms),
        }
    }
}
