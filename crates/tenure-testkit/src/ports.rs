//! Free ports.

use std::net::TcpListener;

use anyhow::{Context, Result};

/// So many ports that nobody listens on right now, all different.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>> {
    let listen = || TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port");
    let listeners = (0..count).map(|_| listen()).collect::<Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
