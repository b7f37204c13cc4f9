//! The session of a process that waits for notifications, for as long as the store is open.
//!
//! While there is a watcher, it hears of commits and wakes [`crate::watch::pump`]. It also answers processes
//! that have just connected and cannot know whether the server's clock was stepped
//! ([`crate::connect::first_clock`]): it looks at the clock and corrects the record if need be. It reconnects for
//! as long as it takes; nothing is concluded from its silence.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure::Result;
use tokio::sync::mpsc;
use tokio_postgres::Notification;

use crate::commit::committer::Work;
use crate::connect::session::{Connector, Role, Session, quoted};
use crate::error::Failure;
use crate::shared::Shared;

/// Notifications that may wait; each only says that there is something to see.
const NOTIFICATIONS: usize = 64;
/// Questions that may wait. Who is not answered asks again.
const QUESTIONS: usize = 256;
/// What taking leave may take.
const LEAVE: Duration = Duration::from_millis(250);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Short: whoever connects to a server that has just come back must find us there.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// What sessions that listen are told by, and what they listen to. All of it is about one schema.
pub(crate) struct Names {
    /// The channel on which commits are told.
    pub(crate) commits: String,
    /// The channel on which newcomers ask for a look at the clock.
    pub(crate) clock: String,
    /// What the session calls itself, so that newcomers know whom to ask.
    pub(crate) presence: String,
}

impl Names {
    /// `mark` tells the schema from others; it is short and plain.
    pub(crate) fn new(commits: String, mark: &str) -> Self {
        let clock = format!("tenure_clock_{mark}");
        Self { commits, clock, presence: format!("{} {mark}", Role::Listen.name()) }
    }

    /// The channel on which this session hears answers.
    pub(crate) fn answers_to(&self, pid: i32) -> String {
        format!("{}_{pid}", self.clock)
    }
}

/// A session and what it hears.
pub(crate) struct Listener {
    pub(crate) session: Session,
    pub(crate) notifications: mpsc::Receiver<Notification>,
    /// What the server calls the session.
    pub(crate) pid: i32,
}

impl Listener {
    pub(crate) async fn open(connector: &Connector) -> Result<Self> {
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS);
        let session = connector.open_with(Role::Listen, Some(sender)).await?;
        let patience = connector.options.reply_timeout;
        let asking = session.client.query_typed_one("select pg_backend_pid()", &[]);
        let asked = tokio::time::timeout(patience, asking).await;
        let asked = asked.map_err(|_| Failure::timeout("connecting", patience).error)?;
        let pid = asked.map_err(|error| Failure::from(error).error)?.get(0);
        Ok(Self { session, notifications, pid })
    }

    /// From here on newcomers ask this process.
    async fn be_asked(&self, names: &Names) -> Result<(), tokio_postgres::Error> {
        // The name comes last: who is seen can be asked.
        let sql =
            format!("listen {}; set application_name = '{}'", quoted(&names.clock), names.presence);
        self.session.client.batch_execute(&sql).await
    }

    /// From here on nobody waits for an answer of this process. Said before the session ends, since the
    /// server may take a moment to notice that.
    async fn take_leave(self) {
        let sql = format!("set application_name = '{}'", Role::Listen.name());
        let _ = tokio::time::timeout(LEAVE, self.session.client.batch_execute(&sql)).await;
    }
}

/// A session that asks for a look at the clock: the number of its question, and who it is.
type Question = (String, i32);

/// Listens until the store is closed. The first session is the one that connecting has opened.
pub(crate) async fn run(shared: Arc<Shared>, first: Listener) {
    let (questions, asked) = mpsc::channel(QUESTIONS);
    tokio::select! {
        () = listen(&shared, first, &questions) => {}
        () = answer(&shared, asked) => {}
    }
}

