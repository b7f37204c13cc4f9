//! A door in front of a server's port that a test can shut: for everybody, for one of its peers, or
//! so that connections stay open and nothing passes.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// How soon a door that is shut or frozen is noticed by what passes through it.
const TICK: Duration = Duration::from_millis(20);
/// Says on a connection between etcd nodes who opened it.
const FROM: &str = "x-server-from: ";

/// A proxy from a port of its own to a port on this host. It ends with the value.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    target: u16,
    door: Arc<Door>,
}

#[derive(Debug, Default)]
struct Door {
    gone: AtomicBool,
    shut: AtomicBool,
    frozen: AtomicBool,
    /// How long everything takes to pass, in milliseconds.
    delay: AtomicU64,
    /// Peers that may not pass, by the name they give.
    barred: Mutex<HashSet<String>>,
}

impl Door {
    fn barred(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lets_pass(&self, from: Option<&str>) -> bool {
        let barred = self.barred();
        let known = match from {
            Some(from) => !barred.contains(from),
            // Who does not say its name is let in only while nobody is barred.
            None => barred.is_empty(),
        };
        known && !self.shut.load(Ordering::Acquire) && !self.gone.load(Ordering::Acquire)
    }
}

impl Proxy {
    /// Forwards to this port of 127.0.0.1.
    pub fn start(target: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("a port for a proxy")?;
        let port = listener.local_addr()?.port();
        let door = Arc::new(Door::default());
        let at_the_door = Arc::clone(&door);
        std::thread::Builder::new().name("proxy".into()).spawn(move || {
            for incoming in listener.incoming().map_while(Result::ok) {
                if at_the_door.gone.load(Ordering::Acquire) {
                    return;
                }
                let door = Arc::clone(&at_the_door);
                // A connection that cannot be served is closed, which is what its peer expects.
                let _ = std::thread::Builder::new().spawn(move || serve(&door, incoming, target));
            }
        })?;
        Ok(Self { port, target, door })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it leads.
    pub fn target(&self) -> u16 {
        self.target
    }

    /// Closes every connection and lets nobody in.
    pub fn shut(&self) {
        self.door.shut.store(true, Ordering::Release);
    }

    /// The same for one peer that says its name on its connections.
    pub fn bar(&self, peer: &str) {
        self.door.barred().insert(peer.to_lowercase());
    }

    /// Keeps connections open and lets nothing pass.
    pub fn freeze(&self) {
        self.door.frozen.store(true, Ordering::Release);
    }

    /// Lets everything pass late: what comes together, together.
    pub fn slow(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.door.delay.store(millis, Ordering::Release);
    }

    /// Undoes all of these.
    pub fn open(&self) {
        self.door.barred().clear();
        self.door.shut.store(false, Ordering::Release);
        self.door.frozen.store(false, Ordering::Release);
        self.door.delay.store(0, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.door.gone.store(true, Ordering::Release);
        // Wakes the listener, so that it notices.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(door: &Arc<Door>, mut incoming: TcpStream, target: u16) {
    let _ = incoming.set_nodelay(true);
    let _ = incoming.set_read_timeout(Some(TICK));
    let Some((first, from)) = introduction(door, &mut incoming) else { return };
    let Ok(mut outgoing) = TcpStream::connect(("127.0.0.1", target)) else { return };
    let _ = outgoing.set_nodelay(true);
    let _ = outgoing.set_read_timeout(Some(TICK));
    if !door.lets_pass(from.as_deref()) || outgoing.write_all(&first).is_err() {
        return;
    }
    let (Ok(back_from), Ok(back_to)) = (outgoing.try_clone(), incoming.try_clone()) else { return };
    let (there, whose) = (Arc::clone(door), from.clone());
    let back = std::thread::Builder::new().spawn(move || pass(&there, whose, back_from, back_to));
    pass(door, from, incoming, outgoing);
    if let Ok(back) = back {
        let _ = back.join();
    }
}

/// The first bytes, and who sent them if they say so.
fn introduction(door: &Door, stream: &mut TcpStream) -> Option<(Vec<u8>, Option<String>)> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if door.gone.load(Ordering::Acquire) {
            return None;
        }
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => {
                buffer.truncate(count);
                let text = String::from_utf8_lossy(&buffer).to_lowercase();
                let from = text.split_once(FROM).map(|(_, rest)| {
                    rest.chars().take_while(char::is_ascii_hexdigit).collect::<String>()
                });
                return Some((buffer, from));
            }
            Err(error) if is_tick(&error) => {}
            Err(_) => return None,
        }
    }
}

fn pass(door: &Door, from: Option<String>, mut source: TcpStream, mut target: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while door.lets_pass(from.as_deref()) {
        if door.frozen.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            continue;
        }
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if is_tick(&error) => continue,
            Err(_) => break,
        };
        // What was read before the door froze waits with everything else.
        while door.frozen.load(Ordering::Acquire) && door.lets_pass(from.as_deref()) {
            std::thread::sleep(TICK);
        }
        let delay = door.delay.load(Ordering::Acquire);
        if delay > 0 {
            std::thread::sleep(Duration::from_millis(delay));
        }
        if target.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = source.shutdown(Shutdown::Both);
    let _ = target.shutdown(Shutdown::Both);
}

fn is_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
