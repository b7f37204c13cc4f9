//! Tenure's server: gRPC and HTTP/JSON on one port, over any store.
//!
//! The way of a request: a connection is accepted (`listen`), who asks is found out (`front`, `auth`), the
//! message is decoded (`grpc` or `http`), and `api` decides: may this caller do that, is there room for
//! it, and what does the store say. So rules about callers are written once, in `api`, and both front
//! doors are thin.
//!
//! The server keeps nothing that the store does not keep. Any number of replicas serve the same store,
//! and a client that loses one goes on at another.

mod address;
pub mod api;
mod arriving;
pub mod auth;
mod fault;
mod front;
pub mod grpc;
pub mod http;
mod leading;
mod limits;
mod listen;
mod metrics;
mod prompt;
mod ready;
mod shutdown;
mod turned_away;
mod unheard;

pub use address::listen_addresses;
pub use fault::Fault;
pub use limits::ServerLimits;
pub use listen::{Builder, Server};
pub use shutdown::Shutdown;
