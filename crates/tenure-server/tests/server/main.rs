//! The server, over real connections.

mod auth;
