//! Requests and their answers on a connection of our own.
//!
//! The client library carries everything else. Most of what a lease costs a lone client, though, is the
//! way of one small request there and back, and half of that way was spent within the library: two
//! tasks, a map of headers, a subject to answer to for each. Here a request is written once, as it goes over
//! the connection, and whoever reads its answer hands it to the one who asked (decision 19).
//!
//! It is only ever the quicker way. While there is no connection, and for whoever asks from another
//! runtime, requests go through the library, which knows how to wait, where else to go and what is wrong.
//!
//! Nobody depends on another who asks: one task sends and receives for all, on the runtime that all of them
//! ask from.

mod desk;
mod dial;
mod parse;
mod talk;

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::SharedClock;
use tenure::store::home::Home;

pub(crate) use self::desk::{Answer, Content};
pub(crate) use self::dial::Dial;

use self::desk::Desk;
use self::talk::{Ended, Talk};

/// Between attempts to connect, longer each time.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSES: u32 = 50;

/// The way for requests from one runtime.
pub(crate) struct Wire {
    desk: Arc<Desk>,
    home: Home,
    clock: SharedClock,
}

impl Wire {
    /// Connects in the background, on the runtime that this is called on.
    pub(crate) fn open(dial: Dial, clock: SharedClock) -> Self {
        let home = Home::here();
        let desk = Arc::new(Desk::new(dial.inbox()));
        home.spawn(run(Arc::clone(&desk), dial, Arc::clone(&clock)));
        Self { desk, home, clock }
    }

    /// Whether this is for the caller.
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Whether a request would leave at once.
    pub(crate) fn is_up(&self) -> bool {
        self.desk.is_up()
    }

    /// One request and its answer; `None` if there is no connection.
    pub(crate) async fn ask(&self, content: &Content<'_>, patience: Duration) -> Option<Answer> {
        let until = self.clock.uptime().saturating_add(patience);
        match self.desk.leave(content, until, patience)? {
            Ok(noted) => Some(noted.answered().await),
            Err(trouble) => Some(Err(trouble)),
        }
    }

    /// Takes no more requests. Resolves when nobody waits for an answer any more, or after this long.
    pub(crate) async fn close(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(5);
        self.desk.close();
        for _ in 0..patience.as_millis() / LOOK.as_millis() {
            if self.desk.is_quiet() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.desk.close();
    }
}

/// Nobody is left waiting when the task goes, be it with its runtime.
struct Last(Arc<Desk>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.lose_all();
    }
}

/// One connection after the other, until nobody asks any more.
async fn run(desk: Arc<Desk>, mut dial: Dial, clock: SharedClock) {
    let last = Last(desk);
    let desk = &last.0;
    let mut failures = 0;
    while !desk.is_closed() {
        match dial.next(&desk.inbox).await {
            Ok(connected) => {
                failures = 0;
                desk.open(connected.max_payload);
                let talk =
                    Talk::new(connected.io, connected.came, Arc::clone(desk), Arc::clone(&clock));
                let ended = talk.ended().await;
                desk.lose_all();
                if let Ended::Lost(why) = ended {
                    tracing::debug!(why, "a connection for requests is lost");
                }
            }
            Err(why) => {
                failures += 1;
                tracing::debug!(why, "no connection for requests");
            }
        }
        tokio::time::sleep(PAUSE * PAUSES.min(failures + 1)).await;
    }
}