async fn listen(shared: &Shared, first: Listener, questions: &mpsc::Sender<Question>) {
    let mut next = Some(first);
    let mut backoff = BACKOFF_MIN;
    loop {
        let listener = match next.take() {
            Some(listener) => Ok(listener),
            None => tokio::select! {
                listener = Listener::open(&shared.connector) => listener,
                () = shared.stopped() => return,
            },
        };
        match listener {
            Ok(mut listener) => {
                let patience = shared.connector.options.reply_timeout;
                let asked = tokio::select! {
                    asked = tokio::time::timeout(patience, listener.be_asked(&shared.names)) => asked,
                    () = shared.stopped() => return,
                };
                if matches!(asked, Ok(Ok(()))) {
                    backoff = BACKOFF_MIN;
                    tokio::select! {
                        () = serve(shared, &mut listener, questions) => {}
                        () = shared.stopped() => return listener.take_leave().await,
                    }
                }
                tracing::debug!("the listening connection ended; listening again");
            }
            Err(error) => tracing::debug!(%error, "cannot listen for changes; polling meanwhile"),
        }
        tokio::select! {
            () = shared.time.sleep(backoff) => {}
            () = shared.stopped() => return,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Passes on what is heard, until the session is gone.
async fn serve(shared: &Shared, listener: &mut Listener, questions: &mpsc::Sender<Question>) {
    let commits = quoted(&shared.names.commits);
    let mut hears_commits = false;
    loop {
        if shared.pump.is_watched() != hears_commits {
            hears_commits = !hears_commits;
            let verb = if hears_commits { "listen" } else { "unlisten" };
            let sql = format!("{verb} {commits}");
            let told = listener.session.client.batch_execute(&sql);
            let patience = shared.connector.options.reply_timeout;
            if !matches!(tokio::time::timeout(patience, told).await, Ok(Ok(()))) {
                return;
            }
            // What was said before went unheard.
            shared.pump.ring();
        }
        tokio::select! {
            heard = listener.notifications.recv() => match heard {
                None => return,
                Some(heard) if heard.channel() == shared.names.commits => {
                    shared.pump.told(heard.payload());
                }
                Some(heard) => {
                    if let Some(number) = question(heard.payload(), listener.pid) {
                        let _ = questions.try_send((number.to_owned(), heard.process_id()));
                    }
                }
            },
            () = shared.pump.watchers_changed() => {}
            () = listener.session.closed() => return,
        }
    }
}

/// The number of a question, if it is put to the session `own`.
fn question(payload: &str, own: i32) -> Option<&str> {
    let (number, asked) = payload.split_once(' ')?;
    let own = own.to_string();
    (asked == "*" || asked.split(',').any(|pid| pid == own)).then_some(number)
}

/// Answers questions: one look at the clock for all that wait.
async fn answer(shared: &Shared, mut asked: mpsc::Receiver<Question>) {
    while let Some(first) = asked.recv().await {
        let mut all = BTreeSet::from([first]);
        while let Ok(more) = asked.try_recv() {
            all.insert(more);
        }
        if let Err(error) = look_and_tell(shared, &all).await {
            tracing::debug!(%error, "a newcomer asked for the time and got no answer");
        }
    }
}

async fn look_and_tell(shared: &Shared, asked: &BTreeSet<Question>) -> Result<()> {
    shared.put_clock_right().await?;
    let channels: Vec<_> = asked.iter().map(|(_, pid)| shared.names.answers_to(*pid)).collect();
    let numbers: Vec<_> = asked.iter().map(|(number, _)| number.as_str()).collect();
    let tell = "select count(pg_notify(channel, question)) \
                from unnest($1::text[], $2::text[]) as asked (channel, question)";
    shared.read(tell, &[&channels, &numbers]).await?;
    Ok(())
}

impl Shared {
    /// Looks at the server's clock, and corrects the record for everybody if it was stepped.
    pub(crate) async fn put_clock_right(&self) -> Result<crate::read::Meta> {
        let meta = self.meta().await?;
        if meta.reading.stepped {
            tracing::warn!("the server's clock was stepped; correcting for it");
            self.commits.ask(Work::Record { next_expiry_ms: i64::MAX }, 0).await??;
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_for_those_whom_it_names() {
        assert_eq!(question("3 12,7,15", 7), Some("3"));
        assert_eq!(question("3 12,17,15", 7), None);
        assert_eq!(question("1 *", 7), Some("1"));
        assert_eq!(question("1", 7), None);
    }
}
