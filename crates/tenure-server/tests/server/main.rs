//! The server, over real connections: driven by the clients that the .proto files make, and by plain HTTP.

#![expect(clippy::unwrap_used, reason = "what fails in a test's helper fails the test")]

mod auth;
mod details;
mod elections;
mod full;
mod grpc;
mod http;
mod hung;
mod leases;
mod limits;
mod reaping;
mod serving;
mod sessions;
mod shutdown;
mod slots;
mod slow;
