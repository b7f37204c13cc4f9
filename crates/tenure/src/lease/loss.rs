//! How a tenure ended.

use std::fmt;

/// Why a lease is no longer held. Told once, and the first reason stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The local deadline passed without a renewal that was confirmed in time.
    Expired,
    /// Somebody else holds it now.
    Taken {
        /// The new holder.
        by: String,
        /// Its token.
        token: u64,
    },
    /// Somebody ended it on purpose.
    Revoked {
        /// Who, where the store could keep a note.
        by: Option<String>,
        /// Why, in that person's words.
        reason: Option<String>,
    },
    /// The holder released it.
    Released,
    /// The holder passed it on.
    HandedOver {
        /// The successor.
        to: String,
    },
}

impl Loss {
    /// A short stable word for metrics and the wire.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken { .. } => "taken",
            Self::Revoked { .. } => "revoked",
            Self::Released => "released",
            Self::HandedOver { .. } => "handed_over",
        }
    }

    /// Whether the holder ended it by its own will.
    pub fn is_voluntary(&self) -> bool {
        matches!(self, Self::Released | Self::HandedOver { .. })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("expired: no renewal was confirmed in time"),
            Self::Taken { by, token } => write!(f, "taken by {by} (token {token})"),
            Self::Revoked { by, reason } => {
                write!(f, "revoked by {}", by.as_deref().unwrap_or("somebody"))?;
                reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
            }
            Self::Released => f.write_str("released"),
            Self::HandedOver { to } => write!(f, "handed over to {to}"),
        }
    }
}
