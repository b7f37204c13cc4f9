//! Which server to connect to when the connection is lost.
//!
//! By itself the client goes to any server that it knows, the one it just left included. A server that
//! hangs still accepts connections and says nothing on them, which costs the whole timeout for connecting,
//! and with it leases. So the server that was left comes last among those that are as good.

use std::sync::{Mutex, PoisonError};

use async_nats::{ReconnectToServer, Server, ServerAddr};
use tenure::random::{SystemRandom, below};

/// The choice of the next server, for one connection.
#[derive(Default)]
pub(crate) struct ServerChoice {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The server that was connected last, and is not any more.
    left: Option<ServerAddr>,
    /// The one that was chosen after that.
    chosen: Option<ServerAddr>,
}

impl ServerChoice {
    /// Where to try next; `None` before the first connection, when one is as good as another.
    pub(crate) fn next(&self, servers: &[Server]) -> Option<ReconnectToServer> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = connected(servers, state.chosen.as_ref()) {
            state.left = Some(connected.addr.clone());
        }
        let left = state.left.as_ref()?;
        let rank = |server: &Server| rank(server.failed_attempts, server.addr == *left);
        let best = servers.iter().map(rank).min()?;
        let best: Vec<&Server> = servers.iter().filter(|server| rank(server) == best).collect();
        // Clients that leave one server do not all go to the same one.
        let place = below(&SystemRandom, u64::try_from(best.len()).unwrap_or(1));
        let addr = best.get(usize::try_from(place).unwrap_or(0))?.addr.clone();
        state.chosen = Some(addr.clone());
        Some(ReconnectToServer { addr, delay: None })
    }
}

/// The server that was connected until now: the one chosen last unless that failed, and at first the
/// only one that ever was.
fn connected<'a>(servers: &'a [Server], chosen: Option<&ServerAddr>) -> Option<&'a Server> {
    match chosen {
        None => servers.iter().find(|server| server.did_connect),
        Some(chosen) => {
            servers.iter().find(|server| server.addr == *chosen && server.failed_attempts == 0)
        }
    }
}

/// Lower is better. Having been left counts like a failure, and decides between equals: else servers
/// that have failed long ago would be worse than one that hangs.
fn rank(failures: usize, was_left: bool) -> (usize, bool) {
    (failures + usize::from(was_left), was_left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_left_comes_last_but_comes() {
        assert!(rank(0, false) < rank(0, true));
        assert!(rank(1, false) < rank(0, true));
        // If nobody else can be reached, it is tried again.
        assert!(rank(0, true) < rank(2, false));
    }
}
