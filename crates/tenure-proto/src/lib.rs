//! Tenure on the wire.
//!
//! [`v1`] is what `proto/tenure/v1/*.proto` say. [`convert`] is the one way from the library's types to
//! the wire and back, for server and client alike; what does not survive the journey is an error there,
//! never a silent default. [`status`] carries a whole [`tenure::Error`] across, in details that every gRPC
//! library can read.

pub mod codec;
pub mod convert;
mod rpc;
pub mod status;

/// The messages and services of `tenure.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    rustdoc::all
)]
pub mod v1 {
    include!("generated/tenure.v1.rs");
}

/// The compiled .proto files, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/tenure.v1.bin");
