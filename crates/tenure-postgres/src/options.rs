//! What can be set.

use std::time::Duration;

use tenure::clock::{SharedClock, SystemClock};

/// How a [`crate::PostgresStore`] uses its server.
///
/// ```
/// use std::time::Duration;
/// use tenure_postgres::Options;
///
/// let options = Options::new().schema("billing").history(Duration::from_secs(3600));
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) schema: Option<String>,
    pub(crate) read_connections: usize,
    pub(crate) history: Duration,
    pub(crate) history_revisions: u64,
    pub(crate) poll_interval: Duration,
    pub(crate) sweep_interval: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    pub(crate) sql_timeout: Duration,
    pub(crate) clock: SharedClock,
}

impl Options {
    /// The defaults, which suit most.
    pub fn new() -> Self {
        Self {
            schema: None,
            read_connections: 4,
            history: Duration::from_secs(600),
            history_revisions: 100_000,
            poll_interval: Duration::from_secs(2),
            sweep_interval: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(8),
            sql_timeout: Duration::from_secs(5),
            clock: SystemClock::shared(),
        }
    }

    /// Keeps the tables in this schema, made if absent. Without it they go where the connection's
    /// search path points, usually `public`.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Connections for reads. Writing, touching, listening and chores have one or two each on top.
    #[must_use]
    pub fn read_connections(mut self, connections: usize) -> Self {
        self.read_connections = connections.clamp(1, 64);
        self
    }

    /// How long a watch can be away and still resume.
    #[must_use]
    pub fn history(mut self, history: Duration) -> Self {
        self.history = history;
        self
    }

    /// History is cut to this many revisions even if it is younger.
    #[must_use]
    pub fn history_revisions(mut self, revisions: u64) -> Self {
        self.history_revisions = revisions.max(1);
        self
    }

    /// How often watchers look for changes that no notification told them of.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(Duration::from_millis(10));
        self
    }

    /// How often this process looks for objects that expired; an expiry known in advance is met to
    /// the instant.
    #[must_use]
    pub fn sweep_interval(mut self, interval: Duration) -> Self {
        self.sweep_interval = interval.max(Duration::from_millis(10));
        self
    }

    /// How long connecting may take.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the server may take over one exchange before the connection is given up.
    #[must_use]
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// How long the SQL attached to one commit may take (5 seconds), waiting for locks included. What
    /// takes longer is rolled back, and its commit is [`tenure::Error::Unavailable`].
    #[must_use]
    pub fn sql_timeout(mut self, timeout: Duration) -> Self {
        self.sql_timeout = timeout;
        self
    }

    /// Takes steady time from elsewhere, for tests.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("schema", &self.schema).finish_non_exhaustive()
    }
}
