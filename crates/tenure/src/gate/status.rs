//! What a gate is doing, for health endpoints and people.

use std::fmt;

use crate::lease::{Loss, Owner, Scope};

/// What a gate is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// It waits for the lease.
    Standby,
    /// It holds the lease and its loops run.
    Holding,
    /// Its loops run without a lease, as it was told.
    Ungated,
    /// Its loops are being stopped.
    Stopping,
    /// A loop ended by itself; it pauses before it competes again.
    Pausing,
    /// It has been shut down.
    Stopped,
}

impl fmt::Display for GateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standby => "standby",
            Self::Holding => "holding",
            Self::Ungated => "ungated",
            Self::Stopping => "stopping",
            Self::Pausing => "pausing",
            Self::Stopped => "stopped",
        })
    }
}

/// A gate as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateStatus {
    /// What it guards.
    pub scope: String,
    /// This replica.
    pub owner: String,
    /// What it is doing.
    pub state: GateState,
    /// The token of the present term.
    pub token: Option<u64>,
    /// Who holds the lease: this replica while it does. In standby whoever else, as soon as it has
    /// been heard of; where the store does not tell everybody, nobody is. See [`super::Gate::holder`].
    pub holder: Option<String>,
    /// How the last term that was lost ended.
    pub last_loss: Option<Loss>,
}

impl GateStatus {
    pub(super) fn new(scope: &Scope, owner: &Owner) -> Self {
        Self {
            scope: scope.to_string(),
            owner: owner.to_string(),
            state: GateState::Standby,
            token: None,
            holder: None,
            last_loss: None,
        }
    }

    /// Whether its loops run under the lease.
    pub fn is_holding(&self) -> bool {
        self.state == GateState::Holding
    }
}
