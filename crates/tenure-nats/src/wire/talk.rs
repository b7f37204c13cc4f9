//! One connection, for as long as it lasts: sends what is ready, hands out what is answered, and finds
//! out when nobody is there any more.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tenure::clock::SharedClock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::io::poll_read_buf;

use super::desk::{Desk, Ready};
use super::parse::{self, Nonsense, Said};
use crate::connection::{SIGN_OF_LIFE, SILENCES, Trouble};

/// How often it is looked who has waited too long. One look at all costs less than a timer for each.
const LOOK: Duration = Duration::from_millis(100);
/// Looks without a word from the server until it is asked for one.
const LOOKS: u32 = (SIGN_OF_LIFE.as_millis() / LOOK.as_millis()) as u32;
/// Room for what comes at once.
const ROOM: usize = 8 * 1024;

/// Why a connection is not used any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nobody needs it, or its server asked us to go elsewhere. Nothing is under way.
    Left,
    /// It broke.
    Lost(String),
}

/// A connection that both sides have agreed on.
pub(crate) struct Talk<T> {
    io: T,
    desk: Arc<Desk>,
    clock: SharedClock,
    looks: Interval,
    came: BytesMut,
    sending: BytesMut,
    is_flushed: bool,
    /// Others were given a chance to add to what is ready.
    has_waited: bool,
    /// Looks since the last word of the server.
    silent: u32,
    is_leaving: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Talk<T> {
    /// With what came already.
    pub(crate) fn new(io: T, came: BytesMut, desk: Arc<Desk>, clock: SharedClock) -> Self {
        let mut looks = tokio::time::interval(LOOK);
        // A runtime that was blocked is not a server that was silent.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            io,
            desk,
            clock,
            looks,
            came,
            sending: BytesMut::new(),
            is_flushed: true,
            has_waited: false,
            silent: 0,
            is_leaving: false,
        }
    }

    pub(crate) async fn ended(mut self) -> Ended {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        self.desk.listen(cx.waker());
        if let Poll::Ready(why) = self.receive(cx) {
            return Poll::Ready(Ended::Lost(why));
        }
        while self.looks.poll_tick(cx).is_ready() {
            if let Err(why) = self.look() {
                return Poll::Ready(Ended::Lost(why));
            }
        }
        if let Poll::Ready(why) = self.send(cx) {
            return Poll::Ready(Ended::Lost(why));
        }
        let may_leave = self.is_leaving || self.desk.is_closed();
        if may_leave && self.sending.is_empty() && self.is_flushed && self.desk.is_quiet() {
            return Poll::Ready(Ended::Left);
        }
        Poll::Pending
    }

