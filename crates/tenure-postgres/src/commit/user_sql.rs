//! Commits that carry the caller's own SQL, each in a transaction of its own.
//!
//! The caller's SQL runs first, while the counter is not locked: it may be slow or wait for a lock, and no
//! other commit waits for it. Then an ordinary commit ([`crate::commit::transaction`]) joins the open
//! transaction. These commits have sessions of their own, which are cleaned before they are used again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join;
use tenure::backend::WRITER_LEVEL;
use tenure::random::{SystemRandom, nonce};
use tenure::store::{Commit, Committed};
use tenure::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::BACKEND;
use crate::commit::committer::Work;
use crate::commit::known::Known;
use crate::commit::sql::{self, WHAT};
use crate::commit::transaction::{Broken, Statements, Transaction, connect};
use crate::connect::session::{PLANNING, Role, Session, UNHEARD};
use crate::error::{Failure, commit_unanswered};
use crate::shared::{Shared, closed};

/// Commits with SQL at the same time.
const AT_ONCE: u32 = 4;

/// What a caller's SQL may leave behind on a session.
const CLEAN: &str = "reset session authorization; reset role; reset all; close all; unlisten *; \
                     discard temp; select pg_advisory_unlock_all()";

/// The sessions for commits with SQL, opened as they are needed.
pub(crate) struct UserSessions {
    room: Arc<Semaphore>,
    idle: Mutex<Vec<UserSession>>,
}

/// A session on which the caller's SQL runs.
struct UserSession {
    open: Session,
    statements: Statements,
    /// Where the store's tables are found, whatever the caller's SQL does to the search path.
    path: String,
    /// Names the transaction that is open; gone with it.
    mark: String,
}

impl UserSessions {
    pub(crate) fn new() -> Self {
        let room = Arc::new(Semaphore::new(AT_ONCE as usize));
        Self { room, idle: Mutex::default() }
    }

    /// Takes no more commits, and waits for those that are under way.
    pub(crate) async fn close(&self) {
        let _all = self.room.acquire_many(AT_ONCE).await;
        self.room.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<UserSession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn room(&self, patience: Duration) -> Result<OwnedSemaphorePermit> {
        let room = tokio::time::timeout(patience, Arc::clone(&self.room).acquire_owned()).await;
        let room = room.map_err(|_| {
            let reason = format!(
                "{AT_ONCE} commits with SQL have been under way for {patience:?}; is theirs slow?"
            );
            Error::unavailable(BACKEND, reason)
        })?;
        room.map_err(|_| closed())
    }
}

/// Runs one commit with its SQL.
pub(crate) async fn commit(shared: &Arc<Shared>, commit: Commit) -> Result<Committed> {
    let options = &shared.connector.options;
    let room = shared.user_sessions.room(options.reply_timeout).await?;
    let session = begin(shared).await.map_err(|failure| failure.error)?;
    // Here, in the caller's task: if it is dropped, so is the session, and the server rolls back.
    let run = sql::run(&session.open.client, &commit.attachments, options.sql_timeout).await;
    let home = &shared.connector.home;
    if let Err(stopped) = run {
        let shared = Arc::clone(shared);
        home.spawn(async move { session.give_back(&shared, stopped.midway, room).await });
        return Err(stopped.error);
    }
    // At home, because the counter must not be held by a runtime that may be blocked.
    let finished = home.spawn(finish(Arc::clone(shared), session, commit, room)).await;
    finished.unwrap_or_else(|_| Err(commit_unanswered("the store stopped while it worked")))
}

/// A session with an open transaction, in which the caller's SQL can run.
async fn begin(shared: &Shared) -> Result<UserSession, Failure> {
    let idle = shared.user_sessions.idle().pop();
    if let Some(mut session) = idle
        && !session.open.client.is_closed()
        && session.begin(shared).await.is_ok()
    {
        return Ok(session);
    }
    // It may have died of old age, unnoticed; a new one tells what is really the matter.
    let mut session = UserSession::open(shared).await?;
    session.begin(shared).await?;
    Ok(session)
}

/// The commit proper, once the caller's SQL has run.
async fn finish(
    shared: Arc<Shared>,
    session: UserSession,
    commit: Commit,
    room: OwnedSemaphorePermit,
) -> Result<Committed> {
    session.resume(&shared).await?;
    let work = Work::Commit(commit);
    let (client, statements) = (&session.open.client, &session.statements);
    let transaction = Transaction { shared: &shared, client, statements, joins: true, locks: true };
    match transaction.run(&[&work], &mut Known::default()).await {
        Ok(mut outcome) => {
            outcome.tell(&shared.pump);
            let home = Arc::clone(&shared);
            shared.connector.home.spawn(async move { session.give_back(&home, false, room).await });
            outcome.answers.pop().unwrap_or_else(|| Err(commit_unanswered("no answer")))
        }
        Err(Broken::Before(failure)) => Err(sql::of_commit(failure)),
        Err(Broken::InDoubt { why, .. }) => Err(commit_unanswered(&why)),
    }
}

impl UserSession {
    async fn open(shared: &Shared) -> Result<Self, Failure> {
        let (session, statements) = connect(shared, Role::UserSql).await?;
        let path = "select current_setting('search_path')";
        let path = bounded(shared, session.client.query_one(path, &[])).await?;
        // A temporary table must not be taken for one of the store's.
        let path = format!("{}, pg_temp", path.get::<_, &str>(0));
        Ok(Self { open: session, statements, path, mark: String::new() })
    }

