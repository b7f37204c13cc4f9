//! How much the server takes on, in all and for one client. What exceeds it is refused at once with the
//! time after which to ask again; nothing queues up without a bound.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Fault;

/// Limits of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Requests that are being worked on, of all clients together; waits and streams not counted. As many
    /// more may be on their way, with a body that has not arrived.
    pub requests: usize,
    /// Open streams (watches, sessions, exchanges, reflection) of one client.
    pub streams_per_client: usize,
    /// Waits for leases and slots of one client.
    pub waiters_per_client: usize,
    /// Open streams of all clients together.
    pub streams: usize,
    /// Waits of all clients together.
    pub waiters: usize,
    /// Open connections.
    pub connections: usize,
    /// The largest message taken.
    pub message_bytes: usize,
    /// The longest wait that is granted; longer ones are cut and answered as if they were over.
    pub wait_max: Duration,
    /// How long a request may take, waits apart, and its body to arrive; and a stream to begin.
    pub request_timeout: Duration,
    /// How long a connection has for its first request, and for the handshake of TLS before that.
    pub header_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            requests: 4_096,
            streams_per_client: 20_000,
            waiters_per_client: 20_000,
            streams: 50_000,
            waiters: 50_000,
            connections: 20_000,
            message_bytes: 8 * 1024 * 1024,
            wait_max: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(15),
            header_timeout: Duration::from_secs(10),
        }
    }
}

impl ServerLimits {
    /// Refuses limits with which nothing would ever be done: every request would be told to come back.
    pub fn check(&self) -> Result<()> {
        let most = Semaphore::MAX_PERMITS;
        let counts = [
            ("requests", self.requests, most),
            ("streams", self.streams, most),
            ("streams_per_client", self.streams_per_client, usize::MAX),
            ("waiters", self.waiters, most),
            ("waiters_per_client", self.waiters_per_client, usize::MAX),
            ("connections", self.connections, most),
            ("message_bytes", self.message_bytes, usize::MAX),
        ];
        for (name, count, most) in counts {
            if count == 0 || count > most {
                return Err(wrong(name, &format!("it is {count}; give 1 to {most}")));
            }
        }
        let times = [
            ("wait_max", self.wait_max),
            ("request_timeout", self.request_timeout),
            ("header_timeout", self.header_timeout),
        ];
        match times.iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => Err(wrong(name, "it is 0; give at least a millisecond")),
            None => Ok(()),
        }
    }
}

fn wrong(name: &str, reason: &str) -> Error {
    let flag = name.replace('_', "-");
    Error::invalid(format!("limit {name}"), format!("{reason}, or leave --limit-{flag} out"))
}

/// Streams of those who need not say who they are, in all and from one address: probes, and few of them.
const PROBES: usize = 1_000;
const PROBES_PER_CLIENT: usize = 100;

/// When to ask again after too much at once.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is taken by whom.
#[derive(Debug)]
pub struct Room {
    limits: ServerLimits,
    requests: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    waiters: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    clients: Mutex<HashMap<(Use, Arc<str>), usize>>,
}

/// What a client takes room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// A watch, a session, an exchange, reflection.
    Stream,
    /// A wait for a lease or a slot.
    Wait,
    /// A watch of the server's health, which needs no credentials.
    Probe,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub struct Taken {
    _permit: OwnedSemaphorePermit,
    client: Option<(Arc<Room>, Use, Arc<str>)>,
}

impl Room {
    /// Empty room.
    pub fn new(limits: ServerLimits) -> Arc<Self> {
        Arc::new(Self {
            requests: Arc::new(Semaphore::new(limits.requests)),
            bodies: Arc::new(Semaphore::new(limits.requests)),
            streams: Arc::new(Semaphore::new(limits.streams)),
            waiters: Arc::new(Semaphore::new(limits.waiters)),
            probes: Arc::new(Semaphore::new(PROBES)),
            limits,
            clients: Mutex::default(),
        })
    }

