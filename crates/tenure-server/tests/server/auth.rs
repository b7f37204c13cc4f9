//! Who gets in, and what they may do: over TLS, with a real client.

mod certificates;
mod doors;
mod jwt;
mod manual;
mod permissions;
pub(crate) mod rig;
mod tokens;
