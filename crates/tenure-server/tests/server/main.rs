//! The server, over real connections.

#![expect(clippy::unwrap_used, reason = "what fails in a test's helper fails the test")]

mod auth;
mod http;