    /// Opens a transaction with the settings of the connection, not with those of the store.
    async fn begin(&mut self, shared: &Shared) -> Result<(), Failure> {
        self.mark = nonce(&SystemRandom);
        let limit_ms = shared.connector.options.sql_timeout.as_millis().max(1);
        // Level 0 may not write to `objects`.
        let sql = format!(
            "begin isolation level read committed; reset all; \
             set local tenure.writer = '0'; set local tenure.transaction = '{}'; \
             set local statement_timeout = '{limit_ms}ms'; \
             set local idle_in_transaction_session_timeout = '{limit_ms}ms'; set local {UNHEARD}",
            self.mark
        );
        bounded(shared, self.open.client.batch_execute(&sql)).await
    }

    /// Makes the session the store's again, in the transaction that is still open.
    async fn resume(&self, shared: &Shared) -> Result<()> {
        let client = &self.open.client;
        let options = &shared.connector.options;
        let reply_ms = options.reply_timeout.as_millis();
        let settings = format!(
            "set local session authorization default; set local role none; \
             set local search_path = {}; set local tenure.writer = '{WRITER_LEVEL}'; {PLANNING} \
             set local idle_in_transaction_session_timeout = '1s'; set local {UNHEARD}; \
             set local lock_timeout = '5s'; set local statement_timeout = '{reply_ms}ms'; \
             select set_config('synchronous_commit', 'on', true) \
             where current_setting('synchronous_commit') = 'off';",
            self.path
        );
        let mark = client.query_one("select current_setting('tenure.transaction', true)", &[]);
        // A statement of the caller's that failed, unless the closure said so, shows here.
        let both = async {
            let both = try_join(mark, client.batch_execute(&settings)).await;
            Ok(both.map_err(|error| sql::of_statement(error, options.sql_timeout)))
        };
        let (mark, ()) = bounded(shared, both).await.map_err(|failure| failure.error)??;
        if mark.get::<_, Option<&str>>(0) != Some(&self.mark) {
            let reason = "it ended the transaction; what it did until then is committed or rolled \
                          back as it said, and nothing of the commit was written";
            return Err(Error::invalid(WHAT, reason));
        }
        Ok(())
    }

    /// Ends whatever is open, and keeps the session for the next.
    async fn give_back(self, shared: &Shared, midway: bool, _room: OwnedSemaphorePermit) {
        let client = &self.open.client;
        if midway {
            // The statement that runs holds locks; the session goes with it.
            let cancel = client.cancel_token();
            let cancelled = cancel.cancel_query(shared.connector.tls.connector());
            let _ = tokio::time::timeout(Duration::from_secs(1), cancelled).await;
            return;
        }
        let clean = try_join(client.batch_execute("rollback"), client.batch_execute(CLEAN));
        if bounded(shared, clean).await.is_ok() && shared.check_open().is_ok() {
            shared.user_sessions.idle().push(self);
        }
    }
}

/// An exchange that ends in time.
async fn bounded<T>(
    shared: &Shared,
    exchange: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    let patience = shared.connector.options.reply_timeout;
    let answer = tokio::time::timeout(patience, exchange).await;
    Ok(answer.map_err(|_| Failure::timeout("a commit with SQL", patience))??)
}