    /// Resolves when nothing more is going to come, and why.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        loop {
            match parse::next(&mut self.came, &self.desk.inbox) {
                Ok(Some(said)) => {
                    self.hear(said);
                    continue;
                }
                Ok(None) => {}
                Err(Nonsense) => return Poll::Ready("the server says what makes no sense".into()),
            }
            self.came.reserve(ROOM);
            match ready!(poll_read_buf(Pin::new(&mut self.io), cx, &mut self.came)) {
                Ok(0) => return Poll::Ready("the server has closed it".into()),
                Ok(_) => self.silent = 0,
                Err(error) => return Poll::Ready(error.to_string()),
            }
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Answer { number, payload } => self.desk.answer(number, Ok(payload)),
            Said::Nobody { number } => self.desk.answer(number, Err(Trouble::nobody())),
            Said::Ping => self.sending.extend_from_slice(b"PONG\r\n"),
            Said::Info(info) if info.ldm => {
                self.is_leaving = true;
                self.desk.leave_off();
            }
            // If it is a reason to end the connection, the server does that.
            Said::Error(error) => tracing::debug!(error, "the server is not content"),
            Said::Info(_) | Said::Pong | Said::Nothing => {}
        }
    }

    /// Looks after those who wait, and whether the server is there.
    fn look(&mut self) -> Result<(), String> {
        self.desk.give_up(self.clock.uptime());
        self.silent += 1;
        if self.silent >= LOOKS * SILENCES {
            return Err("the server gives no sign of life".into());
        }
        if self.silent.is_multiple_of(LOOKS) {
            self.sending.extend_from_slice(b"PING\r\n");
        }
        Ok(())
    }

    /// Resolves when nothing more can be sent, and why.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        while self.has_something(cx) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.sending)) {
                Ok(0) => return Poll::Ready("the server takes nothing any more".into()),
                Ok(written) => self.sending.advance(written),
                Err(error) => return Poll::Ready(error.to_string()),
            }
            self.is_flushed = false;
        }
        if !self.is_flushed {
            match ready!(Pin::new(&mut self.io).poll_flush(cx)) {
                Ok(()) => self.is_flushed = true,
                Err(error) => return Poll::Ready(error.to_string()),
            }
        }
        Poll::Pending
    }

    /// Whether there is something to send at this moment. Where others are under way, everybody who is
    /// ready to ask is let come first, once: then all of it goes in one call of the kernel.
    fn has_something(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.sending.is_empty() {
            return true;
        }
        match self.desk.ready() {
            Ready::Nothing => return false,
            Ready::Soon if !self.has_waited => {
                self.has_waited = true;
                cx.waker().wake_by_ref();
                return false;
            }
            Ready::Soon | Ready::Now => {}
        }
        self.has_waited = false;
        self.desk.take(&mut self.sending);
        !self.sending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tenure::clock::SystemClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::super::desk::{Content, Noted};
    use super::*;

    /// Both ends of a conversation that has begun.
    fn begun() -> (Arc<Desk>, Talk<DuplexStream>, DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 20);
        let desk = Arc::new(Desk::new("in.".into()));
        desk.open(1000);
        let talk = Talk::new(near, BytesMut::new(), Arc::clone(&desk), SystemClock::shared());
        (desk, talk, far)
    }

    fn ask(desk: &Desk) -> Noted<'_> {
        let patience = Duration::from_secs(60);
        let until = patience + SystemClock::shared().uptime();
        let content = Content { subject: "s", head: None, payload: b"" };
        desk.leave(&content, until, patience).unwrap().unwrap()
    }

    async fn read(far: &mut DuplexStream) -> String {
        let mut bytes = [0; 4096];
        let came = far.read(&mut bytes).await.unwrap();
        String::from_utf8(bytes[..came].to_vec()).unwrap()
    }

    #[tokio::test]
    async fn what_is_ready_together_leaves_together() {
        let (desk, talk, mut far) = begun();
        tokio::spawn(talk.ended());
        let _alone = ask(&desk);
        assert_eq!(read(&mut far).await, "PUB s in.1 0\r\n\r\n");
        // These come one after the other, as tasks that were woken together do.
        let others = [2, 3, 4].map(|_| {
            let desk = Arc::clone(&desk);
            tokio::spawn(async move { ask(&desk).answered().await })
        });
        assert_eq!(read(&mut far).await.matches("PUB").count(), others.len());
        far.write_all(b"MSG in.3 1 1\r\nc\r\nPING\r\n").await.unwrap();
        assert_eq!(read(&mut far).await, "PONG\r\n");
        let [_, second, _] = others;
        assert_eq!(second.await.unwrap().unwrap(), "c");
    }

    #[tokio::test]
    async fn a_server_that_is_about_to_end_is_left_when_all_is_answered() {
        let (desk, talk, mut far) = begun();
        let talk = tokio::spawn(talk.ended());
        let asked = ask(&desk);
        read(&mut far).await;
        far.write_all(b"INFO {\"ldm\":true}\r\nPING\r\n").await.unwrap();
        assert_eq!(read(&mut far).await, "PONG\r\n");
        assert!(!desk.is_up() && !talk.is_finished());
        far.write_all(b"MSG in.1 1 1\r\nx\r\n").await.unwrap();
        assert_eq!(asked.answered().await.unwrap(), "x");
        assert_eq!(talk.await.unwrap(), Ended::Left);
    }

    #[tokio::test]
    async fn a_closed_one_is_left_when_all_is_answered() {
        let (desk, talk, mut far) = begun();
        let talk = tokio::spawn(talk.ended());
        let asked = ask(&desk);
        desk.close();
        assert_eq!(read(&mut far).await, "PUB s in.1 0\r\n\r\n");
        far.write_all(b"HMSG in.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n").await.unwrap();
        assert!(matches!(asked.answered().await, Err(Trouble::Unsent(_))));
        assert_eq!(talk.await.unwrap(), Ended::Left);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_asked_for_a_sign_and_then_left() {
        let (_desk, talk, mut far) = begun();
        let mut talk = tokio::spawn(talk.ended());
        for _ in 0..5 {
            assert_eq!(read(&mut far).await, "PING\r\n");
            far.write_all(b"PONG\r\n").await.unwrap();
        }
        // From here on it says nothing.
        let almost = SIGN_OF_LIFE * SILENCES - LOOK * 2;
        assert!(tokio::time::timeout(almost, &mut talk).await.is_err(), "it was left too early");
        let ended = tokio::time::timeout(SIGN_OF_LIFE, &mut talk).await;
        let ended = ended.expect("it is left in time").unwrap();
        assert!(matches!(ended, Ended::Lost(why) if why.contains("no sign of life")));
    }

    #[tokio::test]
    async fn one_that_breaks_says_why() {
        let (_, talk, mut far) = begun();
        far.write_all(b"HELLO\r\n").await.unwrap();
        assert!(matches!(talk.ended().await, Ended::Lost(why) if why.contains("no sense")));
        let (_, talk, far) = begun();
        drop(far);
        assert!(matches!(talk.ended().await, Ended::Lost(why) if why.contains("closed")));
    }
}
