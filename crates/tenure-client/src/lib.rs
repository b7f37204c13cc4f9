//! Tenure over the wire.
