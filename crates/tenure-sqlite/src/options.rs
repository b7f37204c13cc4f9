//! Settings of a SQLite store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::Result;
use tenure::clock::{SharedClock, SystemClock, boot_id};

use crate::SqliteStore;

/// Where the file is and how the store behaves; every setting has a default that suits.
#[derive(Clone)]
pub struct Options {
    pub(crate) path: PathBuf,
    pub(crate) clock: SharedClock,
    pub(crate) boot_id: String,
    pub(crate) history: Duration,
    pub(crate) history_events: u64,
    pub(crate) busy_timeout: Duration,
    pub(crate) poll_every: Duration,
    pub(crate) sql_timeout: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) allow_network_filesystem: bool,
}

impl Options {
    /// The defaults for this file.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            clock: SystemClock::shared(),
            boot_id: boot_id(),
            history: Duration::from_secs(600),
            history_events: 100_000,
            busy_timeout: Duration::from_secs(5),
            poll_every: Duration::from_secs(1),
            sql_timeout: Duration::from_secs(5),
            max_bytes: None,
            allow_network_filesystem: false,
        }
    }

    /// Takes time from elsewhere. All processes on one file must agree on the clock.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Pretends to run in this boot of the host, for tests that reboot.
    #[must_use]
    pub fn boot_id(mut self, boot_id: impl Into<String>) -> Self {
        self.boot_id = boot_id.into();
        self
    }

    /// How long a watcher can be away and still resume (10 minutes), within `events` (100,000).
    #[must_use]
    pub fn history(mut self, history: Duration, events: u64) -> Self {
        (self.history, self.history_events) = (history, events);
        self
    }

    /// How long to wait for another process's transaction (5 seconds).
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How long the SQL attached to one commit may take (5 seconds): it holds up every writer of the
    /// file. What takes longer is rolled back, and its commit is [`tenure::Error::Unavailable`].
    #[must_use]
    pub fn sql_timeout(mut self, timeout: Duration) -> Self {
        self.sql_timeout = timeout;
        self
    }

    /// Lets the file grow to this size and no further; a commit beyond is [`tenure::Error::Full`].
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Opens a file on a network file system all the same. The write-ahead log needs memory that all
    /// processes share, so at most one host may ever have it open.
    #[must_use]
    pub fn allow_network_filesystem(mut self, allow: bool) -> Self {
        self.allow_network_filesystem = allow;
        self
    }

    /// The write-ahead log beside the file.
    pub(crate) fn log(&self) -> PathBuf {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        log.into()
    }

    /// Opens the store, creating or migrating the file where needed.
    pub fn open(self) -> Result<SqliteStore> {
        SqliteStore::open_with(self)
    }
}
