//! The server, over real connections.

mod auth;
mod http;
