//! What can be set.

use std::path::PathBuf;
use std::time::Duration;

use tenure::clock::{SharedClock, SystemClock};

/// How a [`crate::NatsStore`] uses its servers. Parameters of the URL set the same things.
///
/// ```
/// use tenure_nats::Options;
///
/// let options = Options::new().replicas(3).credentials("/etc/tenure/nats.creds");
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) replicas: Option<usize>,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) tls: bool,
    pub(crate) root_certificates: Option<PathBuf>,
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) sync: Option<Sync>,
    pub(crate) monitor: Option<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) clock: SharedClock,
}

/// When the servers flush to their disks: their setting `sync_interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Before a write is acknowledged.
    Always,
    /// So often.
    Every(Duration),
}

impl Options {
    /// The defaults, which suit most.
    pub fn new() -> Self {
        Self {
            replicas: None,
            credentials: None,
            tls: false,
            root_certificates: None,
            client_certificate: None,
            sync: None,
            monitor: None,
            connect_timeout: Duration::from_secs(5),
            reply_timeout: Duration::from_secs(5),
            poll_interval: Duration::from_secs(2),
            clock: SystemClock::shared(),
        }
    }

    /// How many servers keep the bucket: used when it is made, demanded when it is there.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Authenticates with a credentials file.
    #[must_use]
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// Talks to the servers only over TLS.
    #[must_use]
    pub fn tls(mut self, required: bool) -> Self {
        self.tls = required;
        self
    }

    /// Trusts the certificates in this file instead of the system's.
    #[must_use]
    pub fn root_certificates(mut self, file: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(file.into());
        self
    }

    /// Shows the servers this certificate.
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// States when the servers flush, where no monitoring endpoint can be asked. It is declared, not
    /// checked.
    #[must_use]
    pub fn sync(mut self, sync: Sync) -> Self {
        self.sync = Some(sync);
        self
    }

    /// Asks these monitoring endpoints (`http://host:8222`, several with commas between) when their
    /// servers flush. Unless all servers that keep the bucket are asked, nothing is declared.
    #[must_use]
    pub fn monitor(mut self, url: impl Into<String>) -> Self {
        self.monitor = Some(url.into());
        self
    }

    /// How long connecting may take.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one exchange may take, waiting for a lost connection to come back included.
    #[must_use]
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// How often watchers look for changes that they were not told of.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(Duration::from_millis(10));
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
        f.debug_struct("Options").field("replicas", &self.replicas).finish_non_exhaustive()
    }
}
