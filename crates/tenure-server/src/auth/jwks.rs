//! Public keys from a URL: fetched when first needed, again every few minutes while they are used, and
//! when a token names a key that is not among them. While the URL is down, the old keys stay in force, and
//! requests that need no others do not wait for it.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::Uri;
use tenure::clock::SharedClock;
use tenure::{Error, Result};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::fetch::Source;
use super::keys::KeySet;

/// After this long they are fetched again while the old ones are used.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// After this long, requests wait for newer keys first, unless the URL is known to be down.
const STALE: Duration = Duration::from_secs(10 * 60);
/// How long to leave the URL alone after a try, whatever tokens come in.
const PAUSE: Duration = Duration::from_secs(30);
/// The same, as long as there are no keys at all.
const PAUSE_WITHOUT_KEYS: Duration = Duration::from_secs(2);
/// For so long the URL is known to be down after a try that failed.
const DOWN: Duration = Duration::from_secs(60);

/// The keys at one URL. Cheap to clone.
#[derive(Clone)]
pub(super) struct Jwks {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    clock: SharedClock,
    /// The keys and when they were fetched.
    current: RwLock<Option<(Arc<KeySet>, Duration)>>,
    /// When the last try was; locked while one is going on.
    tried: Arc<Mutex<Option<Duration>>>,
    /// When a try failed, or the next one after that began; nothing once one succeeds.
    failed: RwLock<Option<Duration>>,
}

impl Jwks {
    /// Nothing is fetched yet.
    pub(super) fn new(url: &str, clock: &SharedClock) -> Result<Self> {
        let wrong = |reason: &str| Error::invalid(format!("jwks_url {url:?}"), reason);
        let uri: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
        let source = Source::new(uri).map_err(|reason| wrong(&reason))?;
        let shared = Shared {
            source,
            clock: Arc::clone(clock),
            current: RwLock::default(),
            tried: Arc::default(),
            failed: RwLock::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The keys as we know them.
    pub(super) async fn keys(&self) -> Result<Arc<KeySet>> {
        let Some((keys, age)) = self.current() else { return self.newer().await };
        if age >= STALE && !self.is_down() {
            return self.newer().await;
        }
        if age >= FRESH
            && let Ok(tried) = Arc::clone(&self.shared.tried).try_lock_owned()
        {
            let this = self.clone();
            tokio::spawn(async move { this.try_again(tried).await });
        }
        Ok(keys)
    }

    /// The keys as they are after a try to fetch them.
    async fn newer(&self) -> Result<Arc<KeySet>> {
        self.refresh().await;
        self.current().map(|(keys, _)| keys).ok_or_else(|| self.down())
    }

    /// Fetches them, unless that was tried a moment ago.
    pub(super) async fn refresh(&self) {
        let tried = Arc::clone(&self.shared.tried).lock_owned().await;
        self.try_again(tried).await;
    }

    async fn try_again(&self, mut tried: OwnedMutexGuard<Option<Duration>>) {
        let pause = if self.current().is_some() { PAUSE } else { PAUSE_WITHOUT_KEYS };
        let now = self.shared.clock.uptime();
        if tried.is_some_and(|last| now < last + pause) {
            return;
        }
        *tried = Some(now);
        self.failing(|failed| failed.map(|_| now));
        let fetched = match self.shared.source.get().await {
            Ok(document) => KeySet::public(&document).map_err(|error| error.to_string()),
            Err(reason) => Err(reason),
        };
        let url = self.shared.source.uri();
        match fetched {
            Ok(keys) => {
                tracing::debug!(%url, "fetched the keys of signed tokens");
                let mut current =
                    self.shared.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Some((Arc::new(keys), now));
                self.failing(|_| None);
            }
            Err(reason) => {
                tracing::warn!(%url, reason, "the keys of signed tokens cannot be fetched");
                self.failing(|_| Some(self.shared.clock.uptime()));
            }
        }
    }

    fn failing(&self, since: impl FnOnce(Option<Duration>) -> Option<Duration>) {
        let mut failed = self.shared.failed.write().unwrap_or_else(PoisonError::into_inner);
        *failed = since(*failed);
    }

    /// Whether a try would most likely fail now, and take its time for that.
    fn is_down(&self) -> bool {
        let failed = *self.shared.failed.read().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|at| self.shared.clock.uptime() < at + DOWN)
    }

    fn current(&self) -> Option<(Arc<KeySet>, Duration)> {
        let current = self.shared.current.read().unwrap_or_else(PoisonError::into_inner);
        let (keys, at) = current.as_ref()?;
        Some((Arc::clone(keys), self.shared.clock.uptime().saturating_sub(*at)))
    }

    fn down(&self) -> Error {
        let url = self.shared.source.uri();
        Error::unavailable("server", format!("the keys at {url} cannot be fetched; try again"))
    }
}
