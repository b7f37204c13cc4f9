//! How a coordinator behaves unless a request says otherwise.

use std::time::Duration;

/// Settings of a coordinator. The defaults suit a service with a handful of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The life of a lease.
    pub ttl: Duration,
    /// How often it is renewed; a third of its life unless set.
    pub renew_every: Option<Duration>,
    /// How often a standby tries on a store that cannot tell everybody of a change.
    pub poll_every: Duration,
    /// How often a standby tries on a store that can, in case it was not told.
    pub recheck_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            renew_every: None,
            poll_every: Duration::from_secs(5),
            recheck_every: Duration::from_secs(60),
        }
    }
}
