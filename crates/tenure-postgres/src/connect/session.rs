//! Connecting, and what every session is told first.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, Result};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{AsyncMessage, Client, Config, Notification};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::connect::tls::{Settings, Tls};
use crate::error::{Failure, connecting};
use crate::{BACKEND, Options};
use tenure::backend::home::Home;

/// What a session is for; they differ in how long the server lets them wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Holds the commit lock for a moment.
    Commit,
    /// Runs the caller's SQL, then commits.
    UserSql,
    /// Locks the rows it touches.
    Touch,
    /// Reads only.
    Read,
    /// Connects first and makes the tables, then waits for notifications.
    Listen,
    /// Sweeps and compacts.
    Chores,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commit => "tenure commit",
            Self::UserSql => "tenure sql",
            Self::Touch => "tenure touch",
            Self::Read => "tenure read",
            Self::Listen => "tenure listen",
            Self::Chores => "tenure chores",
        }
    }
}

/// Our statements find rows by key, a few or thousands. A plan made while the table was small would
/// scan it for ever after, and planning anew each time costs more than running.
pub(crate) const PLANNING: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; \
     set enable_hashjoin = off; set enable_mergejoin = off; set jit = off;";

/// A standby answers with what it has, which may be out of date, and an address may lead to one at any
/// time. The same kind of error as for an attempt to write there.
const PRIMARY: &str = "do $$ begin if pg_is_in_recovery() then \
     raise read_only_sql_transaction using message = 'what it has may be out of date'; \
     end if; end $$;";

/// A session whose answer nobody takes is not idle, and no statement of its runs: nothing else ends it.
/// Over a Unix socket this does nothing.
pub(crate) const UNHEARD: &str = "tcp_user_timeout = '3s'";

/// Knows where the server is and how to greet it.
pub(crate) struct Connector {
    config: Config,
    pub(crate) tls: Tls,
    target: String,
    pub(crate) options: Options,
    /// Where sessions and workers live.
    pub(crate) home: Home,
}

impl Connector {
    /// # Errors
    /// [`Error::Invalid`] for an address that makes no sense or asks for what is not built.
    pub(crate) fn new(url: &str, options: Options) -> Result<Arc<Self>> {
        // The text itself is not repeated: it may hold a password.
        let (settings, url) = Settings::take_from(url);
        let (mode, tls) = settings.tls()?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error);
            let why = why.map_or_else(|| error.to_string(), ToString::to_string);
            Error::invalid(
                "Postgres address",
                format!("{why}; write postgres://user:password@host:port/database"),
            )
        })?;
        config
            .ssl_mode(mode)
            .connect_timeout(options.connect_timeout)
            .tcp_user_timeout(options.reply_timeout)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        let target = target(&config);
        Ok(Arc::new(Self { config, tls, target, options, home: Home::start(BACKEND)? }))
    }

    /// Opens a session.
    pub(crate) async fn open(&self, role: Role) -> Result<Session> {
        self.open_with(role, None).await
    }

    /// Opens a session that passes notifications on.
    pub(crate) async fn open_with(
        &self,
        role: Role,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Session> {
        let patience = self.options.connect_timeout;
        let mut config = self.config.clone();
        config.application_name(role.name());
        let (target, greeting) = (self.target.clone(), self.greeting(role));
        let tls = self.tls.connector();
        // At home, because a socket belongs to the runtime on which it was opened.
        let opening = self.home.spawn(async move {
            // A server that is frozen accepts connections and then says nothing.
            let opened = open(&config, tls, &target, &greeting, notifications);
            tokio::time::timeout(patience, opened).await.unwrap_or_else(|_| {
                let reason = format!("{target} did not answer within {patience:?}");
                Err(Error::unavailable(BACKEND, reason))
            })
        });
        let ended =
            |error| Error::unavailable(BACKEND, format!("connecting was cut short: {error}"));
        opening.await.map_err(ended)?
    }

    fn greeting(&self, role: Role) -> String {
        let mut sql = format!(
            "set tenure.writer = '{}'; set default_transaction_isolation = 'read committed';",
            tenure::backend::WRITER_LEVEL
        );
        if let Some(schema) = &self.options.schema {
            sql.push_str(&format!("set search_path = {};", quoted(schema)));
        }
        let reply_ms = self.options.reply_timeout.as_millis();
        sql.push_str(PRIMARY);
        sql.push_str(PLANNING);
        match role {
            // A process that freezes while it holds the commit lock is cut off, so that it stops
            // nobody else for long; also while the server still has something to tell it.
            Role::Commit | Role::Touch => sql.push_str(&format!(
                "set idle_in_transaction_session_timeout = '1s'; set lock_timeout = '5s'; set {UNHEARD}; \
                 set statement_timeout = '{reply_ms}ms'; \
                 select set_config('synchronous_commit', 'on', false) \
                 where current_setting('synchronous_commit') = 'off';",
            )),
            Role::Read => sql.push_str(&format!("set statement_timeout = '{reply_ms}ms';")),
            // Nothing a chore writes is told to a caller, so none of it needs to wait for the disk.
            Role::Chores => sql.push_str(
                "set lock_timeout = '5s'; set statement_timeout = '30s'; \
                 set synchronous_commit = 'off';",
            ),
            // It is silent for hours, and newcomers wait for the answer of a machine that is gone
            // without a word: the server should notice soon.
            Role::Listen => sql.push_str(
                "set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; \
                 set tcp_keepalives_count = 3;",
            ),
            // Its settings are made anew for each transaction.
            Role::UserSql => {}
        }
        sql
    }
}

async fn open(
    config: &Config,
    tls: MakeRustlsConnect,
    target: &str,
    greeting: &str,
    notifications: Option<mpsc::Sender<Notification>>,
) -> Result<Session> {
    let (client, mut connection) =
        config.connect(tls).await.map_err(|error| connecting(target, &error))?;
    let driver = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let (AsyncMessage::Notification(notification), Some(sender)) =
                (message, &notifications)
            {
                // A full queue holds hints enough to look again.
                let _ = sender.try_send(notification);
            }
        }
    });
    let session = Session { client, driver };
    let greeted = session.client.batch_execute(greeting).await;
    greeted.map_err(|error| Failure::from(error).error)?;
    Ok(session)
}

fn target(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
    format!("{host}:{port}/{database}")
}

/// A name as SQL writes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// One session. Dropping it closes the socket at once, whatever state it is in.
pub(crate) struct Session {
    pub(crate) client: Client,
    driver: JoinHandle<()>,
}

impl Session {
    /// Resolves when the connection is gone.
    pub(crate) async fn closed(&mut self) {
        let _ = (&mut self.driver).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
