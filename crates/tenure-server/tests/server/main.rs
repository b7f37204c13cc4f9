//! The server, over real connections.

mod http;
