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
//! ask from. Should one of them block the thread that this task is to run on next, another task still tells
//! the rest in time.

mod desk;
mod dial;
mod parse;
mod talk;

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::home::Home;
use tenure::clock::SharedClock;

pub(crate) use self::desk::{Answer, Content};
pub(crate) use self::dial::Dial;

use self::desk::Desk;
use self::talk::{Ended, Talk};

/// Between attempts to connect, longer each time.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSES: u32 = 50;
/// How often it is looked who should have been told long ago, and what counts as long.
const LATE: Duration = Duration::from_millis(500);

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
        home.spawn(look(Arc::clone(&desk), Arc::clone(&clock)));
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

    /// Takes no more requests; those under way are still answered.
    pub(crate) fn close(&self) {
        self.desk.close();
    }

    /// Whether nobody waits for an answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.desk.is_quiet()
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
        let connected = tokio::select! {
            biased;
            () = desk.closed() => return,
            connected = dial.next(&desk.inbox) => connected,
        };
        match connected {
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
        tokio::select! {
            () = desk.closed() => return,
            () = tokio::time::sleep(PAUSE * PAUSES.min(failures + 1)) => {}
        }
    }
}

/// Tells those who should have been told long ago. Whoever sends does that in time, after a last look
/// for answers; but it may wait for a thread that somebody else keeps busy.
async fn look(desk: Arc<Desk>, clock: SharedClock) {
    while !(desk.is_closed() && desk.is_quiet()) {
        tokio::time::sleep(LATE).await;
        desk.give_up(clock.uptime().saturating_sub(LATE));
    }
}

#[cfg(test)]
mod tests {
    use tenure::clock::SystemClock;

    use super::*;
    use crate::connection::Trouble;

    #[tokio::test]
    async fn whoever_asks_is_told_though_nobody_sends() {
        let (desk, clock) = (Arc::new(Desk::new("in.".into())), SystemClock::shared());
        desk.open(1000);
        let looking = tokio::spawn(look(Arc::clone(&desk), Arc::clone(&clock)));
        let patience = Duration::from_millis(50);
        let content = Content { subject: "s", head: None, payload: b"" };
        let until = clock.uptime() + patience;
        let asked = desk.leave(&content, until, patience).unwrap().unwrap();
        let told = tokio::time::timeout(LATE * 20, asked.answered()).await.unwrap();
        assert!(matches!(told, Err(Trouble::Unsent(_))), "{told:?}");
        desk.close();
        tokio::time::timeout(LATE * 20, looking).await.unwrap().unwrap();
    }
}
