//! Who gets in, and what they may do: over TLS, with a real client.

mod audited;
mod certificates;
mod doors;
mod handing;
mod jwt;
mod manual;
mod narrowed;
mod overrides;
mod permissions;
pub(crate) mod rig;
mod tokens;
