//! Tenure's server: gRPC and HTTP/JSON on one port, over any store.
//!
//! The way of a request: `listen` accepts a connection, `dispatch` and `auth` find out who asks, `grpc` or
//! `http` decodes the message, and `api` decides: whether this caller may do that, whether the limits allow
//! it, and what the store says. So the rules about callers are written once, in `api`, and `grpc` and `http`
//! are thin.
//!
//! The server keeps nothing that the store does not keep. Any number of replicas serve the same store,
//! and a client that loses one goes on at another.

mod address;
pub mod api;
pub mod auth;
mod body_timeout;
mod dispatch;
mod drain;
mod fault;
mod first_request;
pub mod grpc;
pub mod http;
mod leading;
mod limits;
mod listen;
mod metrics;
mod over_capacity;
mod ready;
mod shutdown;

pub use address::listen_addresses;
pub use fault::Fault;
pub use limits::ServerLimits;
pub use listen::{Builder, Server};
pub use shutdown::Shutdown;