    /// The limits.
    pub fn limits(&self) -> &ServerLimits {
        &self.limits
    }

    /// How much of a kind of room is taken now.
    pub(crate) fn taken(&self, what: Use) -> usize {
        match what {
            Use::Stream => self.limits.streams.saturating_sub(self.streams.available_permits()),
            Use::Wait => self.limits.waiters.saturating_sub(self.waiters.available_permits()),
            Use::Probe => PROBES.saturating_sub(self.probes.available_permits()),
        }
    }

    /// Room for one request.
    pub fn request(&self) -> Result<Taken, Fault> {
        let permit = take(&self.requests, "the server works on as many requests as it can")?;
        Ok(Taken { _permit: permit, client: None })
    }

    /// Room for a request whose body has not arrived yet.
    pub fn body(&self) -> Result<Taken, Fault> {
        let permit =
            take(&self.bodies, "the server waits for the bodies of as many requests as it can")?;
        Ok(Taken { _permit: permit, client: None })
    }

    /// Room for one request as soon as there is some. For those who are held back while they wait, so
    /// that no queue grows.
    pub async fn in_turn(&self) -> Result<Taken, Fault> {
        if let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() {
            return Ok(Taken { _permit: permit, client: None });
        }
        let turn = Arc::clone(&self.requests).acquire_owned();
        match Box::pin(tokio::time::timeout(self.limits.request_timeout, turn)).await {
            Ok(Ok(permit)) => Ok(Taken { _permit: permit, client: None }),
            Ok(Err(_)) | Err(_) => self.request(),
        }
    }

    /// Room for a stream or a wait of this client.
    pub fn take(self: &Arc<Self>, what: Use, client: &str) -> Result<Taken, Fault> {
        let (all, most, full) = match what {
            Use::Stream => (&self.streams, self.limits.streams_per_client, "streams are open"),
            Use::Wait => (&self.waiters, self.limits.waiters_per_client, "waits are going on"),
            Use::Probe => (&self.probes, PROBES_PER_CLIENT, "probes are watching"),
        };
        let permit = take(all, &format!("as many {full} as the server has room for"))?;
        let client: Arc<str> = client.into();
        let key = (what, Arc::clone(&client));
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let count = clients.get(&key).copied().unwrap_or(0);
        if count >= most {
            let what = format!("{count} {full} for {client}, which is as many as one client gets");
            return Err(Fault::Overloaded { what, retry_after: RETRY_AFTER });
        }
        clients.insert(key, count + 1);
        drop(clients);
        Ok(Taken { _permit: permit, client: Some((Arc::clone(self), what, client)) })
    }
}

fn take(all: &Arc<Semaphore>, full: &str) -> Result<OwnedSemaphorePermit, Fault> {
    Arc::clone(all)
        .try_acquire_owned()
        .map_err(|_| Fault::Overloaded { what: full.into(), retry_after: RETRY_AFTER })
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some((room, what, client)) = self.client.take() else { return };
        let mut clients = room.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (what, client);
        if let Some(count) = clients.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_the_room_of_all_and_gives_back_what_it_took() {
        let limits = ServerLimits { waiters: 3, waiters_per_client: 2, ..ServerLimits::default() };
        let room = Room::new(limits);
        let taken = [room.take(Use::Wait, "a").unwrap(), room.take(Use::Wait, "a").unwrap()];
        let told = room.take(Use::Wait, "a").unwrap_err();
        assert!(
            told.to_string().contains("2 waits") && told.to_string().contains("for a"),
            "{told}"
        );
        let other = room.take(Use::Wait, "b").unwrap();
        assert!(matches!(room.take(Use::Wait, "b"), Err(Fault::Overloaded { .. })));
        drop((taken, other));
        assert!(room.clients.lock().unwrap().is_empty());
        assert!(room.take(Use::Wait, "a").is_ok());
    }
}
