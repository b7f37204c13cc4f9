//! Which server to connect to when the connection is lost.
//!
//! By itself the client goes to any server that it knows, the one it just left included. A server that
//! hangs still accepts connections and says nothing on them, which costs the whole timeout for connecting,
//! and with it leases. So the server that was left comes last among those that are as good.

use std::sync::{Mutex, PoisonError};

use async_nats::{ReconnectToServer, Server, ServerAddr};
use tenure::random::{Random, SystemRandom, below};

/// The choice of the next server, for one connection.
#[derive(Default)]
pub(crate) struct ServerChoice {
    state: Mutex<State<ServerAddr>>,
}

/// Attempts are counted here: the client library does not count one whose name cannot be resolved.
struct State<A> {
    /// The server that was connected last, and is not any more.
    left: Option<A>,
    /// The one that was chosen after that.
    chosen: Option<A>,
    /// The one chosen last was connected to.
    is_connected: bool,
    /// How often each was tried since there was a connection.
    tried: Vec<(A, u32)>,
}

impl<A> Default for State<A> {
    fn default() -> Self {
        Self { left: None, chosen: None, is_connected: false, tried: Vec::new() }
    }
}

impl ServerChoice {
    /// Where to try next; `None` before the first connection, when one is as good as another.
    pub(crate) fn next(&self, servers: &[Server]) -> Option<ReconnectToServer> {
        let first = servers.iter().find(|server| server.did_connect)?;
        let all: Vec<ServerAddr> = servers.iter().map(|server| server.addr.clone()).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let addr = state.next(&all, &first.addr, &SystemRandom)?;
        Some(ReconnectToServer { addr, delay: None })
    }

    /// There is a connection again.
    pub(crate) fn connected(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_connected = true;
        state.tried.clear();
    }
}

impl<A: Clone + PartialEq> State<A> {
    /// The server that was tried least since there was a connection. `first` was connected to if none was
    /// chosen yet.
    fn next(&mut self, servers: &[A], first: &A, random: &dyn Random) -> Option<A> {
        let was_connected = std::mem::take(&mut self.is_connected);
        if self.left.is_none() {
            self.left = Some(first.clone());
        } else if was_connected {
            self.left = self.chosen.take();
        }
        let rank = |server: &A| {
            let tried = self.tried.iter().find(|(tried, _)| tried == server);
            rank(tried.map_or(0, |(_, count)| *count), self.left.as_ref() == Some(server))
        };
        let best = servers.iter().map(rank).min()?;
        let best: Vec<&A> = servers.iter().filter(|server| rank(server) == best).collect();
        // Clients that leave one server do not all go to the same one.
        let place = below(random, u64::try_from(best.len()).unwrap_or(1));
        let addr = (*best.get(usize::try_from(place).unwrap_or(0))?).clone();
        match self.tried.iter_mut().find(|(tried, _)| *tried == addr) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => self.tried.push((addr.clone(), 1)),
        }
        self.chosen = Some(addr.clone());
        Some(addr)
    }
}

/// Lower is better. Having been left counts like an attempt, and decides between equals.
fn rank(tried: u32, was_left: bool) -> (u32, bool) {
    (tried.saturating_add(u32::from(was_left)), was_left)
}

#[cfg(test)]
mod tests {
    use tenure::random::SeededRandom;

    use super::*;

    #[test]
    fn the_one_that_was_left_comes_last_but_comes() {
        assert!(rank(0, false) < rank(0, true));
        assert!(rank(1, false) < rank(0, true));
        // If nobody else can be reached, it is tried again.
        assert!(rank(0, true) < rank(2, false));
    }

    #[test]
    fn every_server_is_tried_again_and_again_until_one_answers() {
        let random = SeededRandom::new(1);
        let mut state = State::default();
        let next =
            |state: &mut State<&'static str>| state.next(&["a", "b"], &"a", &random).unwrap();
        // Connected to `a` at first. Nothing is ever known of the attempts but that they were made.
        state.is_connected = true;
        let tries: Vec<&str> = (0..8).map(|_| next(&mut state)).collect();
        assert_eq!(tries[0], "b", "{tries:?}");
        for two in tries.windows(3) {
            assert!(two.contains(&"a") && two.contains(&"b"), "{tries:?}");
        }
        state.is_connected = true;
        state.tried.clear();
        let connected = state.chosen.unwrap();
        assert_ne!(next(&mut state), connected, "the one that was left comes last");
    }
}
